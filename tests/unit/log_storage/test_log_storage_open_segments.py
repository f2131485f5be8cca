"""However many segments are read, a bounded number has files open; what is read is what was written."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_storage_batches import append, batch, lead, make_log

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.open_segments import MAX_OPEN, OpenSegments, open_segments
from highwater.records import iter_batches

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
LIMIT = 4
BATCHES = 120


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    before = open_segments.limit
    open_segments.limit = LIMIT
    yield
    open_segments.limit = before


def filled(directory: Path) -> Log:
    log = make_log(directory, CONFIG)
    for number in range(BATCHES):
        append(log, batch(2, timestamp=1_000 + 10 * number, value=b"%d" % number))
    log.flush()
    assert len(log.segments) > 5 * LIMIT
    return log


def files_open(directory: Path) -> int:
    """A segment has three."""
    gc.collect()
    numbers = os.listdir("/proc/self/fd")
    found = [os.readlink(f"/proc/self/fd/{number}") for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]
    return sum(name.startswith(str(directory)) for name in found)


def offsets(content: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_batches(content)]


def test_a_log_that_has_rolled_often_has_few_files_open(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    assert files_open(tmp_path) <= 3 * (LIMIT + 1)
    append(log, batch(2))
    assert offsets(log.reader.read(2 * BATCHES, -1, 1)) == [2 * BATCHES]


def test_reads_open_segments_and_close_others(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    for _ in range(2):
        for number in range(BATCHES):
            assert offsets(log.reader.read(2 * number, -1, 1)) == [2 * number]
            assert log.reader.list_offset(1_000 + 10 * number).offset == 2 * number
        assert files_open(tmp_path) <= 3 * (LIMIT + 1)


def test_a_log_that_was_opened_anew(tmp_path: Path) -> None:
    end = filled(tmp_path / "log").log_end_offset
    log = make_log(tmp_path / "log", CONFIG, Checkpointed(recovery_point=end))
    for number in range(BATCHES):
        assert offsets(log.reader.read(2 * number, -1, 1)) == [2 * number]
    assert files_open(tmp_path) <= 3 * (LIMIT + 1)


def test_a_read_that_was_planned_keeps_its_file(tmp_path: Path) -> None:
    """It runs in a thread; the segment may be closed, and be gone, before it does."""
    log = filled(tmp_path / "log")
    plan = log.reader.plan_read(0, -1, 1)
    assert plan is not None
    for number in range(BATCHES):
        log.reader.read(2 * number, -1, 1)
    log.offsets.raise_high_watermark(100)
    log.log_start.raise_to(100)
    for path in log.segment_list.take_removable():
        path.unlink()
    assert offsets(plan.run()) == [0]


def test_what_was_removed_is_not_kept_open(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    for number in range(20):
        log.reader.read(2 * number, -1, 1)
    log.offsets.raise_high_watermark(2 * BATCHES)
    log.log_start.raise_to(2 * BATCHES - 2)
    assert files_open(tmp_path) <= 3 * len(log.segments)


def test_a_cut_makes_a_sealed_segment_one_to_append_to(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    log.truncation.truncate_to(40)
    for number in range(BATCHES):
        lead(log, batch(2, timestamp=5_000, value=b"%d" % number))
        assert offsets(log.reader.read(40 + 2 * number, -1, 1)) == [40 + 2 * number]
    log.flush()
    assert files_open(tmp_path) <= 3 * (LIMIT + 1)
    for number in range(BATCHES):
        assert offsets(log.reader.read(2 * number, -1, 1)) == [2 * number]


def test_threads_that_read_while_others_close(tmp_path: Path) -> None:
    open_segments.limit = 1
    log = filled(tmp_path / "log")
    wrong: list[object] = []

    def read(step: int) -> None:
        for turn in range(400):
            number = turn * step % BATCHES
            try:
                plan = log.reader.plan_read(2 * number, -1, 1)
                assert plan is not None
                if offsets(plan.run()) != [2 * number]:
                    wrong.append(number)
                if log.reader.list_offset(1_000 + 10 * number).offset != 2 * number:
                    wrong.append(("by time", number))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_limit_is_a_share_of_what_the_process_may_have_open() -> None:
    opens = OpenSegments(1)
    for descriptors, limit in ((1_024, 64), (4, 1), (1 << 30, MAX_OPEN), (-1, MAX_OPEN)):
        opens.allow(descriptors)
        assert opens.limit == limit
