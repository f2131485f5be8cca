"""A sync that fails is never taken for one that has not been tried: the kernel tells of it once."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import FaultyDisk
from log_storage_batches import batch

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.server import append_and_read
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
DEADLINE_S = 10.0
Code = ErrorCode

Call = Callable[[LogStorageServicer, HostedLog], Awaitable[Any]]


def appending(offset: int) -> log_storage_pb2.AppendRequest:
    given = log_storage_pb2.AppendPartition(
        partition=to_key(KEY), leader_epoch=1, expected_offset=offset, records=batch()
    )
    return log_storage_pb2.AppendRequest(role=log_storage_pb2.ROLE_LEADER, partitions=[given])


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[HostedLog, LogStorageServicer]]:
    manager, threads = LogManager([tmp_path], LogConfig(flush_messages=1), broker_id=1), ThreadPoolExecutor(4)
    manager.load()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    servicer = LogStorageServicer(manager, "ls", threads, Metrics("log-storage"))
    yield manager.logs.get(KEY), servicer
    await servicer.access.settle()
    threads.shutdown()
    manager.unlock()


async def cancelled_while(call: Awaitable[Any], patch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
    """Makes the call, whose caller goes away while the `os` function of that name is under way, which then fails."""
    loop, met, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def failing(*arguments: Any, **options: Any) -> int:
        loop.call_soon_threadsafe(met.set)
        assert go_on.wait(DEADLINE_S)
        raise error

    with patch.context() as patched:
        patched.setattr(os, name, failing)
        made = asyncio.ensure_future(call)
        await asyncio.wait_for(met.wait(), DEADLINE_S)
        made.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await made


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda servicer, hosted: servicer.append_and_read.append(appending(1)), id="append"),
        pytest.param(lambda servicer, hosted: servicer.flushes.flush(hosted), id="flush"),
    ],
)
async def test_a_failed_sync_counts_though_its_caller_has_gone_away(
    served: tuple[HostedLog, LogStorageServicer], monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """The next fdatasync would succeed, as the kernel has dropped what it could not write."""
    hosted, servicer = served
    assert not (await servicer.append_and_read.append(appending(0))).results[0].error.code
    await cancelled_while(call(servicer, hosted), monkeypatch, "fdatasync", OSError(errno.EIO, "no disk"))
    assert hosted.offline_reason
    assert hosted.log_dir.disk.doubt
    answer = await servicer.append_and_read.append(appending(1))
    assert answer.results[0].error.code == Code.LOG_STORAGE_ERROR


async def test_a_directory_that_could_not_be_synced_is_synced_later_though_the_caller_has_gone_away(
    served: tuple[HostedLog, LogStorageServicer], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted, servicer = served
    log = hosted.online()
    lacking = OSError(errno.EMFILE, "too many open files")
    await cancelled_while(servicer.append_and_read.append(appending(0)), monkeypatch, "open", lacking)
    assert not hosted.offline_reason
    assert log.log_end_offset == 1
    assert log.synced_offset == 0
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    assert not (await servicer.append_and_read.append(appending(1))).results[0].error.code
    assert str(hosted.directory) in synced


async def test_a_sync_that_could_not_begin_tells_of_no_log_end_that_is_not_on_disk(
    served: tuple[HostedLog, LogStorageServicer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader takes the log end in any definite answer for its own, and commits by it (RULES 4.1)."""
    hosted, servicer = served
    disk = FaultyDisk(tmp_path, monkeypatch)
    disk.fail(("open",), errno.EMFILE)
    (result,) = (await servicer.append_and_read.append(appending(0))).results
    assert disk.met
    assert result.error.code == Code.LOG_STORAGE_ERROR
    assert not result.log.offline
    assert hosted.online().log_end_offset == 1
    assert result.log.log_end_offset == hosted.online().synced_offset == 0
    disk.heal()
    (result,) = (await servicer.append_and_read.append(appending(0))).results  # as the answer says
    assert result.error.code == Code.OFFSET_MISMATCH
    assert result.log.log_end_offset == hosted.online().synced_offset == 1
    (result,) = (await servicer.append_and_read.append(appending(1))).results
    assert not result.error.code
    assert result.log.log_end_offset == 2


async def test_an_append_to_a_disk_that_fails_before_the_sync_is_not_answered_as_taken(
    served: tuple[HostedLog, LogStorageServicer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may find at any time that the directory has failed."""
    hosted, servicer = served
    real = append_and_read.fill_log

    def fill_log(target: log_storage_pb2.LogState, of: HostedLog) -> None:
        real(target, of)
        of.log_dir.disk.fail("found by another thread")

    monkeypatch.setattr(append_and_read, "fill_log", fill_log)
    (result,) = (await servicer.append_and_read.append(appending(0))).results
    assert hosted.log is not None
    assert hosted.log.synced_offset == 0
    assert result.error.code == Code.LOG_STORAGE_ERROR
    assert result.log.offline
