"""Requests that name thousands of partitions let others have their turn of the event loop: as they are taken, and as
they are answered."""

from __future__ import annotations

from typing import Any

import pytest
from counted_turns import with_turns
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import OffsetAnswer, StorageError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.requests.delete_records import DeleteRecordsHandler
from highwater.replica_manager.requests.offsets import EARLIEST, OffsetsHandler
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import to_key
from highwater.rpc.process import loop_turn
from highwater.security.acls import Operation
from highwater.v1 import broker_pb2

MANY = 50
NOTHING: Any = None


class Access:
    """Nothing may be done with topics but those of id zero."""

    def topic_error(self, operation: Operation, topic_id: bytes) -> ErrorCode:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED if any(topic_id) else ErrorCode.NONE

    def topic_refusal(self, operation: Operation, topic_id: bytes) -> str:
        return "it may not"


@pytest.fixture
async def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    return Leader(MANY)


def servicer(leader: Leader) -> BrokerServicer:
    offsets, deletes = OffsetsHandler(leader.replica_manager), DeleteRecordsHandler(leader.replica_manager)
    made = BrokerServicer(
        leader.replica_manager, NOTHING, leader.handler, offsets, deletes, NOTHING, NOTHING, str, Listener("I", "I")
    )
    made._access = lambda context: Access()  # type: ignore[assignment,method-assign,return-value]
    return made


def keys() -> list[PartitionKey]:
    """Of partitions that it leads, and of one that the caller may not ask for, in their midst."""
    led = [key(number) for number in range(MANY)]
    return [*led[:7], PartitionKey(b"x" * 16, 7), *led[7:]]


def codes(results: Any) -> list[int]:
    return [each.error.code for each in results]


EXPECTED = [0] * 7 + [int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)] + [0] * (MANY - 7)


async def test_list_offsets(leader: Leader) -> None:
    async def list_offsets(lookups: Any) -> list[OffsetAnswer]:
        return [OffsetAnswer("ls", StorageError(ErrorCode.NONE, ""), each.key.partition, -1, -1) for each in lookups]

    leader.storage.list_offsets = list_offsets  # type: ignore[attr-defined]
    for number in range(MANY):
        leader.grow(number, 1_000)
    parts = [
        broker_pb2.ListOffsetsPartition(
            partition=to_key(each), leader_epoch=-1, timestamp=EARLIEST if each.partition % 2 else -1
        )
        for each in keys()
    ]
    request = broker_pb2.ListOffsetsRequest(partitions=parts, replica_id=-1)
    response, turns = await with_turns(servicer(leader).ListOffsets(request, NOTHING))
    assert codes(response.results) == EXPECTED
    of_led = [each for each in response.results if not each.error.code]
    assert [each.offset for each in of_led] == [number if number % 2 else 1_000 for number in range(MANY)]
    assert turns >= 4 * MANY


async def test_what_storage_answers_counts_under_the_epoch_of_the_question_only(leader: Leader) -> None:
    """Of a partition that another leadership began for, while the others were looked at, nothing is told."""

    async def list_offsets(lookups: Any) -> list[OffsetAnswer]:
        leader.lead(3, EPOCH + 1)
        return [OffsetAnswer("ls", StorageError(ErrorCode.NONE, ""), 0, -1, -1) for _ in lookups]

    leader.storage.list_offsets = list_offsets  # type: ignore[attr-defined]
    parts = [
        broker_pb2.ListOffsetsPartition(partition=to_key(key(number)), leader_epoch=-1, timestamp=EARLIEST)
        for number in range(5)
    ]
    request = broker_pb2.ListOffsetsRequest(partitions=parts, replica_id=-1)
    response = await servicer(leader).ListOffsets(request, NOTHING)
    assert codes(response.results) == [0, 0, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


async def test_the_ends_of_epochs(leader: Leader) -> None:
    parts = [
        broker_pb2.EpochPartition(partition=to_key(each), current_leader_epoch=-1, leader_epoch=EPOCH)
        for each in keys()
    ]
    request = broker_pb2.OffsetForLeaderEpochRequest(partitions=parts)
    response, turns = await with_turns(servicer(leader).OffsetForLeaderEpoch(request, NOTHING))
    assert codes(response.results) == EXPECTED
    assert [each.partition.partition for each in response.results] == [each.partition for each in keys()]
    assert turns >= 1.5 * MANY


async def test_deleted_records(leader: Leader) -> None:
    """All wait for their replicas side by side."""
    begun = []

    async def checkpoint_high_watermarks(marks: Any) -> None:
        begun.append(marks)

    async def raise_log_start(key: PartitionKey, epoch: int, offset: int) -> tuple[StorageError, int]:
        return StorageError(ErrorCode.NONE, ""), offset

    leader.storage.checkpoint_high_watermarks = checkpoint_high_watermarks  # type: ignore[attr-defined]
    leader.storage.raise_log_start = raise_log_start  # type: ignore[attr-defined]
    for number in range(MANY):
        leader.grow(number, 10)
    parts = [broker_pb2.DeleteRecordsPartition(partition=to_key(each), offset=5) for each in keys()]
    request = broker_pb2.DeleteRecordsRequest(partitions=parts, timeout_ms=1_000)
    response, turns = await with_turns(servicer(leader).DeleteRecords(request, NOTHING))
    assert codes(response.results) == EXPECTED
    assert [each.low_watermark for each in response.results] == [-1 if code else 5 for code in EXPECTED]
    assert len(begun) == MANY
    assert turns >= 2.5 * MANY
