"""Responses that nobody takes, over real sockets: they cost a bounded amount of memory, for a bounded time, and no
replication."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from replica_manager_cluster import TestCluster, Topic, eventually, fetch_request, rows

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.replica_manager.responses.response_budget import ResponseShare
from highwater.v1 import broker_pb2_grpc

MIB = 1 << 20
READERS = 30
TOPIC_MIB = 6
RESPONSES_MIB = 8
TIMEOUT_MS = 200
NOTHING_AHEAD = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 << 10))  # what a client takes unread


def memory_bytes() -> int:
    """Of this process, which is the broker, and has clients that read nothing."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def consumers(cluster: TestCluster) -> ResponseShare:
    service = cluster[0].replica_manager
    assert service is not None
    return service.fetch_handler.budget.consumers


class Readers:
    """Streams that ask and never read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stack = AsyncExitStack()
        self.calls: list[Any] = []

    async def __aenter__(self) -> Readers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self.calls:
            call.cancel()
        await self._stack.aclose()

    async def open(self, topic: Topic, count: int, *, max_wait_ms: int = 20_000) -> None:
        for _ in range(count):
            channel = grpc.aio.insecure_channel(self._address, options=NOTHING_AHEAD)
            await self._stack.enter_async_context(channel)
            call = broker_pb2_grpc.BrokerStub(channel).FetchStream()
            request = fetch_request(topic.key, 0, max_wait_ms=max_wait_ms, max_bytes=TOPIC_MIB * MIB, columns=True)
            request.consumer.SetInParent()
            await call.write(request)
            self.calls.append(call)


async def fill(cluster: TestCluster, topic: Topic) -> None:
    for _ in range(TOPIC_MIB):
        await cluster[0].produce(topic.key, rows(b"x" * (MIB - 1_000)))


def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "fetch.responses.max.bytes": str(RESPONSES_MIB * MIB),
        "fetch.response.timeout.ms": str(TIMEOUT_MS),
        "tail.cache.bytes": "0",
        "listeners": f"INTERNAL://unix:{tmp_path}/b0/rm,CLIENT://127.0.0.1:0",
    }


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(
        store,
        keys,
        etcd.address,
        tmp_path,
        brokers=1,
        settings=settings(tmp_path) | {"fetch.response.timeout.ms": "60000"},
    ) as running:
        yield running


@pytest.fixture
async def impatient(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1, settings=settings(tmp_path)) as running:
        yield running


def client_address(cluster: TestCluster) -> str:
    service = cluster[0].replica_manager
    assert service is not None
    return service.addresses["CLIENT"]


async def test_streams_that_are_not_read_hold_a_bounded_amount_of_memory(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    await fill(cluster, topic)
    before = memory_bytes()
    async with Readers(client_address(cluster)) as readers:
        await readers.open(topic, READERS)

        async def wait_for_room() -> bool:
            return len(consumers(cluster)) > READERS / 2

        await eventually(wait_for_room, "there is no room for most of them")
        assert consumers(cluster).held_bytes <= RESPONSES_MIB * MIB
        assert memory_bytes() - before < READERS * TOPIC_MIB * MIB / 2
        # The caller of all these has a part: another one gets its records meanwhile.
        assert (await cluster[0].fetch(topic.key, max_wait_ms=10_000)).records
        # One that reads gets its records, be it little by little, as soon as others have gone.
        for call in readers.calls:
            call.cancel()
        fetched = await cluster[0].fetch(topic.key, max_wait_ms=10_000)
        assert fetched.records

        async def all_given_back() -> bool:
            return consumers(cluster).held_bytes == 0

        await eventually(all_given_back, "what the streams held is given back")


async def test_who_leaves_a_response_for_too_long_is_hung_up_on(impatient: TestCluster) -> None:
    topic = await impatient.create_topic("orders")
    await fill(impatient, topic)
    async with Readers(client_address(impatient)) as readers:
        await readers.open(topic, 3)

        async def all_are_over() -> bool:
            return all(call.done() for call in readers.calls) and consumers(impatient).held_bytes == 0

        await eventually(all_are_over, "the streams are ended, and what they held is given back")
        assert {await call.code() for call in readers.calls} == {grpc.StatusCode.UNAVAILABLE}
    assert (await impatient[0].fetch(topic.key)).records


async def test_replicas_replicate_while_consumers_hold_everything(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    options = {"fetch.responses.max.bytes": str(RESPONSES_MIB * MIB), "tail.cache.bytes": "0"}
    async with TestCluster(
        store, keys, etcd.address, tmp_path, brokers=2, settings=options, with_fetchers=True
    ) as cluster:
        topic = await cluster.create_topic("orders", replicas=(0, 1))
        await fill(cluster, topic)
        async with Readers(cluster[0].client_address) as readers:
            await readers.open(topic, READERS)

            async def wait_for_room() -> bool:
                return len(consumers(cluster)) > READERS / 2

            await eventually(wait_for_room, "consumers hold all that there is for them")
            produced = await cluster[0].produce(topic.key, rows(b"y" * (MIB - 1_000)))
            assert produced.error.code == 0  # acknowledged by both replicas
            assert produced.last_offset == TOPIC_MIB
