"""One user asks for more than it may have: it is refused at once, and another one is served meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest
from replica_manager_cluster import eventually
from secured_broker import SecuredBroker, secured_broker

from highwater.client import Admin, NewTopic, Producer
from highwater.client.cluster.connection import transport_error
from highwater.client.exceptions import RetriableError
from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import broker_pb2, broker_pb2_grpc, replica_control_pb2, replica_control_pb2_grpc

pytestmark = pytest.mark.alone

OPEN, A_SECOND = 30, 20
SETTINGS = {
    "max.open.calls": "100",
    "principals.max.open.calls": str(OPEN),
    "principals.max.calls.per.second": str(A_SECOND),
}
REFUSED_WITHIN_S = 5.0  # of a machine that is busy with other things


@pytest.fixture
async def broker(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[SecuredBroker]:
    async with secured_broker(etcd, store, keys, tmp_path, SETTINGS) as running:
        yield running


def channel(broker: SecuredBroker) -> grpc.aio.Channel:
    """A connection of its own."""
    return grpc.aio.insecure_channel(broker.address, options=(("grpc.use_local_subchannel_pool", 1),))


def bearer(broker: SecuredBroker, name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {broker.tokens[name]}"),)


async def refusal(call: Any) -> str:
    begun = monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert monotonic() - begun < REFUSED_WITHIN_S
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = transport_error(raised.value, "b")
    assert isinstance(error, RetriableError), "clients try again"
    assert error.code is ErrorCode.OVERLOADED
    return raised.value.details() or ""


async def test_streams_of_one_user_leave_places_for_others_and_for_the_controller(broker: SecuredBroker) -> None:
    manager = broker.trio.replica_manager
    assert manager is not None
    refused = manager._counted.refused_calls["open"]
    async with channel(broker) as flooding:
        stub: Any = broker_pb2_grpc.BrokerStub(flooding)
        mallory = bearer(broker, "mallory")
        held = [stub.FetchStream(metadata=mallory) for _ in range(3 * OPEN)]
        before = refused._value.get()

        async def all_refused() -> bool:
            return sum(call.done() for call in held) == 2 * OPEN and refused._value.get() - before == 2 * OPEN

        await eventually(all_refused, "all streams but those that it may have are refused")
        codes = {await call.code() for call in held if call.done()}
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert "User:mallory has 30 calls open" in await refusal(
            stub.Metadata(broker_pb2.MetadataRequest(), metadata=mallory, timeout=20)
        )
        assert (await broker.as_user("admin").broker.Metadata(broker_pb2.MetadataRequest())).brokers
        async with open_channel(f"unix:{broker.trio.directory}/rm") as internal:
            control: Any = replica_control_pb2_grpc.ReplicaControlStub(internal)
            await control.DescribeBrokerConfig(replica_control_pb2.DescribeBrokerConfigRequest(), timeout=20)
        for call in held:
            call.cancel()

        async def served() -> bool:
            try:
                await stub.Metadata(broker_pb2.MetadataRequest(), metadata=mallory, timeout=20)
            except grpc.aio.AioRpcError:
                return False
            return True

        await eventually(served, "it has its places back")


async def test_requests_of_one_user_by_many_connections_have_one_rate(broker: SecuredBroker) -> None:
    channels = [channel(broker) for _ in range(5)]
    stubs: list[Any] = [broker_pb2_grpc.BrokerStub(each) for each in channels]
    alice, request = bearer(broker, "alice"), broker_pb2.MetadataRequest()
    try:
        calls = [stubs[number % 5].Metadata(request, metadata=alice, timeout=20) for number in range(6 * A_SECOND)]
        begun = monotonic()
        outcomes = asyncio.gather(*calls, return_exceptions=True)
        bob = bearer(broker, "bob")
        for _ in range(A_SECOND // 2):
            await asyncio.wait_for(stubs[0].Metadata(request, metadata=bob, timeout=20), REFUSED_WITHIN_S)
        found = await outcomes
        took_s = monotonic() - begun
    finally:
        await asyncio.gather(*(each.close(None) for each in channels))
    refused = [each for each in found if isinstance(each, grpc.aio.AioRpcError)]
    assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    served = len(found) - len(refused)
    assert served >= OPEN
    assert served <= A_SECOND * (took_s + 1), "no faster than its rate, and what was saved up"


async def test_a_producer_is_served_while_another_user_floods(broker: SecuredBroker) -> None:
    async with Admin(broker.address, token=broker.tokens["admin"]) as admin:
        await admin.create_topics([NewTopic("orders", 1, 1, {"min.insync.replicas": "1"})])
    await broker.allow("allow bob write topic orders")
    mallory, codes, over = bearer(broker, "mallory"), Counter[grpc.StatusCode](), asyncio.Event()

    async def flood(stub: Any) -> None:
        while not over.is_set():
            try:
                await stub.Metadata(broker_pb2.MetadataRequest(), metadata=mallory, timeout=20)
                codes[grpc.StatusCode.OK] += 1
            except grpc.aio.AioRpcError as error:
                codes[error.code()] += 1

    async with channel(broker) as one, channel(broker) as other:
        stubs = [broker_pb2_grpc.BrokerStub(each) for each in (one, other)]
        flooding = [asyncio.create_task(flood(stubs[number % 2])) for number in range(2 * OPEN)]
        try:
            async with Producer(broker.address, token=broker.tokens["bob"]) as producer:
                for _ in range(20):
                    await producer.send_and_wait("orders", b"v")
        finally:
            over.set()
            await asyncio.gather(*flooding)
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
