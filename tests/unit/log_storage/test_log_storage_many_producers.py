"""The work of an append does not grow with the number of producers that the log knows, and what does grow with it is
not done in the middle of an append."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from log_storage_batches import append, make_log, produced
from log_storage_client import filled, running

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.log import append_validation
from highwater.log_storage.log.log import Log
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.producers import pending_snapshots, producer_snapshots
from highwater.log_storage.producers.pending_snapshots import MAX_PENDING, PendingSnapshots
from highwater.log_storage.producers.producer_states import ProducerBatch, ProducerState, ProducerStates
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

SMALL = LogConfig(segment_bytes=300)  # three batches


class Untouchable(ProducerStates):
    """Fails where something is done for each producer."""

    def copy(self) -> ProducerStates:
        raise AssertionError("a copy")

    def items(self) -> list[tuple[int, ProducerState]]:
        raise AssertionError("a walk")


def test_an_append_of_several_batches_copies_no_producers(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0")
    log.producer_state.states = Untouchable()
    append(log, b"".join(produced(2, sequence=2 * number) for number in range(4)))
    state = log.producers.get(7)
    assert state is not None
    assert [batch.first_sequence for batch in state.batches] == [0, 2, 4, 6]


def test_what_is_staged_counts_for_the_batches_behind_it_and_nowhere_else(tmp_path: Path) -> None:
    known = ProducerStates()
    known.put(7, ProducerState(0, (ProducerBatch(0, 1, 10, 11),), 5))
    given = append_validation.read_given(produced(1, sequence=2) + produced(1, sequence=3))
    numbered = append_validation.number_batches(given, 12, known, 9)
    assert numbered.producers is not None
    assert known.get(7) == ProducerState(0, (ProducerBatch(0, 1, 10, 11),), 5)
    known.take(numbered.producers)
    expected = (ProducerBatch(0, 1, 10, 11), ProducerBatch(2, 2, 12, 12), ProducerBatch(3, 3, 13, 13))
    assert known.get(7) == ProducerState(0, expected, 9)
    given = append_validation.read_given(produced(1, sequence=4) + produced(1, sequence=6))
    with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append_validation.number_batches(given, 14, known, 9)


def rolled(directory: Path, rolls: int = 1) -> Log:
    """A log of a producer that has rolled in appends; nobody has written its snapshots."""
    log = make_log(directory / "t-0", SMALL)
    sequence = 0
    while len(log.segments) <= rolls:
        append(log, produced(1, sequence=sequence))
        sequence += 1
    return log


def snapshots(log: Log) -> list[int]:
    return producer_snapshots.offsets(log.directory)


def test_a_roll_leaves_its_snapshot_to_be_written_beside_the_appends(tmp_path: Path) -> None:
    log = rolled(tmp_path)
    offset = log.segments[1].base_offset
    before = {7: log.producers.get(7)}
    assert log.producer_state.pending.first() == offset
    assert not snapshots(log)
    append(log, produced(1, sequence=offset + 1))

    log.producer_state.write_snapshots()

    assert not log.producer_state.pending
    assert snapshots(log) == [offset]
    found, states = producer_snapshots.latest(log.directory, 0, log.log_end_offset, 0, 0)
    assert found == offset
    state = states.get(7)
    assert state is not None
    assert state.batches[-1].last_offset == offset - 1  # nothing of what came behind it
    assert before != {7: log.producers.get(7)}


def test_a_crash_before_it_is_written_forgets_nothing(tmp_path: Path) -> None:
    log = rolled(tmp_path, 3)
    again = make_log(log.directory, SMALL, Checkpointed())
    assert again.producers == log.producers


@pytest.mark.parametrize("act", ["release", "start behind"])
def test_it_is_written_before_the_records_go_that_tell_the_same(tmp_path: Path, act: str) -> None:
    log = rolled(tmp_path)
    log.offsets.raise_high_watermark(log.log_end_offset)
    if act == "release":
        log.log_start.raise_to(log.segments[1].base_offset)
    else:
        log.log_start.move_behind(1)
        log.log_start.release_segments()
    assert snapshots(log) == [log.segments[0].base_offset]


@pytest.mark.parametrize("act", ["truncate", "restart", "undo"])
def test_it_goes_with_the_part_of_the_log_that_goes(tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rolled(tmp_path, 2)
    offset = log.segments[2].base_offset
    match act:
        case "truncate":
            cut = log.truncation.cut_for(offset - 1, log.last_epoch + 1)
            log.offsets.promise_at_most(cut)
            log.truncation.truncate_to(cut)
            assert all(known <= cut for known in snapshots(log))
            assert log.producers == make_log(log.directory, SMALL).producers
        case "restart":
            log.truncation.truncate_fully_and_start_at(0)
            assert not snapshots(log)
        case _:
            last = log.log_end_offset
            batches = [produced(1, sequence=last + number) for number in range(9)]
            monkeypatch.setattr(SegmentList, "create", _refuse)
            with pytest.raises(LogError):
                append(log, b"".join(batches))
            assert log.log_end_offset == last
    log.producer_state.write_snapshots()
    assert all(known <= log.log_end_offset for known in snapshots(log))
    assert not log.producer_state.pending


def _refuse(*_: object, **__: object) -> None:
    raise OSError("no")


def test_no_more_are_kept_than_may_be(tmp_path: Path) -> None:
    log = rolled(tmp_path, 3 * MAX_PENDING)
    assert len(log.producer_state.pending) <= MAX_PENDING
    assert len(snapshots(log)) >= 3 * MAX_PENDING - MAX_PENDING


def test_one_that_cannot_be_written_is_tried_again_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rolled(tmp_path)
    write = producer_snapshots.write
    monkeypatch.setattr(producer_snapshots, "write", _refuse)
    assert log.producer_state.pending.claim()
    assert not log.producer_state.pending.claim()  # one writes
    log.producer_state.write_snapshots()
    assert not log.producer_state.pending.claim()  # not with every append
    log.context.check_online()
    append(log, produced(1, sequence=log.log_end_offset))
    monkeypatch.setattr(producer_snapshots, "write", write)
    log.producer_state.write_snapshots()
    assert snapshots(log) == [log.segments[1].base_offset]


def test_what_is_dropped_while_it_is_written_is_not_written_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write = producer_snapshots.write

    def write_slowly(*arguments: object, **options: Callable[[], None]) -> None:
        begun.set()
        assert go_on.wait(10)
        write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pending_snapshots.producer_snapshots, "write", write_slowly)
    pending = PendingSnapshots()
    pending.add(10, ProducerStates())
    pending.add(20, ProducerStates())
    writing = threading.Thread(target=pending.write, args=(tmp_path, 0))
    writing.start()
    assert begun.wait(10)
    dropping = threading.Thread(target=pending.drop_above, args=(5,))
    dropping.start()
    pending.add(3, ProducerStates())  # a roll does not wait
    go_on.set()
    dropping.join()
    present = producer_snapshots.offsets(tmp_path)  # from now on none may come
    writing.join()
    assert set(producer_snapshots.offsets(tmp_path)) - set(present) <= {3}


async def test_a_served_log_has_them_written_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    encode = producer_snapshots.encode

    def encoded(*arguments: object) -> bytes:
        threads.append(threading.current_thread().name)
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(producer_snapshots, "encode", encoded)
    async with running(tmp_path) as storage:
        log = await filled(storage, 50)
        await storage.service._servicer.access.settle()
        assert not log.producer_state.pending
        assert snapshots(log) == [segment.base_offset for segment in log.segments[1:]]
        assert len(threads) >= 3
        assert all(name.startswith("log-storage") for name in threads)


def test_none_comes_into_a_log_that_is_made_anew_under_the_name_of_a_deleted_one(tmp_path: Path) -> None:
    where = PartitionKey(bytes(16), 0)
    manager = LogManager([tmp_path], LogConfig(), broker_id=1)
    manager.load()
    manager.create("t", where, {})
    fence = Fence(1, Role.LEADER, "one", "two")
    manager.logs.log_dirs[0].record_fences({where: fence})
    log = manager.logs.get(where).online()
    append(log, produced(1, sequence=0))
    log.producer_state.pending.add(1, log.producers.copy())  # as a roll does
    manager.delete(where, -1)
    manager.create("t", PartitionKey(bytes([1] * 16), 0), {})
    log.producer_state.write_snapshots()
    assert not list((tmp_path / "t-0").glob("*.snapshot*"))
    manager.close()
