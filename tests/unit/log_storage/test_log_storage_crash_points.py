"""A process that ends between any two operations on files, or in the middle of a write: what it leaves is opened."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from log_storage_batches import lead

from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.cleaner_selection import CleanableRange
from highwater.log_storage.compaction.segment_swap import clean_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.partition import PartitionKey
from highwater.records import ReadableBuffer, Record, decode, encode_rows, iter_batches

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=1_024, index_interval_bytes=200, retention_ms=-1, retention_bytes=3_000)
KEYS = 5
MEMORY = Path("/dev/shm")


class CrashPoint(NamedTuple):
    """A copy of the data, and what had been promised by then."""

    directory: Path
    start: int
    end: int
    what: str


class Recorder:
    """Copies the data before each operation that changes a file."""

    def __init__(self, data: Path, copies: Path) -> None:
        self.data = data
        self.copies = copies
        self.start = self.end = 0
        self.points: list[CrashPoint] = []

    def observe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("replace", "ftruncate", "truncate", "unlink", "rename"):
            operation = getattr(os, name)

            def observed(*arguments: object, operation: object = operation, name: str = name, **named: object) -> None:
                self.take(name)
                operation(*arguments, **named)  # type: ignore[operator]

            monkeypatch.setattr(os, name, observed)
        write = os.pwritev

        def observed_write(descriptor: int, buffers: Sequence[ReadableBuffer], position: int) -> int:
            self.take("write")
            content = b"".join(buffers)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            for cut in {1, 30, len(content) // 2, len(content) - 1}:
                point = self.take(f"{cut} bytes of a write")
                with (point.directory / path.relative_to(self.data)).open("r+b") as file:
                    file.seek(position)
                    file.write(content[:cut])
            return write(descriptor, buffers, position)

        monkeypatch.setattr(os, "pwritev", observed_write)

    def take(self, what: str) -> CrashPoint:
        directory = self.copies / str(len(self.points))
        shutil.copytree(self.data, directory)
        self.points.append(CrashPoint(directory, self.start, self.end, what))
        return self.points[-1]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: hundreds of copies do not have to wait for a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else tmp_path) as made:
        yield Path(made)


@pytest.mark.timeout(180)
def test_a_crash_at_every_operation(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(directory / "data", directory / "copies")
    with monkeypatch.context() as patched:
        manager = LogManager([recorder.data], CONFIG, broker_id=1)
        manager.load()
        manager.create("t", KEY, {})
        manager.logs.log_dirs[0].record_boot()
        recorder.observe(patched)
        _work(manager, recorder)
        manager.close()
        recorder.take("a clean stop")
        manager = LogManager([recorder.data], CONFIG, broker_id=1)
        manager.load()
        _append(manager.logs.get(KEY).online(), recorder)
        manager.unlock()
        recorder.take("a crash after a clean start")
    assert len(recorder.points) > 200
    kinds = {point.what for point in recorder.points}
    assert {"replace", "ftruncate", "unlink", "write"} <= kinds
    for point in recorder.points:
        _check(point)


def _work(manager: LogManager, recorder: Recorder) -> None:
    hosted = manager.logs.get(KEY)
    hosted.configured = True
    log = hosted.online()
    for number in range(20):
        _append(log, recorder)
        if number % 6 == 5:
            log.flush()
            manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    log.offsets.raise_high_watermark(log.log_end_offset - 12)
    recorder.end = log.truncation.cut_for(log.log_end_offset - 9, -1)
    manager.truncate(hosted, log.log_end_offset - 9, -1)
    assert log.log_end_offset == recorder.end
    _append(log, recorder)
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.flush()
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    job, present = clean_job(log, CleanableRange(log.segments[0].base_offset, log.segments[-2].base_offset), 0)
    run_pass(job, PassLimits(), lambda group: swap_in(log, group, present), lambda _: None)
    log.remove_deleted()
    for _ in range(12):
        _append(log, recorder)
    log.offsets.raise_high_watermark(log.log_end_offset)
    assert manager.retain(hosted, 0)
    recorder.start = log.log_start_offset
    log.remove_deleted()


def _append(log: Log, recorder: Recorder) -> None:
    base = log.log_end_offset
    records = [Record(0, n, b"%d" % (n % KEYS), b"%d." % n * 20, ()) for n in range(base, base + 3)]
    lead(log, encode_rows(records))
    recorder.end = log.log_end_offset


def _check(point: CrashPoint) -> None:
    manager = LogManager([point.directory], CONFIG, broker_id=1)
    manager.load()
    log = manager.logs.get(KEY).online()
    assert log.log_start_offset >= point.start, point
    assert log.log_end_offset >= point.end, point
    present: set[int] = set()
    expected = log.log_start_offset
    while content := log.read(expected, -1, 1 << 20):
        for position, header in iter_batches(content):
            for record in decode(content, position).records():
                assert (record.timestamp, record.key) == (record.offset, b"%d" % (record.offset % KEYS))
                assert (record.value or b"").startswith(b"%d." % record.offset)
                present.add(record.offset)
            expected = header.next_offset
    for offset in range(log.log_start_offset, log.log_end_offset):
        assert present.intersection(range(offset, log.log_end_offset, KEYS)), point  # invariant 8
    left_over = {".swap", ".cleaned", ".deleted", ".tmp"}
    assert not [path for path in log.directory.iterdir() if path.suffix in left_over], point
    manager.unlock()
