"""Clients that are closed, or ask nothing of a broker, do not go on connecting: also before garbage is collected."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import pytest
from cluster_double import ClusterDouble

from highwater.client import Admin, Consumer, HighwaterError, NetworkError, Producer, TopicPartition
from highwater.rpc.connections.channel import REPLACE_AFTER_S
from highwater.v1 import broker_pb2

QUIET_S = 2.5  # gRPC tries once a second


class Counter:
    """Takes connections and ends them at once."""

    def __init__(self) -> None:
        self.accepted = 0

    def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        writer.close()


@asynccontextmanager
async def counting(address: str) -> AsyncIterator[Counter]:
    host, _, port = address.rpartition(":")
    counter = Counter()
    server = await asyncio.start_server(counter.take, host, int(port))
    async with server:
        yield counter


@pytest.fixture
def garbage() -> Iterator[None]:
    """Is kept."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def produce(bootstrap: list[str]) -> Producer:
    producer = await Producer(bootstrap, delivery_timeout_ms=60_000).start()
    await producer.send_and_wait("t", b"v")
    await producer.send("t", b"w")
    return producer


async def consume(bootstrap: list[str]) -> Consumer:
    consumer = await Consumer(bootstrap=bootstrap, auto_offset_reset="earliest").start()
    consumer.assign([TopicPartition("t", 0)])
    await consumer.poll(100)
    return consumer


async def administer(bootstrap: list[str]) -> Admin:
    admin = await Admin(bootstrap).start()
    await admin.list_topics()
    return admin


async def ask(client: Any) -> None:
    """Whatever has the client look for its broker."""
    with suppress(HighwaterError):
        await client._cluster.refresh()


@pytest.mark.parametrize("make", [produce, consume, administer])
@pytest.mark.usefixtures("garbage")
async def test_a_closed_client_connects_no_more(make: Callable[[list[str]], Awaitable[Any]]) -> None:
    cluster = ClusterDouble()
    cluster.create("t")
    broker = cluster.brokers[1]
    await broker.start()
    client = await make(cluster.bootstrap)
    await broker.stop()
    async with counting(broker.address) as counter:
        while counter.accepted < 3:
            await ask(client)
        await (client.abandon() if isinstance(client, Producer) else client.stop())
        accepted = counter.accepted
        await asyncio.sleep(QUIET_S)
        assert counter.accepted <= accepted + 1  # one may have been under way


@pytest.mark.usefixtures("garbage")
async def test_a_broker_that_nothing_is_asked_of_is_left_alone() -> None:
    async with ClusterDouble(brokers=2) as cluster, Admin(cluster.bootstrap) as admin:
        broker = cluster.brokers[2]
        await broker.stop()
        async with counting(broker.address) as counter:
            client = admin._cluster
            client._asked_last_until[broker.address] = float("inf")
            connection = client.connection(broker.address)
            with pytest.raises(NetworkError):
                await connection.call(connection.stub.Metadata, broker_pb2.MetadataRequest(), 5)
            begun = monotonic()
            await cluster.until(lambda: counter.accepted > 3 and monotonic() - begun > REPLACE_AFTER_S, 30)
            await client.refresh()  # which the other broker answers
            accepted = counter.accepted
            await asyncio.sleep(QUIET_S)
            assert counter.accepted <= accepted + 1
