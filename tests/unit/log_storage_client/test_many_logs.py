"""Calls about thousands of logs let others have their turn, as they are asked and as they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from counted_turns import counted_turns

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import OffsetLookup, StorageError
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process import loop_turn
from highwater.v1 import log_storage_pb2

KEYS = [PartitionKey(b"t" * 16, number) for number in range(50)]


class Stub:
    """Of a log-storage that has an answer for each part of a request."""

    async def AlterReplicaLogDirs(self, request: Any, **_: Any) -> Any:
        results = [
            log_storage_pb2.PartitionError(partition=each.partition, error=to_proto(ErrorCode.INVALID_REQUEST, "no"))
            for each in request.moves
        ]
        return log_storage_pb2.AlterLogDirsResponse(incarnation="ls", results=results)

    async def DescribeLogs(self, request: Any, **_: Any) -> Any:
        logs = [log_storage_pb2.LogDescription(partition=each) for each in request.partitions or map(to_key, KEYS)]
        return log_storage_pb2.DescribeLogsResponse(incarnation="ls", logs=logs)

    async def ListOffsets(self, request: Any, **_: Any) -> Any:
        results = [log_storage_pb2.LogListOffsetsResult(offset=each.timestamp) for each in request.partitions]
        return log_storage_pb2.LogListOffsetsResponse(incarnation="ls", results=results)

    async def CheckpointHighWatermarks(self, request: Any, **_: Any) -> Any:
        assert [each.high_watermark for each in request.partitions] == list(range(50))
        return log_storage_pb2.CheckpointHighWatermarksResponse(incarnation="ls")


async def moved(storage: LogStorageClient) -> None:
    outcomes = await storage.alter_log_dirs([(key, "/a") for key in KEYS])
    assert outcomes == [StorageError(ErrorCode.INVALID_REQUEST, "no")] * 50


async def described(storage: LogStorageClient) -> None:
    response = await storage.describe_logs(KEYS)
    assert [from_key(each.partition) for each in response.logs] == KEYS


async def all_described(storage: LogStorageClient) -> None:
    assert [each.key for each in (await storage.describe()).logs] == KEYS


async def looked_up(storage: LogStorageClient) -> None:
    answers = await storage.list_offsets([OffsetLookup(key, key.partition, -1) for key in KEYS])
    assert [each.offset for each in answers] == list(range(50))


async def checkpointed(storage: LogStorageClient) -> None:
    await storage.checkpoint_high_watermarks([(key, 1, key.partition) for key in KEYS])


@pytest.mark.parametrize(
    ("call", "least"), [(moved, 90), (described, 45), (all_described, 45), (looked_up, 90), (checkpointed, 45)]
)
async def test_others_have_their_turn(
    call: Callable[[LogStorageClient], Awaitable[None]], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    channel: Any = SimpleNamespace(unary_unary=lambda *_, **__: None, stream_stream=lambda *_, **__: None)
    storage = LogStorageClient(channel, timeout_s=1)
    storage._stub = Stub()  # type: ignore[assignment]
    with counted_turns() as turns:
        await call(storage)
    assert turns.count >= least
