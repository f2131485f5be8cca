"""A follower's log start is on disk before it is answered for: DeleteRecords waits for that, and what it has deleted is
not back after a crash."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, header_of, produced

from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.server import append_and_read
from highwater.log_storage.server.log_access import LOG_STARTS_AT_ONCE
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

KEYS = [PartitionKey(b"t" * 16, partition) for partition in range(4)]
END = 6


class Follower:
    def __init__(self, directory: Path) -> None:
        self.manager = LogManager([directory], LogConfig(segment_bytes=500), broker_id=1)
        self.manager.load()
        for key in KEYS:
            self.manager.create("t", key, {})
            self.manager.logs.log_dirs[0].record_fences({key: Fence(1, Role.FOLLOWER, "", "ls")})
            log = self.manager.logs.get(key).online()
            for offset in range(END):
                log.append_as_follower(batch(base_offset=offset, epoch=1, value=b"x" * 150), 1, offset, offset, 0, 0)
        self.threads = ThreadPoolExecutor(LOG_STARTS_AT_ONCE + 1)
        self.servicer = LogStorageServicer(self.manager, "ls", self.threads, Metrics("log-storage"))
        self.log = self.manager.logs.get(KEYS[0]).online()

    async def told(
        self, log_start: int, keys: list[PartitionKey] = KEYS[:1], end: int = END
    ) -> list[log_storage_pb2.AppendResult]:
        """The leader has nothing new but its log start."""
        request = log_storage_pb2.AppendRequest(
            role=log_storage_pb2.ROLE_FOLLOWER,
            partitions=[
                log_storage_pb2.AppendPartition(
                    partition=to_key(key),
                    leader_epoch=1,
                    expected_offset=end,
                    leader_high_watermark=end,
                    leader_log_start_offset=log_start,
                )
                for key in keys
            ],
        )
        return list((await self.servicer.append_and_read.append(request)).results)


@pytest.fixture
async def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follower]:
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 10.0)  # the disk may have others to serve
    made = Follower(tmp_path)
    yield made
    await made.servicer.access.settle()
    made.threads.shutdown()
    made.manager.unlock()


def on_disk(directory: Path) -> dict[Any, int]:
    return checkpoints.read_offsets(directory / checkpoints.LOG_STARTS)


async def test_it_is_on_disk_before_the_answer(follower: Follower, tmp_path: Path) -> None:
    (result,) = await follower.told(4)
    assert result.log.log_start_offset == follower.log.log_start_offset == 4
    assert on_disk(tmp_path)["t", 0] == 4
    assert follower.log.segments[0].base_offset > 0


async def test_nothing_goes_and_nobody_is_told_before_it_is_on_disk(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LogRegistry.write_checkpoint
    seen = []

    def watched(*arguments: Any) -> None:
        seen.append((follower.log.state.log_start_offset, sorted(tmp_path.glob("t-0/*.deleted"))))
        write(*arguments)

    monkeypatch.setattr(LogRegistry, "write_checkpoint", watched)
    await follower.told(5)
    assert seen == [(0, [])]
    assert follower.log.log_start_offset == 5


async def test_a_checkpoint_that_cannot_be_written_leaves_the_log_start(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(LogRegistry, "write_checkpoint", full)
    (result,) = await follower.told(4)
    assert not result.HasField("error")  # the append itself was made
    assert result.log.log_start_offset == 0
    assert not follower.log.segment_list.removable
    monkeypatch.undo()
    (result,) = await follower.told(4)
    assert result.log.log_start_offset == 4


async def test_logs_that_are_due_together_are_written_together(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hosted in follower.manager.logs:
        hosted.online().flush()
    write, writes = LogRegistry.write_checkpoint, []

    def counted(*arguments: Any) -> None:
        writes.append(arguments)
        write(*arguments)

    monkeypatch.setattr(LogRegistry, "write_checkpoint", counted)
    results = await follower.told(3, KEYS)
    assert [result.log.log_start_offset for result in results] == [3] * len(KEYS)
    assert set(on_disk(tmp_path).values()) == {3}
    assert len(writes) == 1


async def test_a_truncation_takes_back_what_was_due(follower: Follower, tmp_path: Path) -> None:
    log = follower.log
    log.append_as_follower(b"", 1, END, END, 5, 0)
    assert log.offsets.log_start_due == 5
    follower.manager.truncate(follower.manager.logs.get(KEYS[0]), 2, 9)
    log.log_start.reach(5)
    assert log.log_start_offset == 0 or log.log_start_offset <= log.log_end_offset == 2
    follower.manager.logs.write_checkpoints(follower.manager.logs.log_dirs[0])
    assert on_disk(tmp_path)["t", 0] <= 2


async def test_the_answer_tells_no_later_log_end(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was appended meanwhile has an answer of its own, once it is on disk."""
    write = LogRegistry.write_checkpoint

    def meanwhile(*arguments: Any) -> None:
        follower.log.append_as_follower(batch(base_offset=END, epoch=1), 1, END, END, 0, 0)
        write(*arguments)

    monkeypatch.setattr(LogRegistry, "write_checkpoint", meanwhile)
    (result,) = await follower.told(4)
    assert follower.log.log_end_offset == END + 1
    assert result.log.log_start_offset == 4
    assert result.log.log_end_offset == END


@pytest.fixture
def slow_sync(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No batches come to disk before it is set."""
    sync, moving = Segment.sync_batches, threading.Event()

    def slowly(segment: Segment) -> None:
        assert moving.wait(10)
        sync(segment)

    monkeypatch.setattr(Segment, "sync_batches", slowly)
    return moving


async def test_the_batches_below_it_are_on_disk_first(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power would take them, and what they alone tell of producers (RULES 5.8)."""
    write, synced = LogRegistry.write_checkpoint, []

    def watched(*arguments: Any) -> None:
        synced.append(follower.log.synced_offset)
        write(*arguments)

    monkeypatch.setattr(LogRegistry, "write_checkpoint", watched)
    assert follower.log.synced_offset == 0
    await follower.told(4)
    assert synced == [END]


async def test_a_disk_that_is_slow_holds_up_no_answer_and_the_next_one_tells_the_log_start(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_sync: threading.Event
) -> None:
    """RULES 4.6: it may lag, and is told again."""
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 0.01)
    for log_start in (3, 4):
        (result,) = await follower.told(log_start)
        assert not result.HasField("error")
        assert result.log.log_start_offset == 0
    follower.manager.logs.write_checkpoint(follower.manager.logs.log_dirs[0], checkpoints.LOG_STARTS)
    assert on_disk(tmp_path)["t", 0] == 0
    slow_sync.set()
    await follower.servicer.access.settle()
    (result,) = await follower.told(4)
    assert result.log.log_start_offset == on_disk(tmp_path)["t", 0] == 4


async def test_only_one_answer_waits_for_a_sync(follower: Follower, slow_sync: threading.Event) -> None:
    first = asyncio.create_task(follower.told(3))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    (result,) = await follower.told(4)
    assert asyncio.get_running_loop().time() - began < append_and_read.LOG_START_PATIENCE_S
    assert result.log.log_start_offset == 0
    slow_sync.set()
    (result,) = await first
    assert result.log.log_start_offset == follower.log.log_start_offset > 0


async def test_an_answer_does_not_wait_for_a_sync_where_segments_may_go_before_it_has_ended(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, slow_sync: threading.Event
) -> None:
    """What they tell of producers is to be kept, and the sync has the log."""
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 0.01)
    follower.log.producers.update(header_of(produced(sequence=0)), 0, 0)
    slow_sync.set()
    follower.log.flush()
    slow_sync.clear()
    follower.log.append_as_follower(batch(base_offset=END, epoch=1), 1, END, END, 0, 0)
    try:
        for _ in range(2):
            async with asyncio.timeout(1):
                await follower.told(END + 1, end=END + 1)
    finally:
        slow_sync.set()
    await follower.servicer.access.settle()
    (result,) = await follower.told(END + 1, end=END + 1)
    assert result.log.log_start_offset == END + 1


async def test_syncs_of_many_logs_leave_a_thread_to_others(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, slow_sync: threading.Event
) -> None:
    """To fences say, of whichever directory."""
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 0.01)
    await follower.told(4, KEYS)
    work = follower.servicer.access.to_thread(int)
    done, _ = await asyncio.wait((work,), timeout=1)
    slow_sync.set()
    assert done
    await follower.servicer.access.settle()
    assert {hosted.online().log_start_offset for hosted in follower.manager.logs} == {4}


async def test_a_stop_waits_for_the_sync_and_changes_nothing_any_more(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, slow_sync: threading.Event
) -> None:
    """The logs are closed then, in other threads."""
    monkeypatch.setattr(append_and_read, "LOG_START_PATIENCE_S", 0.01)
    await follower.told(4)
    stopping = asyncio.create_task(follower.servicer.access.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done()
    slow_sync.set()
    await stopping
    assert follower.log.log_start_offset == 0


async def test_a_sync_that_fails_leaves_the_log_start_and_the_log_is_offline(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(segment: Segment) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Segment, "sync_batches", broken)
    (result,) = await follower.told(4)
    assert result.log.offline
    assert follower.log.log_start_offset == 0


async def test_records_are_deleted_once_they_are_on_disk(follower: Follower, slow_sync: threading.Event) -> None:
    """RaiseLogStart, which appends do not wait for."""
    follower.log.offsets.raise_high_watermark(END)
    request = log_storage_pb2.RaiseLogStartRequest(partition=to_key(KEYS[0]), leader_epoch=1, log_start_offset=5)
    raising = asyncio.create_task(follower.servicer.truncations.RaiseLogStart(request, None))
    await asyncio.sleep(0.02)
    assert follower.log.log_start_offset == 0
    assert not follower.manager.logs.get(KEYS[0]).busy
    slow_sync.set()
    answer = await raising
    assert not answer.HasField("error")
    assert answer.log.log_start_offset == 5
    assert follower.log.synced_offset == END
