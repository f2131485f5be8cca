"""Snapshots of producers that are looked at, written and removed by several threads at once."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from log_storage_batches import append, batch, make_log, produced
from log_storage_client import LEADER, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import pending_snapshots, producer_snapshots
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.segment import Segment
from highwater.model.partition import PartitionKey
from highwater.v1 import log_storage_pb2

SMALL = LogConfig(segment_bytes=300)  # three batches


def filled(directory: Path, batches: int = 20) -> Log:
    log = make_log(directory, SMALL)
    for sequence in range(batches):
        append(log, produced(1, sequence=sequence))
        log.producer_state.write_snapshots()
    log.offsets.raise_high_watermark(log.log_end_offset)
    return log


class _Held(Segment):
    """What asks where it begins, in another thread, is held until it may go on."""

    asked: ClassVar = threading.Event()
    go_on: ClassVar = threading.Event()

    def __getattribute__(self, name: str) -> Any:
        if name == "base_offset" and threading.current_thread() is not threading.main_thread():
            _Held.asked.set()
            assert _Held.go_on.wait(10)
        return super().__getattribute__(name)


def test_no_snapshot_is_needless_because_segments_go_meanwhile(tmp_path: Path) -> None:
    """The walk of a list from which another takes the first elements passes over some."""
    log = filled(tmp_path / "t-0")
    log.segments[2].__class__ = _Held
    removing = threading.Thread(target=producer_snapshots.remove_needless, args=(log.directory, log.segments))
    removing.start()
    assert _Held.asked.wait(10)
    del log.segments[:2]
    _Held.go_on.set()
    removing.join()
    assert set(producer_snapshots.offsets(log.directory)) >= {segment.base_offset for segment in log.segments}


def test_a_needless_snapshot_that_goes_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was that of a clean stop in the middle of a segment; another thread has listed it."""
    log = filled(tmp_path / "t-0", 7)
    log.close()
    end = log.log_end_offset
    log = make_log(log.directory, SMALL, Checkpointed(clean=True, high_watermark=end))
    for sequence in range(end, 20):
        append(log, produced(1, sequence=sequence))
        log.producer_state.write_snapshots()
    log.offsets.raise_high_watermark(log.log_end_offset)
    kept = next(segment for segment in log.segments if segment.base_offset > end)
    producer_snapshots.path_of(log.directory, kept.base_offset).unlink()
    offsets = producer_snapshots.offsets

    def listed(directory: Path) -> list[int]:
        found = offsets(directory)
        producer_snapshots.path_of(directory, end).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(producer_snapshots, "offsets", listed)
    log.log_start.prepare(kept.base_offset)
    log.context.check_online()
    assert kept.producers_kept


def test_a_refused_append_waits_for_no_snapshot_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    while len(log.segments) < 2:
        append(log, produced(1, sequence=log.log_end_offset))
    begun, go_on = threading.Event(), threading.Event()
    write = producer_snapshots.write

    def write_slowly(*arguments: Any, **options: Any) -> None:
        begun.set()
        assert go_on.wait(10)
        write(*arguments, **options)

    monkeypatch.setattr(pending_snapshots.producer_snapshots, "write", write_slowly)
    writing = threading.Thread(target=log.producer_state.write_snapshots)
    writing.start()
    assert begun.wait(10)
    monkeypatch.setattr(Segment, "append", _full)
    with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.STORAGE_FULL):
        append(log, batch())
    assert not go_on.is_set()
    assert writing.is_alive()
    go_on.set()
    writing.join()
    assert producer_snapshots.offsets(log.directory) == [log.segments[1].base_offset]


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_roll_for_want_of_descriptors_leaves_the_log_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "t-0", 3)

    def lacking(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lacking)
        patched.setattr(os, "listdir", lacking)
        with pytest.raises(LogError):
            append(log, produced(1, sequence=3))
    log.context.check_online()
    append(log, produced(1, sequence=3))
    assert log.log_end_offset == 4


def test_what_is_undone_leaves_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a roll in the middle of an append is asked for when all is written."""
    log = filled(tmp_path / "t-0", 8)
    appended = Segment.append
    undone: list[Segment] = []

    def second_finds_no_room(segment: Segment, buffers: Any, total: int) -> int:
        if segment.base_offset == 9:
            log.producer_state.write_snapshots()
            undone.append(segment)
            _full()
        return appended(segment, buffers, total)

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", second_finds_no_room)
        with pytest.raises(LogError):
            append(log, produced(1, producer_id=8, sequence=0) + produced(1, producer_id=8, sequence=1))
    assert undone
    log.producer_state.write_snapshots()
    assert producer_snapshots.offsets(log.directory)[-1] == 6
    append(log, batch())
    assert make_log(log.directory, SMALL, Checkpointed(high_watermark=8)).producers.get(8) is None


async def test_a_roll_at_the_very_offset_is_kept_in_a_thread_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records are deleted, and the next append rolls before whoever waited for the thread goes on."""
    names: list[str] = []
    async with running(tmp_path) as storage:
        await storage.create(key(), segment_bytes="1024")
        await storage.fence(LEADER, 1, [key()])
        manager = storage.service._manager
        log = manager.logs.get(PartitionKey(b"t" * 16, 0)).online()
        append(log, produced(1, sequence=0))
        while len(log.segments) < 3 or log.segments[-1].size_bytes + 100 < 1024:
            append(log, produced(1, sequence=log.log_end_offset))
        end = log.log_end_offset
        log.offsets.raise_high_watermark(end)
        prepare, sync = log.log_start.prepare, producer_snapshots.sync

        def prepared(offset: int) -> None:
            prepare(offset)
            if threading.current_thread() is not threading.main_thread() and log.log_end_offset == end:
                append(log, produced(1, sequence=end))

        def synced(directory: Path, offset: int) -> None:
            names.append(threading.current_thread().name)
            sync(directory, offset)

        monkeypatch.setattr(log.log_start, "prepare", prepared)
        monkeypatch.setattr(producer_snapshots, "sync", synced)
        request = log_storage_pb2.RaiseLogStartRequest(partition=key(), leader_epoch=1, log_start_offset=end)
        raised = await storage.stub.RaiseLogStart(request)
        assert not raised.error.code
        assert log.segments[0].base_offset == end
        assert len(names) == 2
        assert all(name.startswith("log-storage") for name in names)
