"""Tells whether the tail of a log directory may be gone (RULES 7.2): the page cache outlives a process, not a kernel or
a mount, and not a disk that does not take what is in it. The decisions are pure."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from highwater.atomic_file import read_whole, replace_file
from highwater.model.written_json import checked, parse_json

FILE_NAME = ".highwater_boot"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"  # an empty file: everything was on disk when the process ended
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Boot:
    """The page cache that a directory's files are written through."""

    boot_id: str  # of the kernel
    mount: str  # device and file system id


@dataclass(frozen=True, slots=True)
class BootRecord:
    """`.highwater_boot`: how the directory was last used."""

    broker_id: int
    boot: Boot
    flush_every_message: bool  # with flush.messages=1: every answered append is on disk
    directory_ids: tuple[str, ...] = ()  # of all of the broker's log directories then, this one too
    # Under this boot something that had been written was lost, or may have been: until the broker has registered so.
    tail_lost: bool = False


def present_boot(directory: Path) -> Boot:
    """Raises `OSError`."""
    device = os.stat(directory).st_dev
    boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
    return Boot(boot_id, f"{os.major(device)}:{os.minor(device)}:{os.statvfs(directory).f_fsid:x}")


def tail_lost(record: BootRecord | None, present: Boot, clean: bool) -> bool:
    """RULES 7.2: no clean-shutdown mark, and either no record of ours (a replaced volume), or one that says so, or
    another boot or mount, unless every append was flushed."""
    if clean:
        return False
    if record is None or record.tail_lost:
        return True
    return record.boot != present and not record.flush_every_message


def page_cache_intact(record: BootRecord | None, present: Boot, clean: bool) -> bool:
    """Tells whether what the last process had written is all there, as far as the record can tell: it was killed, and
    no more."""
    return not clean and record is not None and not record.tail_lost and record.boot == present


def flushes_every_append(flush_messages: int) -> bool:
    """Tells whether a log with this `flush.messages` has nothing that was answered and is not on disk. The record of
    its directory must cease to say so of all of them before one is configured otherwise."""
    return flush_messages == 1


class Cut(Enum):
    """The part that recovery has to cut off a log."""

    NOTHING = "nothing"
    TORN = "the beginning of one last batch"  # all that a kill in the midst of a write leaves
    MORE = "more than that"


def recovery_shows_loss(
    page_cache: bool, cut: Cut, log_start_offset: int, high_watermark: int, log_end_offset: int
) -> str:
    """Tells why a log, as an unclean start finds it, has lost what had been written to it; empty: it need not have
    (RULES 7.2). `page_cache`: `page_cache_intact`. The offsets are those of the checkpoints, and where the log ends
    now.

    A killed process leaves what it had written, and of the write that it was in the midst of a beginning: whole
    batches, and of one more at the end of the file too few bytes. And a high watermark is never checkpointed before
    what is below it has been written (synced, with flush.messages=1), nor kept when that is cut."""
    if max(log_start_offset, log_end_offset) < high_watermark:
        return f"it ends at offset {log_end_offset}, and its high watermark was {high_watermark}"
    if page_cache and cut is Cut.MORE:
        return "more is damaged than a last batch that a kill has cut short"
    return ""


def read_record(directory: Path) -> BootRecord | None:
    """None where there is none, or none that can be read. Raises `OSError`."""
    try:
        fields = parse_json(read_whole(directory / FILE_NAME))
        directory_ids = tuple(fields.get("directory_ids", ()))
        return checked(
            BootRecord(
                fields["broker_id"],
                checked(Boot(**fields["boot"])),
                fields["flush_every_message"],
                directory_ids,
                bool(fields.get("tail_lost", False)),
            )
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_record(directory: Path, record: BootRecord) -> None:
    """Durable when it returns. Raises `OSError`."""
    replace_file(directory / FILE_NAME, json.dumps(asdict(record), sort_keys=True).encode())
