"""Consumers of a running cluster: their sessions (RULES 4.13) through all that moves partitions and positions, and
readers of before beside them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, Deployment, traffic

from highwater.client import Consumer, NewTopic, Producer, TopicPartition
from highwater.records import iter_batches
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2

ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


class Reading:
    """All that a consumer has been given: of each partition its values, which count up from 0 under `traffic`."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.values: dict[int, list[bytes | None]] = defaultdict(list)
        self.offsets: dict[int, list[int]] = defaultdict(list)

    async def until(self, partition: int, count: int) -> None:
        async with asyncio.timeout(HEAL_S):
            while len(self.values[partition]) < count:
                await self.some()

    async def some(self, timeout_ms: float = 500) -> None:
        for record in await self.consumer.poll(timeout_ms):
            self.values[record.partition].append(record.value)
            self.offsets[record.partition].append(record.offset)

    def is_whole(self, partition: int) -> bool:
        offsets, values = self.offsets[partition], self.values[partition]
        expected = [b"%d:%d" % (partition, number) for number in range(len(values))]
        return offsets == sorted(set(offsets)) and values == expected


async def test_a_consumer_reads_all_through_failover_and_growth(deployed: Deployment) -> None:
    topic = "consumed-through-failover"
    await deployed.create_topic(topic, ASSIGNMENT)
    async with Consumer(
        topic, bootstrap=deployed.cluster.bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=200
    ) as consumer:
        reading = Reading(consumer)
        async with traffic(deployed.cluster.bootstrap, topic, 3) as sent:
            for number in range(3):
                await reading.until(number, 50)
            deployed.cluster.kill_broker(2)
            await deployed.replaced(2, topic, 3)
            await sent.until_acked(50)
            for number in range(3):
                await reading.until(number, sent.acked[number])
            deployed.cluster.start_broker(2)
            await deployed.healed(topic, 3)
            await deployed.admin.elect_leaders([(topic, 1)])  # back to broker 2
            await sent.until_acked(50)
        for number in range(3):
            await reading.until(number, sent.acked[number])
            assert reading.is_whole(number)
        await deployed.admin.create_partitions(topic, 4)
        async with Producer(bootstrap=deployed.cluster.bootstrap) as producer:
            for number in range(20):
                await producer.send(topic, b"3:%d" % number, partition=3)
        await reading.until(3, 20)
        assert reading.is_whole(3)


async def test_pauses_and_seeks_beside_traffic(deployed: Deployment) -> None:
    topic = "consumed-with-pauses"
    await deployed.create_topic(topic, ASSIGNMENT)
    async with Consumer(topic, bootstrap=deployed.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        reading = Reading(consumer)
        async with traffic(deployed.cluster.bootstrap, topic, 3) as sent:
            for _ in range(5):
                for number in range(3):
                    await reading.until(number, sent.acked[number] + 1)
                consumer.pause((topic, 1))
                stopped_at = len(reading.values[1])
                goal = sent.acked[2] + 50
                await reading.until(2, goal)
                assert len(reading.values[1]) == stopped_at
                consumer.resume((topic, 1))
                await reading.until(1, stopped_at + 20)
                # Back to the first record, of one partition.
                consumer.seek((topic, 0), 0)
                reading.values[0].clear()
                reading.offsets[0].clear()
        for number in range(3):
            await reading.until(number, sent.acked[number])
            assert reading.is_whole(number)


async def test_a_topic_that_is_deleted_and_made_again(deployed: Deployment) -> None:
    topic, other = "consumed-and-deleted", "consumed-beside-it"
    for name in (topic, other):
        await deployed.create_topic(name, ASSIGNMENT)
    async with (
        Consumer(
            topic, other, bootstrap=deployed.cluster.bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=200
        ) as consumer,
        Producer(bootstrap=deployed.cluster.bootstrap) as producer,
    ):
        for number in range(3):
            await (await producer.send(topic, b"first", partition=number))
        found: list[tuple[str, int, bytes | None]] = []

        async def until(count: int) -> None:
            async with asyncio.timeout(HEAL_S):
                while len(found) < count:
                    found.extend((each.topic, each.partition, each.value) for each in await consumer.poll(500))

        await until(3)
        await deployed.admin.delete_topic(topic)
        for number in range(3):
            await (await producer.send(other, b"beside", partition=number))
        await until(6)  # a topic that is gone holds up no other

        async def created() -> bool:
            (result,) = await deployed.admin.create_topics([NewTopic(topic, assignment=ASSIGNMENT)])
            return result.error is None

        await eventually(created, "the topic is made again", HEAL_S)
        positions = [TopicPartition(topic, number) for number in range(3)]

        async def anew() -> bool:
            await consumer.poll(10)
            return all([await consumer.position(each) == 0 for each in positions])

        await eventually(anew, "the consumer begins with the new topic's first record", HEAL_S)
        async with Producer(bootstrap=deployed.cluster.bootstrap) as fresh:
            for number in range(3):
                await (await fresh.send(topic, b"second", partition=number))
        await until(9)
        assert sorted(found[6:]) == [(topic, number, b"second") for number in range(3)]


@pytest.fixture
async def leader(deployed: Deployment) -> AsyncIterator[tuple[str, broker_pb2_grpc.BrokerStub, bytes, int]]:
    """A topic, its leader, its id and the leader epoch; it has three records."""
    topic = "read-by-others"
    await deployed.create_topic(topic, [[1, 2, 3]])
    async with Producer(bootstrap=deployed.cluster.bootstrap) as producer:
        for number in range(3):
            await (await producer.send(topic, b"%d" % number))
    (info,) = await deployed.admin.describe_topics([topic])
    address = deployed.cluster.bootstrap.split(",")[info.partitions[0].leader - 1]
    async with open_channel(address) as channel:
        yield topic, broker_pb2_grpc.BrokerStub(channel), info.topic_id, info.partitions[0].leader_epoch
    await deployed.admin.delete_topic(topic)


async def test_readers_of_before_are_answered_as_before(
    deployed: Deployment, leader: tuple[str, broker_pb2_grpc.BrokerStub, bytes, int]
) -> None:
    """A unary Fetch, and a stream that names all in each request, beside one that does not."""
    topic, stub, topic_id, epoch = leader

    def asks(offset: int, *, incremental: bool, named: bool = True) -> broker_pb2.FetchRequest:
        place = broker_pb2.FetchPartition(
            partition=common_pb2.PartitionKey(topic_id=topic_id), leader_epoch=epoch, fetch_offset=offset
        )
        return broker_pb2.FetchRequest(
            consumer=broker_pb2.ConsumerRole(),
            max_wait_ms=int(1000 * HEAL_S),
            min_bytes=1,
            incremental=incremental,
            accepts=[broker_pb2.PAYLOAD_COLUMNS],
            partitions=[place] if named else [],
        )

    def offsets(response: broker_pb2.FetchResponse) -> list[int]:
        return [header.base_offset for result in response.results for _, header in iter_batches(result.records)]

    async def answer(stream: grpc.aio.StreamStreamCall, request: broker_pb2.FetchRequest) -> broker_pb2.FetchResponse:
        await stream.write(request)
        return await asyncio.wait_for(stream.read(), HEAL_S)

    unary = await stub.Fetch(asks(0, incremental=True))  # which it does not look at
    assert not unary.incremental
    assert len(offsets(unary)) == 3
    old, new = stub.FetchStream(), stub.FetchStream()
    for _ in range(2):
        response = await answer(old, asks(1, incremental=False))
        assert not response.incremental
        assert offsets(response) == [1, 2]
    response = await answer(new, asks(3, incremental=True))
    assert response.incremental
    assert offsets(response) == []
    waiting = [
        asyncio.create_task(answer(old, asks(3, incremental=False))),
        asyncio.create_task(answer(new, asks(0, incremental=True, named=False))),
    ]
    await asyncio.sleep(0)
    async with Producer(bootstrap=deployed.cluster.bootstrap) as producer:
        await (await producer.send(topic, b"3"))
    assert [offsets(await each) for each in waiting] == [[3], [3]]
    old.cancel()
    new.cancel()
