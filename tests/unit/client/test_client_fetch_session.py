"""What a consumer tells its leaders: what has changed, and everything to those that remember nothing (RULES 4.13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster_double import BrokerDouble, ClusterDouble, PartitionDouble

from highwater.client import Consumer, TopicPartition
from highwater.client.consumer import fetch_session
from highwater.errors import ErrorCode
from highwater.records import Codec, encode_lists, read_header

PARTITIONS = 6


def fill(partition: PartitionDouble, count: int) -> None:
    """One batch."""
    encoded = encode_lists([0] * count, [None] * count, [b"v"] * count, codec=Codec.NONE)
    assert partition.append(read_header(encoded), encoded)[0] is ErrorCode.NONE


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble() as running:
        running.create("t", PARTITIONS)
        yield running


def consumer_of(cluster: ClusterDouble, *topics: str, **settings: object) -> Consumer:
    settings = {"fetch_max_wait_ms": 10_000, "auto_offset_reset": "earliest", **settings}
    return Consumer(*topics, bootstrap=cluster.bootstrap, **settings)  # type: ignore[arg-type]


def named(broker: BrokerDouble, since: int = 0) -> list[list[int]]:
    """The partitions of each request."""
    return [[item.partition.partition for item in request.partitions] for request in broker.fetch_requests[since:]]


def forgotten(broker: BrokerDouble, since: int = 0) -> list[int]:
    return [key.partition for request in broker.fetch_requests[since:] for key in request.forgotten]


async def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """(partition, offset) of the next records."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            records = await consumer.poll(1000, max_records=count - len(found))
            found += [(record.partition, record.offset) for record in records]
    return found


async def open_idle(cluster: ClusterDouble, consumer: Consumer) -> int:
    """Has every partition named and answered once; the number of requests until then."""
    topic = cluster.topics["t"]
    for partition in topic.partitions:
        fill(partition, 1)
    cluster.changed()
    await read(consumer, PARTITIONS)
    broker = cluster.brokers[1]
    await cluster.until(lambda: sum(map(len, named(broker))) >= 2 * PARTITIONS)
    return len(broker.fetch_requests)


async def test_a_request_names_the_partitions_that_returned_data_and_no_others(cluster: ClusterDouble) -> None:
    async with consumer_of(cluster, "t") as consumer:
        since = await open_idle(cluster, consumer)
        for offset in range(1, 4):
            fill(cluster.topics["t"].partitions[2], 1)
            cluster.changed()
            assert await read(consumer, 1) == [(2, offset)]
        await cluster.until(lambda: len(cluster.brokers[1].fetch_requests) >= since + 3)
        assert named(cluster.brokers[1], since) == [[2], [2], [2]]
        assert forgotten(cluster.brokers[1]) == []


async def test_an_older_broker_is_told_all_partitions_each_time() -> None:
    async with ClusterDouble(remembers=False) as cluster:
        cluster.create("t", PARTITIONS)
        async with consumer_of(cluster, "t") as consumer:
            since = await open_idle(cluster, consumer)
            for _ in range(3):
                fill(cluster.topics["t"].partitions[2], 1)
                cluster.changed()
                await read(consumer, 1)
            await cluster.until(lambda: len(cluster.brokers[1].fetch_requests) >= since + 3)
            assert all(sorted(request) == list(range(PARTITIONS)) for request in named(cluster.brokers[1], since))
            # Who returned data comes last (RULES 4.8).
            assert [request[-1] for request in named(cluster.brokers[1], since)] == [2, 2, 2]


async def test_a_broker_with_too_many_sessions_is_asked_for_some_partitions_after_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at so many of a request, and not at those behind them."""
    monkeypatch.setattr(fetch_session, "MAX_WHOLE_FETCH", 2)
    async with ClusterDouble(remembers=False) as cluster:
        cluster.create("t", PARTITIONS)
        broker = cluster.brokers[1]
        async with consumer_of(cluster, "t", fetch_max_wait_ms=1) as consumer:
            since = await open_idle(cluster, consumer)
            await cluster.until(lambda: len(broker.fetch_requests) >= since + 6)
            for offset in (1, 2):
                for partition in cluster.topics["t"].partitions:
                    fill(partition, 1)
                cluster.changed()
                assert sorted(await read(consumer, PARTITIONS)) == [(number, offset) for number in range(PARTITIONS)]
            idle = named(broker, since)[:3]
            assert sorted(number for request in idle for number in request) == list(range(PARTITIONS))
            assert {len(request) for request in idle} == {2}


async def test_a_broker_that_is_replaced_by_an_older_one_and_back_goes_on(cluster: ClusterDouble) -> None:
    broker = cluster.brokers[1]
    async with consumer_of(cluster, "t", retry_backoff_ms=10) as consumer:
        await open_idle(cluster, consumer)
        for offset, remembers in ((1, False), (2, True)):
            await broker.stop()
            broker.remembers = remembers
            since = len(broker.fetch_requests)
            await broker.start(broker.address)
            for partition in cluster.topics["t"].partitions:
                fill(partition, 1)
            cluster.changed()
            assert sorted(await read(consumer, PARTITIONS)) == [(number, offset) for number in range(PARTITIONS)]
            assert sorted(named(broker, since)[0]) == list(range(PARTITIONS))  # a new stream begins with nothing


async def test_a_paused_partition_is_forgotten_and_named_again(cluster: ClusterDouble) -> None:
    broker, topic = cluster.brokers[1], cluster.topics["t"]
    async with consumer_of(cluster, "t") as consumer:
        since = await open_idle(cluster, consumer)
        consumer.pause(("t", 3))
        fill(topic.partitions[2], 1)
        cluster.changed()
        assert await read(consumer, 1) == [(2, 1)]
        await cluster.until(lambda: forgotten(broker, since) == [3])
        fill(topic.partitions[3], 1)
        fill(topic.partitions[4], 1)
        cluster.changed()
        assert await read(consumer, 1) == [(4, 1)]
        assert await consumer.poll(50) == []
        consumer.resume(("t", 3))
        assert await read(consumer, 1) == [(3, 1)]  # at once, although a request waits at the leader


async def test_a_seek_is_told_at_once_and_its_old_answers_are_dropped(cluster: ClusterDouble) -> None:
    topic = cluster.topics["t"]
    async with consumer_of(cluster, "t") as consumer:
        await open_idle(cluster, consumer)
        consumer.seek(("t", 0), 0)
        assert await read(consumer, 1) == [(0, 0)]
        fill(topic.partitions[0], 1)
        fill(topic.partitions[1], 1)
        cluster.changed()
        consumer.seek(("t", 0), 1)
        consumer.seek(("t", 1), 0)
        assert sorted(await read(consumer, 3)) == [(0, 1), (1, 0), (1, 1)]
        consumer.seek(("t", 0), 2)  # the end, where it is already
        fill(topic.partitions[0], 1)
        cluster.changed()
        assert await read(consumer, 1) == [(0, 2)]


async def test_a_full_buffer_is_not_asked_for_until_it_is_read(cluster: ClusterDouble) -> None:
    broker, topic = cluster.brokers[1], cluster.topics["t"]
    for _ in range(50):
        fill(topic.partitions[0], 10)
    size = topic.partitions[0].batches[0][0].size_bytes
    async with consumer_of(cluster, "t", max_partition_fetch_bytes=5 * size) as consumer:
        buffer = consumer._fetcher.buffers[TopicPartition("t", 0)]
        await cluster.until(lambda: buffer.buffered_bytes >= 5 * size)
        await cluster.until(lambda: broker.fetch_requests[-1].incremental and 0 not in named(broker)[-1])
        assert 0 not in forgotten(broker)  # the leader says no more of it anyway
        full = buffer.buffered_bytes
        fill(topic.partitions[1], 1)
        cluster.changed()
        await cluster.until(lambda: consumer._fetcher.buffers[TopicPartition("t", 1)].buffered_bytes > 0)
        assert buffer.buffered_bytes == full
        found = await read(consumer, 501)
        assert [offset for number, offset in found if number == 0] == list(range(500))


async def test_nothing_is_fetched_while_all_that_may_be_buffered_is(cluster: ClusterDouble) -> None:
    topic = cluster.topics["t"]
    for partition in topic.partitions:
        for _ in range(20):
            fill(partition, 10)
    size = topic.partitions[0].batches[0][0].size_bytes
    async with consumer_of(cluster, "t", fetch_max_bytes=4 * size, max_partition_fetch_bytes=2 * size) as consumer:
        fetcher = consumer._fetcher
        await cluster.until(lambda: sum(each.buffered_bytes for each in fetcher.buffers.values()) >= 4 * size)
        found = await read(consumer, PARTITIONS * 200)
        for number in range(PARTITIONS):
            assert [offset for partition, offset in found if partition == number] == list(range(200))
        await cluster.until(lambda: fetcher._buffered_bytes == 0)


async def test_a_partition_whose_leader_moves_is_named_there_and_forgotten_here() -> None:
    async with ClusterDouble(brokers=2) as cluster:
        topic = cluster.create("t", 4)  # 0 and 2 are broker 1's
        async with consumer_of(cluster, "t", metadata_max_age_ms=50) as consumer:
            for partition in topic.partitions:
                fill(partition, 1)
            cluster.changed()
            await read(consumer, 4)
            since = {number: len(broker.fetch_requests) for number, broker in cluster.brokers.items()}
            cluster.move_leader("t", 0, 2)
            cluster.changed()
            await cluster.until(lambda: [0] in named(cluster.brokers[2], since[2]))
            fill(topic.partitions[0], 1)
            cluster.changed()
            assert await read(consumer, 1) == [(0, 1)]
            cluster.move_leader("t", 0, 1)
            fill(topic.partitions[0], 1)
            cluster.changed()
            assert await read(consumer, 1) == [(0, 2)]
            fill(topic.partitions[2], 1)
            cluster.changed()
            assert await read(consumer, 1) == [(2, 1)]


async def test_a_topic_made_anew_is_read_from_its_reset_position(cluster: ClusterDouble) -> None:
    async with consumer_of(cluster, "t", metadata_max_age_ms=50, retry_backoff_ms=10) as consumer:
        await open_idle(cluster, consumer)
        del cluster.topics["t"]
        topic = cluster.create("t", PARTITIONS)
        cluster.changed()
        # Its offsets begin anew: the positions of before are outside its logs.
        buffers = consumer._fetcher.buffers.values()
        await cluster.until(lambda: all(buffer.position == 0 for buffer in buffers))
        for partition in topic.partitions:
            fill(partition, 1)
        cluster.changed()
        assert sorted(await read(consumer, PARTITIONS)) == [(number, 0) for number in range(PARTITIONS)]


async def test_partitions_that_are_assigned_and_taken_away_cost_nothing_afterwards(cluster: ClusterDouble) -> None:
    broker = cluster.brokers[1]
    async with consumer_of(cluster) as consumer:
        for number in [*range(PARTITIONS), 0]:
            consumer.assign([("t", number)])
            fill(cluster.topics["t"].partitions[number], 1)
            cluster.changed()
            assert (await read(consumer, 1))[0][0] == number
        await cluster.until(lambda: set(forgotten(broker)) >= set(range(PARTITIONS)))
        (session,) = consumer._fetcher._sessions.values()
        assert len(session._members) == len(consumer._fetcher._kept) == 1
