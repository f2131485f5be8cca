"""What clients ask about thousands of replicas lets others have their turn."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from counted_turns import counted_turns
from leading_broker import Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import OffsetAnswer, OffsetLookup, StorageError
from highwater.replica_manager.requests.offsets import DEBUG, OffsetQuery, OffsetsHandler
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.replica_manager.server.log_dirs import LogDirsHandler
from highwater.rpc.partition_keys import to_key
from highwater.rpc.process import loop_turn
from highwater.v1 import broker_pb2, log_storage_pb2

COUNT = 100


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)


class Storage:
    """It has `COUNT` logs in /a, of which the second moves to /b; and answers about each at once."""

    async def describe_logs(self, keys: Sequence[Any]) -> log_storage_pb2.DescribeLogsResponse:
        response = log_storage_pb2.DescribeLogsResponse()
        for path in ("/a", "/b"):
            response.log_dirs.add(path=path)
        for number in range(COUNT):
            log = response.logs.add(partition=to_key(key(number)), topic="t", log_dir="/a", size_bytes=number)
            if number == 1:
                log.future_log_dir, log.future_size_bytes, log.future_log_end_offset = "/b", 5, 3
                log.log.log_end_offset = 10
        response.logs.add(partition=to_key(key(COUNT)), error={"message": "no log"})
        return response

    async def alter_log_dirs(self, moves: Sequence[Any]) -> list[StorageError]:
        return [StorageError(ErrorCode.INVALID_REQUEST, log_dir) for _, log_dir in moves]

    async def list_offsets(self, lookups: Sequence[OffsetLookup]) -> list[OffsetAnswer]:
        return [OffsetAnswer("ls", StorageError(ErrorCode.NONE), each.timestamp, 0, 1) for each in lookups]


def handler() -> LogDirsHandler:
    return LogDirsHandler(SimpleNamespace(storage=Storage()))  # type: ignore[arg-type]


def servicer() -> BrokerServicer:
    """Of log directories alone."""
    made = object.__new__(BrokerServicer)
    made._authorization, made._log_dirs = None, handler()
    return made


async def test_replicas_are_described_in_their_directories() -> None:
    with counted_turns() as turns:
        response = await handler().describe(())
    of_a, of_b = response.log_dirs
    assert [(each.partition.partition, each.size_bytes) for each in of_a.replicas] == [(n, n) for n in range(COUNT)]
    assert [(each.partition.partition, each.size_bytes, each.offset_lag, each.is_future) for each in of_b.replicas] == [
        (1, 5, 7, True)
    ]
    assert turns.count >= 0.9 * COUNT


async def test_parts_are_converted_in_several_turns() -> None:
    context: Any = None
    keys = [to_key(key(number)) for number in range(COUNT)]
    with counted_turns() as turns:
        await servicer().DescribeLogDirs(broker_pb2.DescribeLogDirsRequest(partitions=keys), context)
    assert turns.count >= 1.8 * COUNT
    request = broker_pb2.AlterReplicaLogDirsRequest(
        moves=[broker_pb2.ReplicaLogDir(partition=each, log_dir=f"/{each.partition}") for each in keys]
    )
    with counted_turns() as turns:
        response = await servicer().AlterReplicaLogDirs(request, context)
    assert [(each.partition, each.error.message) for each in response.results] == [
        (each, f"/{each.partition}") for each in keys
    ]
    assert turns.count >= 1.8 * COUNT


async def test_offsets_are_looked_up_in_several_turns() -> None:
    leader = Leader(COUNT)
    leader.replica_manager.storage = Storage()  # type: ignore[assignment]
    queries = [OffsetQuery(key(number), -1, 1000 + number) for number in range(COUNT)]
    with counted_turns() as turns:
        listed = await OffsetsHandler(leader.replica_manager).list_all(queries, DEBUG)
    assert [(each.key, each.offset) for each in listed] == [(key(n), 1000 + n) for n in range(COUNT)]
    assert turns.count >= 1.8 * COUNT
