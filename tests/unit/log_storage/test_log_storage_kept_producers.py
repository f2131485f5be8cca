"""What a log knows of its producers outlives their records, whatever happens to the snapshot that says it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import append, batch, make_log, produced
from log_storage_client import FOLLOWER, LEADER, filled, key, running
from log_storage_producers import (
    SMALL,
    filled_with,
    last_of,
    lose_batches,
    record_batch_syncs,
    record_syncs,
    snapshot_at,
    tear_unsynced,
)

from highwater import atomic_file
from highwater.errors import ErrorCode
from highwater.log_storage.compaction.cleaner_job import Answer, CleanedGroup, PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.cleaner_selection import CleanableRange
from highwater.log_storage.compaction.segment_swap import as_seen, clean_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerBatch, ProducerStates
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.server import append_and_read
from highwater.v1 import log_storage_pb2


def has_no_room(monkeypatch: pytest.MonkeyPatch, for_names_with: str = "") -> None:
    """The volume, for files that are replaced."""
    write = atomic_file._write

    def written(path: Path, content: bytes, **options: Any) -> None:
        if for_names_with in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content, **options)

    monkeypatch.setattr(atomic_file, "_write", written)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    return record_syncs(monkeypatch)


def test_a_snapshot_that_was_pending_at_a_kill_is_made_before_the_records_go(tmp_path: Path) -> None:
    """The next process has no pending one, and the last on disk is below what stays."""
    log = make_log(tmp_path / "t-0", SMALL)
    append(log, produced(1, producer_id=7, sequence=0))
    while len(log.segments) < 3:
        sequence = log.log_end_offset - 1
        append(log, produced(1, producer_id=8, sequence=sequence))
    kept = log.segments[-1].base_offset
    assert log.producer_state.pending
    assert not producer_snapshots.offsets(log.directory)

    reopened = make_log(log.directory, SMALL, Checkpointed(high_watermark=log.log_end_offset))
    reopened.offsets.raise_high_watermark(reopened.log_end_offset)
    reopened.log_start.raise_to(kept)
    assert reopened.segments[0].base_offset == kept
    assert producer_snapshots.offsets(log.directory) == [kept]

    again = make_log(log.directory, SMALL, Checkpointed(log_start_offset=kept, high_watermark=log.log_end_offset))
    assert again.producers == log.producers


@pytest.mark.parametrize("compacted", [True, False])
def test_a_snapshot_that_alone_knows_of_producers_outlives_a_power_loss(
    tmp_path: Path, synced: set[str], compacted: bool
) -> None:
    """Producer 7's last batch but one has gone, by retention or for a later one, and the later one is lost."""
    log = make_log(tmp_path / "t-0", SMALL)
    for sequence in range(2):
        append(log, produced(1, producer_id=7, sequence=sequence))
    append(log, produced(1, producer_id=8, sequence=0))
    log.producer_state.write_snapshots()
    log.writer.roll(3)
    log.flush()
    log.offsets.raise_high_watermark(3)
    append(log, produced(1, producer_id=7, sequence=2))
    if compacted:
        job, present = clean_job(log, as_seen(None, log, 0).range, 0)

        def swap(answer: Answer) -> None:
            assert isinstance(answer, CleanedGroup)
            assert swap_in(log, answer, present)

        run_pass(job, PassLimits(), swap, lambda _: None)
    else:
        log.log_start.raise_to(3)
    log.remove_deleted()
    assert 1 not in [header.base_offset for header in log.segment_list.headers()]
    tear_unsynced(log, synced)
    os.truncate(log.segments[-1].path, 0)

    known = Checkpointed(recovery_point=3, high_watermark=3, log_start_offset=log.log_start_offset)
    state = make_log(log.directory, SMALL, known).producers.get(7)
    assert state is not None
    assert state.batches[-1] == ProducerBatch(1, 1, 1, 1)


@pytest.mark.parametrize("following", [True, False])
def test_a_log_start_in_what_is_not_flushed_keeps_its_producers_at_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, following: bool
) -> None:
    on_disk = record_batch_syncs(monkeypatch)
    log = make_log(tmp_path / "t-0", SMALL)
    for sequence in range(2):
        append(log, produced(1, producer_id=7, sequence=sequence))
    log.producer_state.write_snapshots()
    log.writer.roll(2)
    log.flush()
    append(log, produced(1, producer_id=7, sequence=2))
    log.offsets.raise_high_watermark(3)
    if following:
        log.become_follower()
        log.append_as_follower(b"", 1, 3, 3, 3, 0)
        assert log.offsets.log_start_to_checkpoint == log.synced_offset == 2
        log.log_start.reach(3)
    else:
        log.log_start.raise_to(3)
    assert log.offsets.log_start_to_checkpoint == 3
    lose_batches(log, on_disk)

    known = Checkpointed(recovery_point=2, high_watermark=3, log_start_offset=3)
    state = make_log(log.directory, SMALL, known).producers.get(7)
    assert state is not None
    assert state.batches[-1].last_sequence == 2


def test_retention_of_what_is_not_flushed_has_it_on_disk_first(tmp_path: Path) -> None:
    """A log start is never above what is."""
    log = make_log(tmp_path / "t-0", SMALL)
    append(log, produced(1, producer_id=7, sequence=0))
    log.offsets.raise_high_watermark(1)
    log.log_start.move_behind(1)
    assert log.log_start_offset == log.synced_offset == 1


def noting(work: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The same, and in which thread."""

    def noted(*arguments: Any, **options: Any) -> Any:
        names.append(threading.current_thread().name)
        return work(*arguments, **options)

    return noted


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
async def test_a_risen_log_start_waits_in_a_thread_for_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: int, missing: bool
) -> None:
    """On the leader, which is told to raise it, and on a follower, which hears of it with the batches. Where there is
    none a thread reads the batches for it."""
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 10.0)  # the disk may have others to serve
    names: list[str] = []
    for work in ("sync", "restore", "write_durably"):
        monkeypatch.setattr(producer_snapshots, work, noting(getattr(producer_snapshots, work), names))
    async with running(tmp_path) as storage:
        log = await filled(storage, 30)
        log.offsets.raise_high_watermark(30)
        kept = log.segments[2].base_offset
        await storage.service._servicer.access.settle()
        if missing:
            producer_snapshots.path_of(log.directory, kept).unlink()
        if role == LEADER:
            raised = await storage.stub.RaiseLogStart(
                log_storage_pb2.RaiseLogStartRequest(partition=key(), leader_epoch=1, log_start_offset=kept)
            )
            assert not raised.error.code
        else:
            await storage.fence(FOLLOWER, 2, [key()])
            copied = bytearray(produced(1, sequence=30))
            copied[:8], copied[12:16] = (30).to_bytes(8, "big"), (2).to_bytes(4, "big")
            await storage.append(
                FOLLOWER,
                partition=key(),
                leader_epoch=2,
                expected_offset=30,
                records=bytes(copied),
                leader_high_watermark=30,
                leader_log_start_offset=kept,
            )
        assert log.segments[0].base_offset == kept
        assert len(names) == (3 if missing else 1)
        assert all(name.startswith("log-storage") for name in names)
        assert 7 in dict(snapshot_at(log, kept).items())


def test_a_snapshot_that_finds_no_room_keeps_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    append(log, produced(1, producer_id=7, sequence=0))
    while len(log.segments) < 3:
        append(log, batch())
    log.offsets.raise_high_watermark(log.log_end_offset)
    has_no_room(monkeypatch, for_names_with=".snapshot")
    kept = log.segments[-1].base_offset
    with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.STORAGE_FULL):
        log.log_start.raise_to(kept)
    assert (log.log_start_offset, log.segments[0].base_offset) == (0, 0)
    log.context.check_online()
    monkeypatch.undo()
    log.disk.keep_reserve()
    log.log_start.raise_to(kept)
    assert log.segments[0].base_offset == kept
    assert 7 in dict(snapshot_at(log, kept).items())


def test_a_snapshot_that_is_there_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: set[str]
) -> None:
    """Retention makes room on a full volume, however many producers a log has."""
    log = make_log(tmp_path / "t-0", SMALL)
    _, kept, *_ = filled_with(log, 3)

    log.leader_epochs.write()
    has_no_room(monkeypatch)
    log.log_start.raise_to(kept)
    assert log.segments[0].base_offset == kept
    assert str(producer_snapshots.path_of(log.directory, kept)) in synced


def test_a_torn_snapshot_does_not_pass_for_one(tmp_path: Path) -> None:
    """A power loss tore one in the middle; a start looks at the last one only."""
    log = make_log(tmp_path / "t-0", SMALL)
    _, kept, *_ = filled_with(log, 4)
    log.flush()
    end = log.log_end_offset
    producer_snapshots.path_of(log.directory, kept).write_bytes(b"")

    log = make_log(log.directory, SMALL, Checkpointed(recovery_point=end, high_watermark=end))
    log.offsets.raise_high_watermark(kept + 1)
    log.log_start.raise_to(kept)
    log.truncation.truncate_to(kept + 1)
    assert last_of(log) == ProducerBatch(2, 2, 2, 2)
    known = Checkpointed(recovery_point=kept + 1, high_watermark=kept + 1, log_start_offset=kept)
    assert last_of(make_log(log.directory, SMALL, known)) == ProducerBatch(2, 2, 2, 2)


def test_retention_without_room_leaves_the_log_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path / "t-0", replace(SMALL, retention_ms=1))
    filled_with(log, 3)
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    log = make_log(log.directory, log.config, Checkpointed(high_watermark=log.high_watermark))
    log.leader_epochs.write()
    has_no_room(monkeypatch, for_names_with=".snapshot")
    with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.STORAGE_FULL):
        log.log_start.move_behind(1)
    assert log.log_start_offset == 0


def test_producers_outlive_a_log_that_starts_anew_at_its_log_start(tmp_path: Path) -> None:
    """A power loss took the records up to there, which had been deleted anyway."""
    log = make_log(tmp_path / "t-0", SMALL)
    filled_with(log, 3)
    log.flush()
    flushed = log.recovery_point
    for _ in range(2):
        append(log, batch())
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.log_start.raise_to(log.log_end_offset)
    active = log.segments[-1]
    found = active.position_of(log.log_end_offset - 1)
    assert found is not None
    os.truncate(active.path, found[0])
    start = log.log_start_offset
    known = Checkpointed(recovery_point=flushed, log_start_offset=start, high_watermark=start)
    for _ in range(2):
        log = make_log(log.directory, SMALL, known)
        assert (log.log_start_offset, log.log_end_offset) == (start, start)
        assert last_of(log) == ProducerBatch(2, 2, 2, 2)


def test_a_log_that_starts_anew_keeps_what_was_kept_for_it(tmp_path: Path) -> None:
    """The log start is on disk; the segments below it are still there, and their tail was never flushed."""
    log = make_log(tmp_path / "t-0", SMALL)
    append(log, batch())
    log.flush()
    flushed = log.recovery_point
    for sequence in range(2):
        append(log, produced(1, producer_id=7, sequence=sequence))
    while len(log.segments) < 3:
        append(log, batch())
        log.producer_state.write_snapshots()
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.log_start.move_behind(1)
    start = log.log_start_offset
    found = log.segments[0].position_of(1)
    assert found is not None
    os.truncate(log.segments[0].path, found[0])
    for segment in log.segments[1:]:
        os.truncate(segment.path, 0)
    for offset in producer_snapshots.offsets(log.directory):
        if offset != start:
            producer_snapshots.path_of(log.directory, offset).write_bytes(b"")
    known = Checkpointed(recovery_point=flushed, log_start_offset=start, high_watermark=start)
    again = make_log(log.directory, SMALL, known)
    assert (again.log_start_offset, again.log_end_offset) == (start, start)
    assert last_of(again) == ProducerBatch(1, 1, 2, 2)


def test_a_kill_while_a_log_starts_anew_forgets_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    filled_with(log, 3)
    log.flush()
    flushed, start = log.recovery_point, log.log_end_offset + 2
    known = Checkpointed(recovery_point=flushed, log_start_offset=start, high_watermark=start)
    with monkeypatch.context() as patched:
        patched.setattr(SegmentList, "create", _killed)
        with pytest.raises(KeyboardInterrupt):
            make_log(log.directory, SMALL, known)
    assert not list(log.directory.glob("*.log"))
    assert last_of(make_log(log.directory, SMALL, known)) == ProducerBatch(2, 2, 2, 2)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("unreadable", ["snapshot", "segment"])
def test_one_file_that_cannot_be_read_takes_no_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    kept = filled_with(log, 4)[2]
    log.flush()
    end = log.log_end_offset
    log = make_log(log.directory, SMALL, Checkpointed(recovery_point=end, high_watermark=end))
    path = producer_snapshots.path_of(log.directory, kept)
    if unreadable == "segment":
        for offset in producer_snapshots.offsets(log.directory):
            producer_snapshots.path_of(log.directory, offset).unlink()
        monkeypatch.setattr(producer_snapshots, "replay", _unreadable)
    else:
        read = producer_snapshots._content
        monkeypatch.setattr(
            producer_snapshots, "_content", lambda wanted: _unreadable() if wanted == path else read(wanted)
        )
    log.log_start.raise_to(kept)
    monkeypatch.undo()
    assert not log.disk.failure
    assert 7 in dict(snapshot_at(log, kept).items())


def _unreadable(*_: object) -> bytes:
    raise OSError(errno.EIO, "Input/output error")


def test_records_that_are_deleted_beside_compaction_do_not_take_the_log_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner's thread is about to read, for a missing snapshot, batches that the loop lets go of."""
    config = LogConfig(segment_bytes=300, compacts=True, deletes=False)
    log = make_log(tmp_path / "t-0", config)
    for sequence in range(24):
        append(log, produced(1, sequence=sequence))
        log.producer_state.write_snapshots()
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    producer_snapshots.path_of(log.directory, bases[3]).unlink()
    end = log.log_end_offset
    log = make_log(log.directory, config, Checkpointed(recovery_point=end, high_watermark=end))
    job, present = clean_job(log, CleanableRange(0, bases[3]), 0)
    groups: list[Answer] = []
    run_pass(job, PassLimits(), groups.append, lambda _: None)
    last = [group for group in groups if isinstance(group, CleanedGroup)][-1]

    latest, held, go_on = producer_snapshots.latest, threading.Event(), threading.Event()

    def hold(*arguments: Any, **options: Any) -> tuple[int, ProducerStates]:
        found = latest(*arguments, **options)
        if threading.current_thread().name == "cleaner":
            held.set()
            assert go_on.wait(10)
        return found

    monkeypatch.setattr(producer_snapshots, "latest", hold)
    swapped: list[object] = []
    cleaning = threading.Thread(target=lambda: swapped.append(swap_in(log, last, present)), name="cleaner")
    cleaning.start()
    assert held.wait(10)
    log.log_start.raise_to(bases[4])
    go_on.set()
    cleaning.join()
    assert swapped == [False]
    log.context.check_online()
    assert last_of(make_log(log.directory, config)) == last_of(log)


def test_what_was_kept_is_kept_for_the_segment_that_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction comes between the thread that kept producers and the loop that raises the log start."""
    config = LogConfig(segment_bytes=300, compacts=True, deletes=False)
    log = make_log(tmp_path / "t-0", config)
    for sequence in range(14):
        append(log, produced(1, sequence=sequence))
        log.producer_state.write_snapshots()
    log.flush()
    log.offsets.raise_high_watermark(log.log_end_offset)
    kept = log.segments[2]
    log.log_start.prepare(kept.base_offset)
    job, present = clean_job(log, CleanableRange(0, log.segments[3].base_offset), 0)
    groups: list[Answer] = []
    run_pass(job, PassLimits(), groups.append, lambda _: None)
    for group in groups:
        assert not isinstance(group, CleanedGroup) or swap_in(log, group, present)
    assert kept not in log.segments
    monkeypatch.setattr(producer_snapshots, "restore", _refuse)
    log.log_start.raise_to(kept.base_offset)
    assert log.segments[0].base_offset == kept.base_offset


def _refuse(*_: object) -> None:
    raise AssertionError("this was done")


def test_where_batches_cannot_be_read_what_is_in_memory_counts_as_far_as_it_is_below(tmp_path: Path) -> None:
    """Nothing newer comes under the name of an older offset, nor the other way round: a retry is no second batch."""
    log = make_log(tmp_path / "t-0", SMALL)
    for sequence in range(10):
        append(log, produced(1, producer_id=7, sequence=sequence))
        log.producer_state.write_snapshots()
    log.flush()
    end, (_, damaged, kept, *_) = log.log_end_offset, log.segments
    log.offsets.raise_high_watermark(end)
    producer_snapshots.path_of(log.directory, kept.base_offset).unlink()
    content = bytearray(damaged.path.read_bytes())
    content[8:12] = bytes(4)  # the length of its first batch
    damaged.path.write_bytes(content)

    log.producer_state.keep(kept.base_offset)
    state = snapshot_at(log, kept.base_offset).get(7)
    assert state is not None
    assert state.batches[-1].last_offset == kept.base_offset - 1
    again = make_log(log.directory, SMALL, Checkpointed(recovery_point=end, high_watermark=end))
    assert last_of(again) == ProducerBatch(9, 9, 9, 9)


def test_producers_are_kept_beside_appends_and_a_rising_log_start(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", SMALL)
    stopped = threading.Event()
    failures: list[BaseException] = []

    def keep() -> None:
        try:
            while not stopped.is_set():
                log.log_start.prepare(log.log_end_offset)
        except BaseException as error:
            failures.append(error)

    keeping = threading.Thread(target=keep)
    keeping.start()
    sequence = 0
    try:
        for _ in range(30):
            for _ in range(12):
                append(log, produced(1, producer_id=7, sequence=sequence))
                sequence += 1
            log.offsets.raise_high_watermark(log.log_end_offset)
            log.log_start.raise_to(log.log_end_offset - 4)
    finally:
        stopped.set()
        keeping.join()
    assert not failures
    log.context.check_online()
    known = Checkpointed(log_start_offset=log.log_start_offset, high_watermark=log.high_watermark)
    assert make_log(log.directory, SMALL, known).producers == log.producers
