"""A caller that goes away does not stop the thread that works for it: until that is done the log is nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from log_storage_batches import batch

from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.files.fence_journal import FILE_NAME, read_fences
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.telemetry.metrics import Metrics
from highwater.v1 import common_pb2, log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
PARTITION = common_pb2.PartitionKey(topic_id=KEY.topic_id, partition=0)
PATIENCE_S = 0.2  # for what must not happen

Answer = TypeVar("Answer")


class SlowDisk(ThreadPoolExecutor):
    """Threads that do not begin what is `slow` before `moving` is set."""

    def __init__(self) -> None:
        super().__init__(4)
        self.slow = False
        self.moving = threading.Event()
        self.standing = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def submit(self, fn: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> Future[Answer]:
        def slowly() -> Answer:
            self._loop.call_soon_threadsafe(self.standing.set)
            self.moving.wait(10)
            return fn(*args, **kwargs)

        return super().submit(slowly) if self.slow else super().submit(fn, *args, **kwargs)


class Storage:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = SlowDisk()
        self.manager = LogManager([directory], LogConfig(), broker_id=1)
        self.manager.load()
        self.servicer = LogStorageServicer(self.manager, "ls", self.disk, Metrics("test"))

    async def fence(self, role: int, epoch: int) -> log_storage_pb2.FenceResult:
        response = await self.servicer.FenceEpoch(
            log_storage_pb2.FenceEpochRequest(
                role=role,  # type: ignore[arg-type]
                replica_manager_incarnation="rm" if role == log_storage_pb2.ROLE_LEADER else "",
                partitions=[log_storage_pb2.FencePartition(partition=PARTITION, leader_epoch=epoch)],
            ),
            None,
        )
        return response.results[0]

    async def append(self, epoch: int, offset: int, records: bytes) -> log_storage_pb2.AppendResult:
        response = await self.servicer.append_and_read.append(
            log_storage_pb2.AppendRequest(
                role=log_storage_pb2.ROLE_LEADER,
                partitions=[
                    log_storage_pb2.AppendPartition(
                        partition=PARTITION, leader_epoch=epoch, expected_offset=offset, records=records
                    )
                ],
            )
        )
        return response.results[0]

    def fence_on_disk(self) -> Fence | None:
        return read_fences(self.directory / FILE_NAME).get(KEY)

    async def given_up(self, call: Coroutine[Any, Any, Any]) -> None:
        """Makes the call over a disk that stands still, and its caller goes away. Whatever comes later goes fast."""
        self.disk.slow = True
        made = asyncio.create_task(call)
        await asyncio.wait_for(self.disk.standing.wait(), 10)
        self.disk.slow = False
        made.cancel()


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    opened = Storage(tmp_path / "data")
    await opened.servicer.CreateLog(log_storage_pb2.CreateLogRequest(topic="t", partition=PARTITION), None)
    yield opened
    opened.disk.moving.set()
    await opened.servicer.access.settle()
    opened.disk.shutdown()
    opened.manager.unlock()


async def test_a_fence_is_answered_only_from_the_disk_though_its_first_caller_gave_up(storage: Storage) -> None:
    """RULES 3.1: asked again, it must not be answered from what stands in memory alone."""
    await storage.given_up(storage.fence(log_storage_pb2.ROLE_LEADER, 5))
    second = asyncio.create_task(storage.fence(log_storage_pb2.ROLE_LEADER, 5))
    await asyncio.wait((second,), timeout=PATIENCE_S)
    assert storage.fence_on_disk() is None
    assert not second.done(), "answered before it was on disk"
    storage.disk.moving.set()
    assert not (await second).error.code
    assert storage.fence_on_disk() == Fence(5, Role.LEADER, "rm", "ls")


async def test_a_fence_whose_caller_gives_up_at_once_still_reaches_the_disk(storage: Storage) -> None:
    first = asyncio.create_task(storage.fence(log_storage_pb2.ROLE_LEADER, 5))
    await asyncio.sleep(0)  # it has begun, and waits
    first.cancel()
    assert not (await storage.fence(log_storage_pb2.ROLE_LEADER, 5)).error.code
    assert storage.fence_on_disk() == Fence(5, Role.LEADER, "rm", "ls")


async def test_a_fence_to_follow_keeps_what_was_led(storage: Storage) -> None:
    """RULES 7.9."""
    for role, epoch in (
        (log_storage_pb2.ROLE_LEADER, 5),
        (log_storage_pb2.ROLE_FOLLOWER, 6),
        (log_storage_pb2.ROLE_FOLLOWER, 7),
    ):
        assert not (await storage.fence(role, epoch)).error.code
    kept = storage.fence_on_disk()
    assert kept is not None
    assert (kept.leader_epoch, kept.last_led_epoch) == (7, 5)


async def test_nothing_is_appended_while_a_cut_is_under_way_that_nobody_waits_for(storage: Storage) -> None:
    await storage.fence(log_storage_pb2.ROLE_LEADER, 5)
    assert not (await storage.append(5, 0, batch(5))).error.code
    await storage.fence(log_storage_pb2.ROLE_FOLLOWER, 6)
    await storage.given_up(
        storage.servicer.TruncateTo(
            log_storage_pb2.TruncateToRequest(partition=PARTITION, leader_epoch=6, offset=0, unclean_epoch=-1), None
        )
    )

    async def lead_again() -> log_storage_pb2.AppendResult:
        fenced = await storage.fence(log_storage_pb2.ROLE_LEADER, 7)
        return await storage.append(7, fenced.log.log_end_offset, batch(3))

    leading = asyncio.create_task(lead_again())
    await asyncio.wait((leading,), timeout=PATIENCE_S)
    storage.disk.moving.set()
    result = await leading
    assert (result.error.code, result.base_offset, result.log.log_end_offset) == (0, 0, 3)
    log = storage.manager.logs.get(KEY).online()
    assert [header.next_offset for header in log.segment_list.headers()] == [3]


async def test_what_a_deletion_leaves_is_removed_though_its_caller_gave_up(storage: Storage) -> None:
    deletion = storage.servicer.DeleteLog(log_storage_pb2.DeleteLogRequest(partition=PARTITION, leader_epoch=5), None)
    await storage.given_up(deletion)
    storage.disk.moving.set()
    async with asyncio.timeout(10):
        while storage.manager.logs.find(KEY) is not None or any(storage.directory.glob("t-0*")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
