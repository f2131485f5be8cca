"""Invariants 7 and 8 where compaction is killed: before every rename and removal of whole passes, and at random
instants of a process that compacts."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from unittest import mock

import pytest
from log_storage_batches import make_log
from test_cleaner_model import CONFIG, encode, records_of

from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.offline_cleaning import compact_log
from highwater.log_storage.compaction.offset_map import ENTRY_BYTES
from highwater.log_storage.files.partition_metadata import FILE_NAME
from highwater.log_storage.inspect.verify import verify_log
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.records import Codec, Record

NOW = 1_000_000
LATER = NOW + CONFIG.delete_retention_ms
LIMITS = PassLimits(map_bytes=1000 * ENTRY_BYTES)
KEYS = 9


def fill(log: Log, first: int, count: int) -> None:
    """Batches of three, now columns and now rows; every fifth record is a tombstone, of a key that stays deleted or of
    one that comes back."""
    for number in range(first, first + count):
        records = []
        for offset in range(3 * number, 3 * number + 3):
            key = offset * 5 % KEYS
            deleted = key == 4 if offset > 30 else offset % 5 == 0
            records.append((b"key-%d" % key, None if deleted else b"%d." % offset * 30))
        log.append_as_leader(encode(records, bool(number % 2), Codec.NONE), 1 + number // 20, log.log_end_offset, 0)
    log.writer.roll(log.log_end_offset)
    log.flush()
    log.offsets.raise_high_watermark(log.log_end_offset)


def check(found: list[Record], before: list[Record]) -> None:
    """`found` is what may be left of `before`."""
    known = {record.offset: record for record in before}
    assert all(known[record.offset] == record for record in found)
    offsets = {record.offset for record in found}
    last = {record.key: record for record in before}
    for key, record in last.items():
        if record.value is not None:
            assert record.offset in offsets
        elif record.offset not in offsets:  # the tombstone has gone, and before it all that it covered
            assert not [other for other in found if other.key == key]


def problems(directory: Path) -> list[str]:
    """Of the files of a log, which has no topic here."""
    files = (file for file in verify_log(directory, {}) if file.path.name != FILE_NAME)
    return [problem for file in files for problem in file.problems]


@contextmanager
def crashing(before: Callable[[], None]) -> Iterator[None]:
    """Calls `before` in front of every rename and removal of a file."""

    def watched(name: str) -> Any:
        original = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            before()
            return original(*arguments, **options)

        return mock.patch.object(os, name, call)

    with watched("rename"), watched("replace"), watched("unlink"):
        yield


@pytest.mark.parametrize("recovery_point", [0, 1 << 40])
def test_a_crash_before_every_rename(tmp_path: Path, recovery_point: int) -> None:
    """Also where the recovery point of long ago is the one in the checkpoint."""
    directory = tmp_path / "t-0"
    log = make_log(directory, CONFIG)
    fill(log, 0, 20)
    compact_log(log, LIMITS, NOW)
    fill(log, 20, 16)
    before = records_of(log)
    copies: list[Path] = []

    def copy() -> None:
        copies.append(shutil.copytree(directory, tmp_path / f"{len(copies)}" / "t-0"))

    with crashing(copy):
        compacted = compact_log(log, LIMITS, LATER)
    copy()
    after = records_of(log)
    assert compacted.records_dropped > 0
    assert not [record for record in after if record.key == b"key-4" and record.offset < 60]
    assert len(copies) > 20
    end = log.log_end_offset
    left: list[int] = []
    for number, crashed in enumerate(copies):
        again = make_log(crashed, CONFIG, Checkpointed(False, min(recovery_point, end), 0, end))
        assert again.log_end_offset == end, number
        found = records_of(again)
        check(found, before)
        left.append(len(found))
        again.close()
        assert not problems(crashed), number
        if number % 10 == 0:  # it goes on from there
            again.offsets.recovery_point = end
            compact_log(again, LIMITS, LATER)
            assert [record.offset for record in records_of(again)] == [record.offset for record in after]
    assert left == sorted(left, reverse=True)  # a swap is there or it is not, and nothing comes back
    assert left[0] == len(before)
    assert left[-1] == len(after)


CHILD = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_cleaner_crashes import LATER, LIMITS, fill
from log_storage_batches import make_log
from test_cleaner_model import CONFIG
from highwater.log_storage.compaction.offline_cleaning import compact_log
from highwater.log_storage.recovery.recovery import Checkpointed
log = make_log(Path(sys.argv[1]), CONFIG, Checkpointed(clean=True))
log.offsets.raise_high_watermark(log.log_end_offset)
print("ready", flush=True)
sys.stdin.readline()
compact_log(log, LIMITS, LATER)
print("done", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_is_killed_at_any_instant(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = make_log(directory, CONFIG)
    fill(log, 0, 100)
    log.close()
    before = records_of(log)
    child = CHILD.format(tests=str(Path(__file__).parent))
    random_delays = random.Random(7)
    took_s = 0.0
    for run in range(8):
        crashed = shutil.copytree(directory, tmp_path / f"{run}" / "t-0")
        with subprocess.Popen(
            [sys.executable, "-c", child, str(crashed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            began_s = monotonic()
            process.stdin.write(b"\n")
            process.stdin.flush()
            if not run:
                assert process.stdout.readline() == b"done\n"
                took_s = monotonic() - began_s
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(random_delays.uniform(0, took_s))
            process.send_signal(signal.SIGKILL)
        again = make_log(crashed, CONFIG, Checkpointed(False, 0, 0, log.log_end_offset))
        assert again.log_end_offset == log.log_end_offset
        check(records_of(again), before)
        again.close()
        assert not problems(crashed)
