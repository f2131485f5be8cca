"""Quotas at the edge of a broker: what is charged, what the answer says, and how long a stream is not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from leading_broker import Leader, key

from highwater.errors import ErrorCode
from highwater.quotas.client_quotas import DEFAULT, Entity, Quota
from highwater.replica_manager.admission.throttling import MAX_THROTTLE_S, Throttling
from highwater.replica_manager.requests.produce_room import ProduceRoom
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.replica_manager.server.controller_forwarder import ControllerForwarder, Forwarding
from highwater.replica_manager.server.fetch_stream import FetchStream
from highwater.rpc.errors import from_proto
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import to_key
from highwater.v1 import broker_pb2, controller_pb2

CLIENTS = Listener("CLIENT", "INTERNAL")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Call:
    """A call's context."""

    def __init__(self, client_id: str = "") -> None:
        self._client_id = client_id

    def invocation_metadata(self) -> Any:
        return (("client-id", self._client_id),) if self._client_id else ()


class Handler:
    """Takes every produce, and answers at once."""

    written_times = SimpleNamespace(observe=lambda seconds: None)

    def __init__(self) -> None:
        self.taken = 0
        self.room = ProduceRoom(10, 1 << 20)

    def submit(self, acks: int, timeout_ms: int, parts: Any, done: Any, **named: Any) -> None:
        self.taken += 1
        done([])


def servicer(handler: Any, throttling: Throttling) -> BrokerServicer:
    nothing: Any = None
    replica_manager: Any = SimpleNamespace(metadata=SimpleNamespace(listeners=[]))
    return BrokerServicer(
        *(replica_manager, handler, nothing, nothing, nothing, nothing, nothing),
        lambda: "cluster",
        CLIENTS,
        throttling=throttling,
    )


def produce(size: int, client_id: str = "app") -> broker_pb2.ProduceRequest:
    request = broker_pb2.ProduceRequest(client_id=client_id, acks=1)
    request.partitions.add(partition=to_key(key(0)), records=bytes(size))
    return request


async def test_a_client_id_of_any_size_is_remembered_by_its_beginning() -> None:
    throttling = Throttling(clock_s=Clock())
    throttling.configure(Entity(None, DEFAULT), {"producer_byte_rate": "10"})
    charges = throttling.of(Call())
    for end in ("a", "b"):
        charges.charge(Quota.PRODUCE, 1_000_000 * "x" + end, 10)
    (kept,) = throttling.quotas[Quota.PRODUCE]._buckets._buckets
    assert kept == Entity(None, 255 * "x")
    assert charges.throttle_ms == 1_500


async def test_a_stream_is_answered_at_once_and_not_read_while_its_client_is_to_pause() -> None:
    throttled: list[tuple[Quota, float]] = []
    throttling = Throttling(lambda quota, pause_s: throttled.append((quota, pause_s)))
    throttling.configure(Entity(None, "app"), {"producer_byte_rate": "1000"})
    handler, read = Handler(), 0

    async def requests() -> AsyncIterator[broker_pb2.ProduceRequest]:
        nonlocal read
        for _ in range(5):
            read += 1
            yield produce(1_000)

    responses = servicer(handler, throttling).ProduceStream(requests(), Call())  # type: ignore[arg-type]
    first = await anext(responses)
    assert 400 < first.throttle_ms <= 500, "half a second is owed"
    for _ in range(20):
        await asyncio.sleep(0)
    assert (read, handler.taken) == (1, 1)
    assert throttled == [(Quota.PRODUCE, 0.5)]
    # Whoever pauses goes on at once where the quota is gone.
    throttling.configure(Entity(None, "app"), {})
    assert [response.throttle_ms async for response in responses] == [0] * 4
    assert handler.taken == 5


async def test_without_a_quota_nothing_is_looked_at() -> None:
    class Nobody:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} is asked for")

    throttling, handler = Throttling(), Handler()

    async def requests() -> AsyncIterator[broker_pb2.ProduceRequest]:
        yield produce(10**6)

    responses = servicer(handler, throttling).ProduceStream(requests(), Nobody())  # type: ignore[arg-type]
    assert [response.throttle_ms async for response in responses] == [0]
    assert handler.taken == 1


async def test_unary_produces_are_refused_once_their_client_owes_too_much() -> None:
    clock, refused = Clock(), [0]

    def count() -> None:
        refused[0] += 1

    throttling, handler = Throttling(refused=count, clock_s=clock), Handler()
    throttling.configure(Entity(None, DEFAULT), {"producer_byte_rate": "1000"})
    broker = servicer(handler, throttling)
    call: Any = Call("from%20metadata")
    first = await broker.Produce(produce(8_500, ""), call)
    assert (first.throttle_ms, from_proto(first.error)) == (8_000, ErrorCode.NONE)
    second = await broker.Produce(produce(8_000, ""), call)
    assert second.throttle_ms == 1_000 * MAX_THROTTLE_S, "it owes 16 s, and is not told of more than this"
    third = await broker.Produce(produce(8_000, ""), call)
    assert from_proto(third.error) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert (handler.taken, refused[0]) == (2, 1)
    other = await broker.Produce(produce(100, "other"), call)
    assert (other.throttle_ms, handler.taken) == (0, 3)
    clock.now_s += 6
    assert from_proto((await broker.Produce(produce(8_000, ""), call)).error) is ErrorCode.NONE


async def test_a_consumer_is_charged_by_what_it_is_sent_and_a_replica_never() -> None:
    leader, throttling = Leader(), Throttling()
    throttling.configure(Entity(DEFAULT), {"consumer_byte_rate": "100"})
    for role in (
        broker_pb2.FetchRequest(consumer=broker_pb2.ConsumerRole(), client_id="app"),
        broker_pb2.FetchRequest(debug=broker_pb2.DebugRole(), client_id="app"),
    ):
        charged = role.WhichOneof("role") == "consumer"
        listener = Listener("INTERNAL", "INTERNAL")
        stream = FetchStream(
            leader.replica_manager,
            leader.handler,
            listener,
            charges=throttling.of(Call()),  # type: ignore[arg-type]
        )
        role.accepts.append(broker_pb2.PAYLOAD_COLUMNS)  # rows alone would be looked for in the batches
        role.partitions.add(partition=to_key(key(0)), leader_epoch=-1, fetch_offset=0)
        leader.storage.records = bytes(150)
        leader.grow(0, 10)
        asked: asyncio.Queue[broker_pb2.FetchRequest] = asyncio.Queue()

        async def requests(asked: asyncio.Queue[broker_pb2.FetchRequest] = asked) -> AsyncIterator[Any]:
            while True:
                yield await asked.get()

        reading = asyncio.create_task(stream.read(requests()))
        responses = stream.responses()
        try:
            asked.put_nowait(role)
            asked.put_nowait(role)
            response = broker_pb2.FetchResponse.FromString(await anext(responses))
            assert response.results[0].records
            assert (response.throttle_ms > 900) is charged
            answering = asyncio.ensure_future(anext(responses))
            done, _ = await asyncio.wait([answering], timeout=0.2)
            assert bool(done) is not charged, "the next request waits for the pause"
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def test_changes_to_topics_are_refused_while_any_is_owed() -> None:
    clock = Clock()
    throttling = Throttling(clock_s=clock)
    throttling.configure(Entity(None, "admin"), {"controller_mutation_rate": "2"})
    forwarded: list[Any] = []

    class Forwards(Forwarding):
        def __init__(self) -> None:
            pass

        async def forward(self, method: Any, request: Any, refused: Any, context: Any) -> Any:
            forwarded.append(request)
            return refused()

    forwarder = ControllerForwarder(
        Forwards(),
        dict,
        throttling=throttling,
        partitions_of={"t": 6}.get,  # type: ignore[arg-type]
    )
    admin: Any = Call("admin")
    made = controller_pb2.CreateTopicsRequest(topics=[controller_pb2.NewTopic(topic="t", partitions=5)])
    first = await forwarder.CreateTopics(made, admin)
    assert first.throttle_ms == 2_000
    second = await forwarder.CreateTopics(made, admin)
    assert from_proto(second.error) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert second.throttle_ms == 2_000
    made.validate_only = True
    assert from_proto((await forwarder.CreateTopics(made, admin)).error) is ErrorCode.NONE
    clock.now_s += 2
    deleted = await forwarder.DeleteTopics(controller_pb2.DeleteTopicsRequest(topics=["t"]), admin)
    assert deleted.throttle_ms == 3_000, "the six that it has"
    added = controller_pb2.CreatePartitionsRequest(topics=[controller_pb2.NewPartitions(topic="t", total=8)])
    clock.now_s += 3
    assert (await forwarder.CreatePartitions(added, admin)).throttle_ms == 1_000, "two more"
    assert len(forwarded) == 4
