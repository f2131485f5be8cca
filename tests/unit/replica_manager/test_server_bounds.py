"""What a peer can make the server hold is bounded: unread responses, waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_late_appends import KEY, Leader, Log, batch

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FetchSession, PartitionSettings
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.fetch import FULL_PAUSE_S, FetchHandler, FetchParams
from highwater.replica_manager.requests.produce import ProduceHandler
from highwater.replica_manager.responses.fetch_parts import FetchPart, FetchRole
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.replica_manager.server.fetch_stream import PARTS_AT_ONCE, FetchStream, fetch_params, fetch_refusal
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import to_key
from highwater.rpc.requests.request_limits import (
    MAX_FETCH_PARTITIONS,
    MAX_METADATA_TOPICS,
    MAX_PARTITIONS,
    MAX_WHOLE_FETCH,
)
from highwater.telemetry.metrics import Metrics
from highwater.v1 import broker_pb2

MAX_REQUESTS = 4
INTERNAL = Listener("INTERNAL", "INTERNAL")
COUNTED = ReplicaManagerMetrics(Metrics("test"))


@pytest.fixture
async def replica_manager(tmp_path: Path) -> AsyncIterator[ReplicaManager]:
    address = f"unix:{tmp_path}/nobody"
    storage = LogStorageClient(open_channel(address), timeout_s=5.0)
    appends = LeaderAppends(address, lambda incarnation: None)
    nothing: Any = SimpleNamespace(committed=None)
    yield ReplicaManager(
        1,
        PartitionSettings(),
        storage,
        appends,
        nothing,
        nothing,
        incarnation="rm",
        tail_cache_bytes=0,
        purgatory=Purgatory(max_produces=1, max_fetches=0),
        message_max_bytes=1 << 20,
        lease_confirmed=lambda: True,
        register_anew=lambda: None,
        report_offline_logs=lambda: None,
        now_ms=lambda: 0,
    )
    await appends.stop()
    await storage.close()


async def test_a_producer_that_reads_no_responses_is_not_read_for_ever(replica_manager: ReplicaManager) -> None:
    taken = 0

    async def requests() -> AsyncIterator[broker_pb2.ProduceRequest]:
        nonlocal taken
        while True:
            taken += 1
            yield broker_pb2.ProduceRequest(correlation_id=taken, acks=7)
            await asyncio.sleep(0)

    produce_handler = ProduceHandler(replica_manager, COUNTED, max_requests=MAX_REQUESTS, max_bytes=1 << 20)
    nothing: Any = None
    servicer = BrokerServicer(
        replica_manager,
        produce_handler,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        cluster_id=lambda: "",
        listener=INTERNAL,
    )
    responses = servicer.ProduceStream(requests(), nothing)
    await anext(responses)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert taken <= 1 + MAX_REQUESTS + 1
    assert [(await anext(responses)).correlation_id for _ in range(100)] == list(range(2, 102))
    await responses.aclose()  # type: ignore[attr-defined]


async def test_a_stream_is_not_read_while_log_storage_has_as_much_as_it_may_have() -> None:
    """What would be refused stays with its sender, and costs the broker no memory."""
    leader = Leader(log := Log(), max_requests=2)
    taken = 0

    async def requests() -> AsyncIterator[broker_pb2.ProduceRequest]:
        nonlocal taken
        for number in range(6):
            taken += 1
            part = broker_pb2.ProducePartition(partition=to_key(KEY), records=batch(number))
            yield broker_pb2.ProduceRequest(correlation_id=number, acks=1, partitions=[part])

    nothing: Any = None
    servicer = BrokerServicer(
        leader.replica_manager,
        leader.produce_handler,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        cluster_id=lambda: "",
        listener=INTERNAL,
    )
    answered: list[broker_pb2.ProduceResponse] = []

    async def answers() -> None:
        async for response in servicer.ProduceStream(requests(), nothing):
            answered.append(response)

    reading = asyncio.create_task(answers())
    for expected in (2, 4, 6):
        for _ in range(100):
            await asyncio.sleep(0)
        assert (taken, len(answered)) == (expected, expected - 2)
        log.answer_all()
    async with asyncio.timeout(5):
        await reading
    assert [response.results[0].error.code for response in answered] == [ErrorCode.NONE] * 6


async def test_a_stream_whose_request_cannot_be_taken_ends(replica_manager: ReplicaManager) -> None:
    """Not only that request: its answer, and those behind it, would be waited for in vain."""

    class Broken(ProduceHandler):
        def submit(self, *args: Any, **options: Any) -> None:
            raise RuntimeError("a mistake of ours")

    async def requests() -> AsyncIterator[broker_pb2.ProduceRequest]:
        yield broker_pb2.ProduceRequest()
        await asyncio.Event().wait()

    nothing: Any = None
    produce_handler = Broken(replica_manager, COUNTED, max_requests=MAX_REQUESTS, max_bytes=1 << 20)
    servicer = BrokerServicer(
        replica_manager,
        produce_handler,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        cluster_id=lambda: "",
        listener=INTERNAL,
    )
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        async with asyncio.timeout(5):
            await anext(servicer.ProduceStream(requests(), nothing))


def test_a_fetch_of_more_partitions_than_any_broker_has_is_refused() -> None:
    """What is made of them takes many times the memory of the request."""
    part = broker_pb2.FetchPartition(fetch_offset=1)
    request = broker_pb2.FetchRequest(partitions=[part] * MAX_FETCH_PARTITIONS)
    assert fetch_refusal(request, INTERNAL) == ""
    request.partitions.append(part)
    assert "100001 partitions" in fetch_refusal(request, INTERNAL)


async def test_a_request_that_names_too_much_is_refused_before_anything_is_done(
    replica_manager: ReplicaManager,
) -> None:
    nothing: Any = None  # no handler is asked
    servicer = BrokerServicer(
        replica_manager, nothing, nothing, nothing, nothing, nothing, nothing, lambda: "", INTERNAL
    )
    key = to_key(KEY)
    many = MAX_PARTITIONS + 1
    response: Any
    for response in (
        await servicer.Produce(broker_pb2.ProduceRequest(partitions=[broker_pb2.ProducePartition()] * many), nothing),
        await servicer.ListOffsets(
            broker_pb2.ListOffsetsRequest(partitions=[broker_pb2.ListOffsetsPartition()] * many), nothing
        ),
        await servicer.OffsetForLeaderEpoch(
            broker_pb2.OffsetForLeaderEpochRequest(partitions=[broker_pb2.EpochPartition()] * many), nothing
        ),
        await servicer.DeleteRecords(
            broker_pb2.DeleteRecordsRequest(partitions=[broker_pb2.DeleteRecordsPartition()] * many), nothing
        ),
        await servicer.DescribeLogDirs(broker_pb2.DescribeLogDirsRequest(partitions=[key] * many), nothing),
        await servicer.AlterReplicaLogDirs(
            broker_pb2.AlterReplicaLogDirsRequest(moves=[broker_pb2.ReplicaLogDir()] * many), nothing
        ),
        broker_pb2.FetchResponse.FromString(
            await servicer.Fetch(
                broker_pb2.FetchRequest(partitions=[broker_pb2.FetchPartition()] * (MAX_WHOLE_FETCH + 1)), nothing
            )
        ),
        broker_pb2.MetadataResponse.FromString(
            await servicer.Metadata(broker_pb2.MetadataRequest(topics=["t"] * (MAX_METADATA_TOPICS + 1)), nothing)
        ),
    ):
        assert response.error.code == ErrorCode.INVALID_REQUEST, type(response)
        assert "are the most, send several" in response.error.message
        assert not getattr(response, "results", ())


async def fetched(replica_manager: ReplicaManager, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
    """The answer to the only request of a stream."""

    async def requests() -> AsyncIterator[broker_pb2.FetchRequest]:
        yield request

    stream = FetchStream(
        replica_manager, FetchHandler(replica_manager, COUNTED, max_bytes=1 << 20), INTERNAL, charges=None
    )
    await stream.read(requests())
    (response,) = [each async for each in stream.responses()]
    return broker_pb2.FetchResponse.FromString(response)


def of_many(count: int, **more: Any) -> broker_pb2.FetchRequest:
    parts = [
        broker_pb2.FetchPartition(partition=to_key(PartitionKey(b"t" * 16, number)), fetch_offset=1)
        for number in range(count)
    ]
    return broker_pb2.FetchRequest(partitions=parts, **more)


async def test_of_a_consumer_for_which_there_is_no_session_no_more_is_looked_at_than_in_one_turn(
    replica_manager: ReplicaManager,
) -> None:
    request = of_many(MAX_WHOLE_FETCH + 1, consumer=broker_pb2.ConsumerRole(), incremental=True)
    response = await fetched(replica_manager, request)
    assert not response.incremental
    assert [each.partition.partition for each in response.results] == list(range(MAX_WHOLE_FETCH))


async def test_a_stream_that_is_no_session_may_not_name_more(replica_manager: ReplicaManager) -> None:
    request = of_many(MAX_WHOLE_FETCH + 1, consumer=broker_pb2.ConsumerRole())
    response = await fetched(replica_manager, request)
    assert response.error.code == ErrorCode.INVALID_REQUEST
    assert "2001 partitions, and no incremental session: 2000 are the most" in response.error.message


async def test_others_have_their_turn_while_a_request_of_many_partitions_is_taken() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    params = await fetch_params(of_many(10 * PARTS_AT_ONCE, consumer=broker_pb2.ConsumerRole()))
    beside.cancel()
    assert params is not None
    assert len(params.parts) == 10 * PARTS_AT_ONCE
    assert turns >= 10


def too_early() -> FetchParams:
    return FetchParams(
        FetchRole.REPLICA,
        [FetchPart(PartitionKey(b"t" * 16, 0), leader_epoch=3, fetch_offset=0, max_bytes=1)],
        max_wait_ms=10_000,
        min_bytes=1,
        max_bytes=1,
        accepts_columns=True,
        session=FetchSession(2, 1, 0, 1),
    )


async def test_a_fetch_that_may_not_wait_leaves_nothing_behind(replica_manager: ReplicaManager) -> None:
    params = too_early()
    fetch_handler = FetchHandler(replica_manager, COUNTED, max_bytes=1 << 20)
    fetch_handler.note_follower(params)
    started = asyncio.get_running_loop().time()
    (result,) = await fetch_handler.answer(params)
    assert result.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert not replica_manager.leadership_waits
    # Its client asks again at once: without a pause those above the limit would spin.
    assert asyncio.get_running_loop().time() - started >= 0.9 * FULL_PAUSE_S


async def test_a_fetch_that_may_not_wait_is_answered_when_a_newer_one_comes(replica_manager: ReplicaManager) -> None:
    params = too_early()
    fetch_handler = FetchHandler(replica_manager, COUNTED, max_bytes=1 << 20)
    fetch_handler.note_follower(params)
    asyncio.get_running_loop().call_later(0.01, params.wait.end)
    async with asyncio.timeout(FULL_PAUSE_S / 2):
        await fetch_handler.answer(params)
