"""Mistakes of the SDK's own: whoever waits is told, and nothing waits in vain for a task that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest
from cluster_double import ClusterDouble

from highwater.client import Consumer, HighwaterError, Producer, TopicPartition, blocking
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.consumer.fetcher import Fetcher
from highwater.client.exceptions import NetworkError
from highwater.client.producer.partition_queue import PartitionQueue
from highwater.client.producer.sender import Sender
from highwater.v1 import broker_pb2

T0 = TopicPartition("t", 0)


def broken(*args: Any, **named: Any) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble() as running:
        running.create("t", 1)
        yield running


async def test_a_refresh_that_fails_is_told_and_the_next_one_succeeds(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(cluster.bootstrap) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "_merge", broken)
            async with asyncio.timeout(5):
                with pytest.raises(HighwaterError, match="ZeroDivisionError"):
                    await producer.partitions_for("t")
        async with asyncio.timeout(5):
            assert await producer.partitions_for("t") == 1


@pytest.mark.parametrize(
    ("owner", "name"), [(PartitionQueue, "next_to_send"), (PartitionQueue, "answered"), (Sender, "_ask_producer_id")]
)
async def test_a_sender_that_fails_fails_what_it_has_and_takes_no_more(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    producer = await Producer(cluster.bootstrap).start()
    monkeypatch.setattr(owner, name, broken)
    delivery = await producer.send("t", b"v")
    async with asyncio.timeout(5):
        with pytest.raises(HighwaterError, match=r"the producer has failed, .*ZeroDivisionError"):
            await delivery
        with pytest.raises(HighwaterError, match="make another"):
            await producer.send("t", b"v")
        with pytest.raises(HighwaterError, match="make another"):
            await producer.flush()
        with pytest.raises(HighwaterError, match="make another"):
            await producer.stop()


async def test_a_stream_whose_reader_fails_ends_and_its_requests_go_again(
    cluster: ClusterDouble, caplog: pytest.LogCaptureFixture
) -> None:
    class Once(dict[int, Any]):
        def pop(self, *args: Any) -> Any:
            raise ZeroDivisionError("a bug")

    async with Producer(cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"1")
        (stream,) = [found._produce for found in producer._cluster._connections if found._produce is not None]
        stream._waiting = Once()
        async with asyncio.timeout(5):
            assert (await producer.send_and_wait("t", b"2")).offset == 1
        assert stream.broken is not None
    assert "a stream to" in caplog.text
    assert cluster.topics["t"].partitions[0].values() == [b"1", b"2"]


@pytest.mark.parametrize(
    ("owner", "name"), [(FetchBuffer, "fetchable"), (FetchBuffer, "accept"), (Fetcher, "_reset_positions")]
)
async def test_a_fetcher_that_fails_is_told_and_goes_on_after_a_seek(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"v")
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            consumer.assign([T0])
            with pytest.raises(HighwaterError, match=r"the consumer has failed, .*ZeroDivisionError"):
                await consumer.poll(timeout_ms=5000)
        consumer.seek(T0, 0)
        assert [record.value for record in await consumer.poll(timeout_ms=5000)] == [b"v"]


async def test_the_blocking_clients_loop_outlives_a_callback_that_exits(cluster: ClusterDouble) -> None:
    def use() -> None:
        def partitions() -> Any:
            raise SystemExit(3)
            yield

        with blocking.Consumer(bootstrap=cluster.bootstrap) as consumer:
            with pytest.raises(SystemExit):
                consumer.assign(partitions())
            assert consumer.end_offsets([T0]) == {T0: 0}

    async with asyncio.timeout(10):
        await asyncio.to_thread(use)


async def test_metadata_does_not_wait_for_a_broker_that_falls_silent() -> None:
    """Whoever looks for the successors of a lost node asks it, too: it is still registered."""
    async with ClusterDouble(brokers=3) as cluster:
        cluster.create("t", 1)
        async with Producer(cluster.bootstrap) as producer:
            await producer.partitions_for("t")
            cluster.brokers[2].awake.clear()
            begun = monotonic()
            for _ in range(6):  # each begins with another broker
                await producer._cluster.refresh()
            assert monotonic() - begun < 1.9  # one answer that is waited for: 2 s
            cluster.brokers[2].awake.set()


async def test_a_broker_that_registered_anew_is_connected_to_anew() -> None:
    """The connection to a host that was lost may seem to stand: what is asked over it is never answered."""
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t", 1)
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            client = producer._cluster
            before = [client.connection(address) for address in cluster.bootstrap]
            await client.refresh()
            assert [client.connection(address) for address in cluster.bootstrap] == before
            cluster.brokers[1].broker_epoch += 1
            await client.refresh()
            after = [client.connection(address) for address in cluster.bootstrap]
            assert after[0] is not before[0]
            assert after[1] is before[1]
            await producer.send_and_wait("t", b"2")


async def test_a_call_over_a_connection_that_is_closed_fails_and_does_not_cancel_its_caller(
    cluster: ClusterDouble,
) -> None:
    cluster.brokers[1].awake.clear()
    connection = Connection(cluster.brokers[1].address)
    asked = asyncio.create_task(connection.call(connection.stub.Metadata, broker_pb2.MetadataRequest(), 5.0))
    await connection.channel.channel_ready()
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(NetworkError, match="was closed"):
        await asked
    cluster.brokers[1].awake.set()
