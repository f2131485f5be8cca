"""What stands still for one log does not for the others: a deletion or a move that waits for a flush holds up no fence,
no creation and no deletion of another log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from log_storage_batches import batch, lead

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.files.fence_journal import FILE_NAME, read_fences
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

SLOW, OTHER, NEW = (PartitionKey(b"t" * 16, partition) for partition in range(3))
DEADLINE_S = 5


class Served:
    def __init__(self, directory: Path) -> None:
        self.paths = [directory / "a", directory / "b"]
        self.manager = LogManager(self.paths, LogConfig(), broker_id=1)
        self.manager.load()
        self.threads = ThreadPoolExecutor(4)
        self.servicer = LogStorageServicer(self.manager, "ls", self.threads, Metrics("log-storage"))

    async def create(self, key: PartitionKey) -> bool:
        request = log_storage_pb2.CreateLogRequest(topic="t", partition=to_key(key))
        async with asyncio.timeout(DEADLINE_S):
            return (await self.servicer.CreateLog(request, None)).created

    async def fence(self, key: PartitionKey, epoch: int) -> log_storage_pb2.FenceResult:
        asked = log_storage_pb2.FencePartition(partition=to_key(key), leader_epoch=epoch)
        request = log_storage_pb2.FenceEpochRequest(
            role=log_storage_pb2.ROLE_LEADER, replica_manager_incarnation="rm", partitions=[asked]
        )
        async with asyncio.timeout(DEADLINE_S):
            return (await self.servicer.FenceEpoch(request, None)).results[0]

    async def delete(self, key: PartitionKey, epoch: int = -1) -> ErrorCode:
        request = log_storage_pb2.DeleteLogRequest(partition=to_key(key), leader_epoch=epoch)
        return from_proto((await self.servicer.DeleteLog(request, None)).error)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    for key in (SLOW, OTHER):
        await made.create(key)
        assert from_proto((await made.fence(key, 1)).error) is ErrorCode.NONE
    yield made
    await made.servicer.access.settle()
    made.threads.shutdown()
    made.manager.unlock()


async def waits_for(lock: asyncio.Lock) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not lock._waiters:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_deletion_that_waits_for_a_flush_holds_up_nobody(served: Served) -> None:
    hosted = served.manager.logs.get(SLOW)
    async with hosted.maintenance:  # as a flush has it
        deletion = asyncio.create_task(served.delete(SLOW))
        await waits_for(hosted.maintenance)
        assert from_proto((await served.fence(OTHER, 2)).error) is ErrorCode.NONE
        assert await served.create(NEW)
        async with asyncio.timeout(DEADLINE_S):
            assert await served.delete(NEW) is ErrorCode.NONE
        # Nor its own fence, as long as the deletion has not begun: that takes it for what it is then.
        assert from_proto((await served.fence(SLOW, 2)).error) is ErrorCode.NONE
        assert not deletion.done()
    assert await deletion is ErrorCode.NONE
    assert served.manager.logs.find(SLOW) is None


async def test_a_deletion_is_decided_on_when_it_happens(served: Served) -> None:
    hosted = served.manager.logs.get(SLOW)
    async with hosted.maintenance:
        deletion = asyncio.create_task(served.delete(SLOW, 1))
        await waits_for(hosted.maintenance)
        await served.fence(SLOW, 2)
    assert await deletion is ErrorCode.STALE_FENCE
    assert served.manager.logs.find(SLOW) is hosted


async def test_two_deletions_of_one_log(served: Served) -> None:
    async with served.manager.logs.get(SLOW).maintenance:
        deletions = [asyncio.create_task(served.delete(SLOW)) for _ in range(2)]
        await waits_for(served.manager.logs.get(SLOW).maintenance)
    assert await asyncio.gather(*deletions) == [ErrorCode.NONE, ErrorCode.NONE]


async def test_a_log_that_is_being_deleted_gets_no_fence_any_more(served: Served) -> None:
    hosted = served.manager.logs.get(SLOW)
    async with hosted.alone(), served.servicer.access.unfenced(hosted):
        fencing = asyncio.create_task(served.fence(SLOW, 7))
        assert from_proto((await served.fence(OTHER, 7)).error) is ErrorCode.NONE
        served.manager.delete(SLOW, -1)
        assert not fencing.done()
    assert from_proto((await fencing).error) is ErrorCode.UNKNOWN_TOPIC_ID
    assert SLOW not in read_fences(hosted.log_dir.path / FILE_NAME)


async def test_a_move_that_waits_for_a_flush_holds_up_nobody_and_takes_the_latest_fence_along(served: Served) -> None:
    hosted = served.manager.logs.get(SLOW)
    lead(hosted.online(), batch())
    target = next(path for path in served.paths if path != hosted.log_dir.path)
    served.manager.mover.start_move(SLOW, str(target))
    future = hosted.future
    assert future is not None
    async with hosted.maintenance:
        swapping = asyncio.create_task(served.servicer.moves._swap(hosted, future))
        await waits_for(hosted.maintenance)
        assert from_proto((await served.fence(OTHER, 2)).error) is ErrorCode.NONE
        assert from_proto((await served.fence(SLOW, 9)).error) is ErrorCode.NONE
    await swapping
    assert hosted.log_dir.path == target
    assert hosted.fence == Fence(9, Role.LEADER, "rm", "ls")
    assert read_fences(target / FILE_NAME)[SLOW] == hosted.fence


async def test_an_answer_that_was_held_up_does_not_speak_for_a_later_fence(served: Served) -> None:
    hosted = served.manager.logs.get(SLOW)
    async with hosted.alone():
        earlier = asyncio.create_task(served.fence(SLOW, 5))
        later = asyncio.create_task(served.fence(SLOW, 6))
        async with asyncio.timeout(DEADLINE_S):
            while hosted.fence is None or hosted.fence.leader_epoch < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert from_proto((await served.fence(OTHER, 2)).error) is ErrorCode.NONE
    first, second = await earlier, await later
    assert from_proto(first.error) is ErrorCode.STALE_FENCE
    assert first.fenced_epoch == 6
    assert from_proto(second.error) is ErrorCode.NONE
    assert [entry.leader_epoch for entry in second.epochs] == [6]


async def test_fences_and_deletions_at_once_leave_a_journal_that_says_what_is_there(served: Served) -> None:
    keys = [PartitionKey(b"u" * 16, partition) for partition in range(12)]
    for key in keys:
        await served.create(key)
    work = [served.fence(key, epoch) for epoch in range(2, 6) for key in (*keys, OTHER)]
    await asyncio.gather(*work, *(served.delete(key) for key in keys[:6]))
    await served.servicer.access.settle()
    for path in served.paths:
        fences = read_fences(path / FILE_NAME)
        assert {key for key in fences if key in keys[:6]} == set()
    assert {served.manager.logs.get(key).fence for key in keys[6:]} == {Fence(5, Role.LEADER, "rm", "ls")}
