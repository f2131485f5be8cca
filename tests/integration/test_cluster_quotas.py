"""Quotas of clients in a cluster of real processes: rates, precedence, others, and how soon a change counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from time import monotonic

import grpc.aio
import pytest
from replica_manager_cluster import eventually, rows
from running_cluster import KEYS, Deployment, deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Consumer, Producer, TopicPartition
from highwater.configuration.entities import ClientEntity, ConfigEntity, UserClientEntity, UserEntity
from highwater.metadata.schema.models import config_to_json
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2

RATE = 50_000  # bytes a second
VALUE = bytes(range(256)) * 8  # of one record, which is not compressed
OTHERS = 4  # times the rate, at least
MEASURED_S = 10.0
CHANGE_S = 1.0
ANONYMOUS = "ANONYMOUS"
CONFIGURED = (
    *(ClientEntity(name) for name in (None, "limited", "reader", "deaf", "asking")),
    *(UserEntity(None), UserClientEntity(ANONYMOUS, "special")),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("quotas")) as running:
        yield running


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncGenerator[Deployment]:
    async with deployment(cluster) as found:
        yield found
        for entity in CONFIGURED:
            await found.store.put(KEYS.entity_config(entity), config_to_json({}))


async def configure(deployed: Deployment, entity: ConfigEntity, **quotas: float) -> None:
    config = {key: str(value) for key, value in quotas.items()}
    await deployed.store.put(KEYS.entity_config(entity), config_to_json(config))


def producer(deployed: Deployment, client_id: str) -> Producer:
    return Producer(
        deployed.cluster.bootstrap, client_id=client_id, compression=None, batch_size=16_384, buffer_memory=2 << 20
    )


class Sending:
    """A producer that sends as fast as it is let."""

    def __init__(self, sender: Producer, topic: str) -> None:
        self.sender = sender
        self._topic = topic
        self.acknowledged = 0  # bytes of values
        self._window = asyncio.Semaphore(100)
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._window.acquire()
                group.create_task(self._one())

    async def _one(self) -> None:
        await self.sender.send_and_wait(self._topic, VALUE, partition=0)
        self.acknowledged += len(VALUE)
        self._window.release()

    async def rate(self, seconds: float) -> float:
        """Bytes a second over that time."""
        before, begun = self.acknowledged, monotonic()
        await asyncio.sleep(seconds)
        return (self.acknowledged - before) / (monotonic() - begun)

    async def slower_than(self, rate: float, within_s: float = 15.0) -> float:
        """The seconds until a tenth of a second has less than that."""
        begun = monotonic()
        while await self.rate(0.1) > rate:
            assert monotonic() - begun < within_s
        return monotonic() - begun

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.sender.abandon()


@pytest.mark.timeout(120)
async def test_a_producer_keeps_its_quota_and_others_are_not_touched(deployed: Deployment) -> None:
    await deployed.create_topic("produced", [[1, 2, 3]])
    await deployed.healed("produced")
    await configure(deployed, ClientEntity("limited"), producer_byte_rate=RATE)
    async with producer(deployed, "limited") as limited, producer(deployed, "other") as other:
        one, another = Sending(limited, "produced"), Sending(other, "produced")
        try:
            await one.slower_than(2 * RATE)
            rate, others = await asyncio.gather(one.rate(MEASURED_S), another.rate(MEASURED_S))
            print(f"limited {rate / RATE:.3f} of its quota, the other one {others / RATE:.1f}")
            assert 0.9 < rate / RATE < 1.1
            assert others > OTHERS * RATE
            told = limited.metrics()
            assert told["produce-throttle-time-max"] >= told["produce-throttle-time-avg"] > 0
            assert other.metrics()["produce-throttle-time-max"] == 0

            # A change counts within a second, up and down, and so does the end of it.
            await configure(deployed, ClientEntity("limited"), producer_byte_rate=5 * RATE)
            await asyncio.sleep(CHANGE_S)
            raised = await one.rate(3)
            assert 4 * RATE < raised < 6 * RATE, raised
            await configure(deployed, ClientEntity("limited"))
            await asyncio.sleep(CHANGE_S)
            assert await one.rate(2) > 6 * RATE
        finally:
            await one.stop()
            await another.stop()


@pytest.mark.timeout(120)
async def test_the_most_special_quota_counts(deployed: Deployment) -> None:
    await deployed.create_topic("precedence", [[1, 2, 3]])
    await deployed.healed("precedence")
    await configure(deployed, ClientEntity(None), producer_byte_rate=RATE / 2)
    await configure(deployed, UserEntity(None), producer_byte_rate=2 * RATE)
    await configure(deployed, UserClientEntity(ANONYMOUS, "special"), producer_byte_rate=4 * RATE)
    async with producer(deployed, "special") as special, producer(deployed, "plain") as plain:
        one, another = Sending(special, "precedence"), Sending(plain, "precedence")
        try:
            await asyncio.gather(one.slower_than(8 * RATE), another.slower_than(4 * RATE))
            rates = await asyncio.gather(one.rate(4), another.rate(4))
            # After a stall half a second's may be taken at once: an eighth more, in 4 s.
            assert [rate / RATE for rate in rates] == pytest.approx([4, 2], rel=0.2)
        finally:
            await one.stop()
            await another.stop()


@pytest.mark.timeout(120)
async def test_a_consumer_keeps_its_quota(deployed: Deployment) -> None:
    await deployed.create_topic("consumed", [[1, 2, 3]])
    async with producer(deployed, "filler") as filler:
        for _ in range(1_000):
            await filler.send("consumed", VALUE, partition=0)
        await filler.flush()
    await configure(deployed, ClientEntity("reader"), consumer_byte_rate=RATE)
    options = {"bootstrap": deployed.cluster.bootstrap, "auto_offset_reset": "earliest"}
    async with Consumer(client_id="reader", max_partition_fetch_bytes=20_000, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition("consumed", 0)])

        async def read(seconds: float) -> float:
            begun, size = monotonic(), 0
            while (left_s := begun + seconds - monotonic()) > 0:
                size += sum(len(record.value or b"") for record in await consumer.poll(int(1000 * left_s)))
            return size / seconds

        await read(3)  # what was saved up, and what is buffered
        rate = await read(MEASURED_S)
        print(f"{rate / RATE:.3f} of the quota")
        assert 0.85 < rate / RATE < 1.15
        assert consumer.metrics()["fetch-throttle-time-max"] > 0


@pytest.mark.timeout(60)
async def test_a_client_that_does_not_pause_is_not_read(deployed: Deployment) -> None:
    """By the stubs alone: requests are written as fast as gRPC takes them, and no answer is looked at."""
    await deployed.create_topic("ignored", [[1, 2, 3]])
    await deployed.healed("ignored")
    await configure(deployed, ClientEntity("deaf"), producer_byte_rate=RATE)
    (found,) = await deployed.admin.describe_topics(["ignored"])
    records = rows(VALUE * 10)
    key = common_pb2.PartitionKey(topic_id=bytes(found.topic_id), partition=0)
    request = broker_pb2.ProduceRequest(
        client_id="deaf", acks=1, partitions=[broker_pb2.ProducePartition(partition=key, records=records)]
    )
    address = next(each.address for each in (await deployed.admin.describe_cluster()).brokers if each.broker_id == 1)
    answered: list[broker_pb2.ProduceResponse] = []
    async with open_channel(address) as channel:
        call = broker_pb2_grpc.BrokerStub(channel).ProduceStream()

        async def write() -> None:
            while True:
                await call.write(request)

        async def read() -> None:
            async for response in call:
                answered.append(response)

        tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
        try:

            async def throttled() -> bool:
                return any(response.throttle_ms for response in answered)

            await eventually(throttled, "the client is told to pause")
            before, begun = len(answered), monotonic()
            await asyncio.sleep(5)
            rate = (len(answered) - before) * len(records) / (monotonic() - begun)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            call.cancel()
    assert rate < 1.2 * RATE
    assert not any(response.HasField("error") for response in answered)


@pytest.mark.timeout(60)
async def test_a_clients_other_calls_are_charged_as_well(deployed: Deployment) -> None:
    await configure(deployed, ClientEntity("asking"), request_percentage=0.001)  # 10 µs a second
    address = next(each.address for each in (await deployed.admin.describe_cluster()).brokers if each.broker_id == 1)
    async with open_channel(address) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)

        async def refused() -> bool:
            try:
                await stub.Metadata(broker_pb2.MetadataRequest(), metadata=(("client-id", "asking"),), timeout=20)
            except grpc.aio.AioRpcError as error:
                return "THROTTLING_QUOTA_EXCEEDED" in (error.details() or "")
            return False

        await eventually(refused, "the client owes more than it may")
        await stub.Metadata(broker_pb2.MetadataRequest(), metadata=(("client-id", "another"),), timeout=20)
