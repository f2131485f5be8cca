"""However often logs roll, a bounded number of descriptors is open; and what was written is there."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_storage_batches import batch, follow, make_log, read_all
from log_storage_client import DEADLINE_S, LEADER, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.flusher import Flush
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.cleaning_state import CleaningState
from highwater.log_storage.log_manager.log_creation import WantedLog, most_logs
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.open_segments import OpenSegments, open_segments
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.unsynced_segments import UnsyncedSegments, unsynced_segments
from highwater.log_storage.server.flush_and_checkpoint import FLUSHED_AT_ONCE
from highwater.model.partition import PartitionKey
from highwater.v1 import log_storage_pb2

WEEK_MS = 7 * 24 * 3600 * 1000
LIMIT = 5


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    gc.collect()  # of other tests
    before = unsynced_segments.limit, open_segments.limit
    unsynced_segments.limit, open_segments.limit = len(unsynced_segments) + LIMIT, LIMIT
    yield
    unsynced_segments.limit, open_segments.limit = before


def files_open(directory: Path) -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(directory))
        except FileNotFoundError:  # of the listing itself
            continue
    return found


def lead_weeks(log: Log, count: int) -> None:
    """Batches of which each is to begin a segment."""
    for _ in range(count):
        end = log.log_end_offset
        log.append_as_leader(batch(timestamp=1_000 + 2 * end * WEEK_MS), 1, end, 0)


def test_a_log_rolls_as_long_as_others_can_wait_for_the_disk(tmp_path: Path) -> None:
    one, other = make_log(tmp_path / "a"), make_log(tmp_path / "b")
    lead_weeks(one, 30)
    assert len(one.segments) == 1 + LIMIT
    assert files_open(tmp_path) <= 1 + LIMIT + 1
    lead_weeks(other, 30)  # descriptors are the process's
    assert len(other.segments) == 1
    one.flush()
    lead_weeks(other, 30)
    assert len(other.segments) == 1 + LIMIT
    other.flush()
    assert files_open(tmp_path) <= 3 * LIMIT + 2
    for log, count in ((one, 30), (other, 60)):
        assert [header.base_offset for header in read_all(log)] == list(range(count))
        log.close()
        again = make_log(log.directory, known=Checkpointed(clean=True))
        assert [header.base_offset for header in read_all(again)] == list(range(count))


def test_a_sync_lets_files_be_closed_too(tmp_path: Path) -> None:
    """`flush.messages=1`: the flush may come much later."""
    log = make_log(tmp_path)
    for _ in range(12):
        lead_weeks(log, LIMIT)
        log.flusher.sync()
        assert files_open(tmp_path) <= 2 * LIMIT
    assert len(log.segments) == 60
    log.flush()
    assert files_open(tmp_path) <= 3 * (LIMIT + 1)
    assert [header.base_offset for header in read_all(log)] == list(range(60))


def test_a_batch_that_has_to_begin_a_segment_is_refused_until_there_is_room(tmp_path: Path) -> None:
    """Offsets too far apart for one segment's index: nothing is written, and it can be tried again."""
    log = make_log(tmp_path)
    lead_weeks(log, 1 + LIMIT)
    end = log.log_end_offset
    far = [batch(base_offset=end, epoch=1), *(batch(base_offset=number << 32, epoch=1) for number in (1, 2))]
    size, segments = log.size_bytes, len(log.segments)
    with pytest.raises(LogError, match="wait for the disk") as raised:
        follow(log, b"".join(far))
    assert raised.value.code is ErrorCode.OVERLOADED
    assert raised.value.code.retriable
    assert (log.log_end_offset, log.size_bytes, len(log.segments)) == (end, size, segments)
    log.flush()
    follow(log, b"".join(far))
    assert [header.base_offset for header in read_all(log)] == [*range(end), end, 1 << 32, 2 << 32]


def test_an_append_that_is_undone_and_a_cut_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = len(unsynced_segments)
    log = make_log(tmp_path)
    lead_weeks(log, 1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", full)
        with pytest.raises(LogError):
            lead_weeks(log, 1)
    assert len(unsynced_segments) == waiting
    lead_weeks(log, 3)
    assert len(unsynced_segments) == waiting + 3
    log.truncation.truncate_to(2)
    assert len(unsynced_segments) == waiting + 1
    log.truncation.truncate_fully_and_start_at(100)
    assert len(unsynced_segments) == waiting
    lead_weeks(log, 3)
    del log
    assert len(unsynced_segments) == waiting
    assert files_open(tmp_path) == 0


def test_a_start_after_a_kill_opens_few_files_at_once(tmp_path: Path) -> None:
    """All that a kill found unflushed is looked at, and is to be synced."""
    log = make_log(tmp_path)
    unsynced_segments.limit += 40
    lead_weeks(log, 40)
    unsynced_segments.limit -= 40
    del log
    again = make_log(tmp_path)
    assert len(again.segments) == 40
    assert files_open(tmp_path) <= 2 * LIMIT + 1
    again.flush()
    assert files_open(tmp_path) <= 3 * LIMIT + 1
    assert [header.base_offset for header in read_all(again)] == list(range(40))


async def test_a_deleted_log_has_no_file_open(tmp_path: Path) -> None:
    """Nor has one that was deleted while it was being flushed."""
    async with running(tmp_path) as storage:
        for number in range(4):
            await storage.create(key(number))
            await storage.fence(LEADER, 1, [key(number)])
            for offset in range(20):
                records = batch(timestamp=1_000 + 2 * offset * WEEK_MS)
                result = await storage.append(
                    LEADER, partition=key(number), leader_epoch=1, expected_offset=offset, records=records
                )
                assert result.error.code == 0
        logs = tmp_path / "data" / "t-"
        assert files_open(logs) > 4
        deletions = [log_storage_pb2.DeleteLogRequest(partition=key(number), leader_epoch=1) for number in range(4)]
        for answer in await asyncio.gather(*map(storage.stub.DeleteLog, deletions)):
            assert answer.error.code == 0
        async with asyncio.timeout(DEADLINE_S):  # a thread removes the directories
            while files_open(logs):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_long_flush_lets_others_have_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush of a log that is deleted meanwhile ends."""
    unsynced_segments.limit += 100
    count = 5 * FLUSHED_AT_ONCE
    begun, may_go_on, flushed = threading.Event(), threading.Event(), list[tuple[str, int]]()
    run = Flush.run

    def slow(flush: Flush) -> None:
        begun.set()
        assert may_go_on.wait(DEADLINE_S)
        flushed.append((flush.sync.segments[0].path.parent.name, len(flush.sync.segments)))
        run(flush)

    async with running(tmp_path) as storage:
        service = storage.service
        monkeypatch.setattr(Flush, "run", slow)
        for number in range(2):
            await storage.create(key(number), topic="t")
            await storage.fence(LEADER, 1, [key(number)])
        kept, gone = (service._manager.logs.get(PartitionKey(b"t" * 16, number)) for number in range(2))
        for hosted in (kept, gone):
            lead_weeks(hosted.online(), count)
        flush = asyncio.create_task(service._servicer.flushes.flush(gone))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        delete = storage.stub.DeleteLog(log_storage_pb2.DeleteLogRequest(partition=key(1), leader_epoch=1))
        async with asyncio.timeout(DEADLINE_S):
            while gone.cleaning.state is CleaningState.NONE:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        may_go_on.set()
        assert (await delete).error.code == 0
        await flush
        assert len([name for name, _ in flushed if name == "t-1"]) < 5
        await service._servicer.flushes.flush(kept)
        assert kept.online().recovery_point == count
        assert max(segments for _, segments in flushed) == FLUSHED_AT_ONCE + 1


def wanted(number: int) -> WantedLog:
    return WantedLog("t", PartitionKey(b"t" * 16, number), {})


def test_a_broker_takes_a_bounded_number_of_logs(tmp_path: Path) -> None:
    manager = LogManager([tmp_path], LogConfig(), broker_id=1, most_logs=3)
    manager.load()
    assert manager.create_all([wanted(0)]) == [True]
    made = manager.create_all([wanted(number) for number in range(5)])
    assert made[:3] == [False, True, True]
    for refused in made[3:]:
        assert isinstance(refused, LogError)
        assert refused.code is ErrorCode.POLICY_VIOLATION
        assert "has 1 logs and takes at most 3" in refused.message
        assert "ulimit -n" in refused.message
    manager.delete(PartitionKey(b"t" * 16, 1), 1)
    assert manager.create_all([wanted(3)]) == [True]
    manager.close()
    fewer = LogManager([tmp_path], LogConfig(), broker_id=1, most_logs=1)
    fewer.load()  # what there is is served
    assert len(fewer.logs) == 3
    assert isinstance(fewer.create_all([wanted(4)])[0], LogError)
    fewer.close()


@pytest.mark.parametrize("whole_disk", [False, True])
def test_a_log_that_goes_offline_gives_its_places_back(tmp_path: Path, whole_disk: bool) -> None:
    manager = LogManager([tmp_path], LogConfig(), broker_id=1)
    manager.load()
    manager.create_all([wanted(0), wanted(1)])
    failed, other = (manager.logs.get(wanted(number).key).online() for number in range(2))
    before = len(unsynced_segments)
    lead_weeks(failed, 30)
    lead_weeks(other, 30)
    assert (len(failed.segments), len(other.segments)) == (1 + LIMIT, 1)
    manager.logs.count_offline()
    assert len(unsynced_segments) == before + LIMIT
    if whole_disk:
        failed.disk.failure = "gone"
    else:
        failed.context.fail("a failed sync")
    for _ in range(2):
        manager.logs.count_offline()
    assert len(unsynced_segments) == before
    assert not any(segment in unsynced_segments._segments for segment in failed.segments)
    if not whole_disk:
        lead_weeks(other, 30)
        assert len(other.segments) == 1 + LIMIT
    assert files_open(tmp_path) <= 3 * LIMIT + LIMIT + 10
    manager.unlock()


@pytest.mark.parametrize("descriptors", [1_024, 20_000, 1 << 20])
def test_the_shares_leave_some_for_connections(descriptors: int) -> None:
    opens, unsynced, logs = OpenSegments(1), UnsyncedSegments(1), most_logs(descriptors)
    opens.allow(descriptors)
    unsynced.allow(descriptors)
    assert logs is not None
    assert 3 * opens.limit + unsynced.limit + logs <= 0.9 * descriptors
    assert unsynced.limit >= 200  # a follower's piece may have to roll so often
    assert most_logs(-1) is None


def test_a_segment_that_is_rolled_during_its_flush_keeps_no_place(tmp_path: Path) -> None:
    """The flush had all of it, and did not know that nothing would be added: the next one takes it again."""
    log = make_log(tmp_path, LogConfig())
    before = len(unsynced_segments)
    lead_weeks(log, 1)
    for _ in range(2 * LIMIT):
        flush = log.flusher.begin_flush(FLUSHED_AT_ONCE)
        lead_weeks(log, 1)
        log.flusher.write_out(flush)
        log.flusher.finish_flush(flush)
    assert len(log.segments) == 1 + 2 * LIMIT  # no roll was put off
    log.flush()
    assert log.recovery_point == log.log_end_offset
    assert len(unsynced_segments) == before
