"""Leaders that answer late, or not at all, and what clients ask about them."""

from __future__ import annotations

import asyncio

import pytest
from cluster_double import ClusterDouble, Fault

from highwater.client import (
    Producer,
)
from highwater.client.cluster.refresh_pace import SAME_ANSWERS


async def test_a_leader_that_falls_silent_is_left_once_its_successor_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.SILENT_AFTER_S", 0.2)
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            cluster.brokers[1].fault = lambda request: Fault.SILENCE
            delivery = await producer.send("t", b"2")
            await cluster.until(lambda: len(cluster.brokers[1].produce_requests) == 2)
            cluster.move_leader("t", 0, 2)
            async with asyncio.timeout(5):
                assert (await delivery).offset == 1
        assert cluster.topics["t"].partitions[0].values() == [b"1", b"2"]


async def test_a_leader_that_is_slow_and_not_silent_is_hardly_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overloaded cluster answers late; a thousand clients that ask about it all the while are what keeps it so."""
    monkeypatch.setattr("highwater.client.cluster.cluster.SILENT_AFTER_S", 0.8)
    async with ClusterDouble(brokers=1) as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"0")
            asked = broker.metadata_requests

            async def slowly() -> None:
                # Five in flight, one after the other: each waits for 1.25 s. Half a second later the broker would be
                # silent, of which a busy machine may take some.
                await asyncio.sleep(0.25)

            broker.before_append = slowly
            sent = []
            for _ in range(20):
                sent.append(await producer.send("t", b"1"))
                await asyncio.sleep(0.1)
            oldest = [stream.oldest_wait_s for stream in producer._cluster.connection(broker.address).overdue(0.8)]
            assert oldest, "the requests do not wait"
            await asyncio.gather(*sent)
            assert broker.metadata_requests - asked <= 1


async def test_questions_grow_rare_while_the_answers_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.refresh_pace.MIN_REFRESH_INTERVAL_S", 0.01)
    async with ClusterDouble(brokers=1) as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"0")
            metadata, asked = producer._cluster, cluster.brokers[1].metadata_requests
            ends = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < ends:
                metadata.request_refresh()
                await asyncio.sleep(0.005)
            # Five after 10 ms each, 20, 40, 80, 160, 320 ms and every half a second; 100 without
            assert 3 <= cluster.brokers[1].metadata_requests - asked <= 8 + SAME_ANSWERS
            began = asyncio.get_running_loop().time()
            await metadata.refresh()  # who waits is not kept waiting
            assert asyncio.get_running_loop().time() - began < 0.3


async def test_a_leader_that_falls_silent_after_its_successor_is_known_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut from etcd and from its followers: the client hears of the successor before the silence is long."""
    monkeypatch.setattr("highwater.client.cluster.cluster.SILENT_AFTER_S", 1.0)
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t")
        cluster.create("other")
        cut = cluster.brokers[1]
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            held = asyncio.Event()
            cut.before_append = held.wait
            delivery = await producer.send("t", b"2")
            await cluster.until(lambda: producer._sender.waiting_records() == 1)
            cluster.move_leader("t", 0, 2)
            assert await producer.partitions_for("other") == 1  # an answer that names the successor
            assert producer._cluster.metadata.leader_address("t", 0) == cluster.brokers[2].address
            async with asyncio.timeout(5):
                assert (await delivery).offset == 1
            held.set()
        assert cluster.topics["t"].partitions[0].values() == [b"1", b"2"]
