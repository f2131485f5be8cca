"""Requests that name thousands of partitions let others have their turn of the event loop: as they are taken, and as
they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from counted_turns import with_turns
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import OffsetAnswer, StorageError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.admission.throttling import Throttling
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.requests.delete_records import DeleteRecordsHandler
from highwater.replica_manager.requests.offsets import EARLIEST, OffsetsHandler
from highwater.replica_manager.requests.produce import ProduceHandler, ProduceResult
from highwater.replica_manager.server import fetch_stream, produce_requests
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.replica_manager.server.fetch_stream import FetchStream
from highwater.replica_manager.server.produce_requests import RESULTS_AT_ONCE, ProduceRequests
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import to_key
from highwater.rpc.process import loop_turn
from highwater.rpc.requests.request_limits import MAX_WHOLE_FETCH
from highwater.security.acls import Operation
from highwater.telemetry.metrics import Metrics
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


@pytest.mark.parametrize("timestamp", [EARLIEST, 1_700_000_000_000], ids=["earliest", "by time"])
async def test_what_storage_answers_counts_under_the_epoch_of_the_question_only(leader: Leader, timestamp: int) -> None:
    """Of a partition that another leadership began for, while the others were looked at, nothing is told: what is there
    at a time, or that nothing is there yet, may be of a log that was cut to be copied anew."""

    async def list_offsets(lookups: Any) -> list[OffsetAnswer]:
        leader.lead(3, EPOCH + 1)
        return [OffsetAnswer("ls", StorageError(ErrorCode.NONE, ""), 0, -1, -1) for _ in lookups]

    leader.storage.list_offsets = list_offsets  # type: ignore[attr-defined]
    parts = [
        broker_pb2.ListOffsetsPartition(partition=to_key(key(number)), leader_epoch=-1, timestamp=timestamp)
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


async def test_the_answer_to_a_produce(leader: Leader) -> None:
    """Of which each partition is refused. One of few is there at once."""
    metrics = ReplicaManagerMetrics(Metrics("test"))
    handler = ProduceHandler(leader.replica_manager, metrics, max_requests=4, max_bytes=1 << 20)
    produces, free = ProduceRequests(handler), Throttling().of(NOTHING)
    for count, least in ((RESULTS_AT_ONCE, 0), (4 * RESULTS_AT_ONCE, 3.9 * RESULTS_AT_ONCE)):
        answered: asyncio.Future[broker_pb2.ProduceResponse] = asyncio.get_running_loop().create_future()
        parts = [
            broker_pb2.ProducePartition(partition=to_key(PartitionKey(b"x" * 16, number))) for number in range(count)
        ]
        request = broker_pb2.ProduceRequest(correlation_id=7, acks=-1, partitions=parts)

        async def answer(
            request: broker_pb2.ProduceRequest = request,
            answered: asyncio.Future[broker_pb2.ProduceResponse] = answered,
        ) -> broker_pb2.ProduceResponse:
            assert produces.submit(request, answered.set_result, free) is None
            return await answered

        response, turns = await with_turns(answer())
        assert response.correlation_id == 7
        assert codes(response.results) == [ErrorCode.UNKNOWN_TOPIC_ID] * count
        assert [each.partition.partition for each in response.results] == list(range(count))
        assert turns >= least
        assert (turns == 0) is (not least)
    assert metrics.refused_produces.labels("UNKNOWN_TOPIC_ID")._value.get() == 5 * RESULTS_AT_ONCE
    await handler.close()


async def test_an_answer_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(result: ProduceResult) -> broker_pb2.ProduceResult:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(produce_requests, "_produce_result", broken)
    responses: list[broker_pb2.ProduceResponse] = []
    produce_requests._Answer(7, [ProduceResult(key(0))], responses.append).go_on()
    assert [(each.correlation_id, each.error.code) for each in responses] == [(7, int(ErrorCode.UNKNOWN_SERVER_ERROR))]


async def test_nothing_is_made_of_a_fetch_that_names_too_much_for_no_session(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_stream, "fetch_params", NOTHING)
    stream = FetchStream(leader.replica_manager, leader.handler, Listener("I", "I"))
    parts = [broker_pb2.FetchPartition()] * (MAX_WHOLE_FETCH + 1)
    request = broker_pb2.FetchRequest(consumer=broker_pb2.ConsumerRole(), partitions=parts)

    async def requests() -> AsyncIterator[broker_pb2.FetchRequest]:
        yield request

    await stream.read(requests())
    (answer,) = [broker_pb2.FetchResponse.FromString(each) async for each in stream.responses()]
    assert answer.error.code == int(ErrorCode.INVALID_REQUEST)
    assert "no incremental session" in answer.error.message
