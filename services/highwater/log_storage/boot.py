"""Whether the tail of a log directory may be gone (RULES 7.2): the page cache outlives a process, not a kernel or a
mount."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from highwater.log_storage.durable import replace_file

FILE_NAME = ".highwater_boot"
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


def present_boot(directory: Path) -> Boot:
    """Raises `OSError`."""
    device = os.stat(directory).st_dev
    boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
    return Boot(boot_id, f"{os.major(device)}:{os.minor(device)}:{os.statvfs(directory).f_fsid:x}")


def tail_lost(record: BootRecord | None, present: Boot, clean: bool) -> bool:
    """RULES 7.2: no clean-shutdown mark, and either no record of ours (a replaced volume) or another boot or mount,
    unless every append was flushed."""
    if clean:
        return False
    if record is None:
        return True
    return record.boot != present and not record.flush_every_message


def read_record(directory: Path) -> BootRecord | None:
    """None where there is none, or none that can be read. Raises `OSError`."""
    try:
        fields = json.loads((directory / FILE_NAME).read_bytes())
        directory_ids = tuple(fields.get("directory_ids", ()))
        return BootRecord(fields["broker_id"], Boot(**fields["boot"]), fields["flush_every_message"], directory_ids)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None


def write_record(directory: Path, record: BootRecord) -> None:
    """Durable when it returns. Raises `OSError`."""
    replace_file(directory / FILE_NAME, json.dumps(asdict(record), sort_keys=True).encode())
