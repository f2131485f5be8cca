"""Clients that may not DESCRIBE a topic any more: brokers leave it out of the metadata, and say why."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from cluster_double import BrokerDouble, ClusterDouble

from highwater.client import AuthorizationError, Consumer, Producer, TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import to_proto
from highwater.v1 import broker_pb2

SOON_S = 10.0
LATER_MS = 20_000  # a delivery times out


def refuse(broker: BrokerDouble, name: str, message: str = "") -> None:
    def view(response: broker_pb2.MetadataResponse) -> None:
        kept = [topic for topic in response.topics if topic.topic != name]
        refused = broker_pb2.TopicMetadata(topic=name, error=to_proto(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message))
        del response.topics[:]
        response.topics.extend([*kept, refused])

    broker.metadata_view = view


def allow(broker: BrokerDouble) -> None:
    broker.metadata_view = lambda response: None


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_producer_hears_of_a_refusal_and_of_its_end(idempotent: bool) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        cluster.create("open")
        broker = cluster.brokers[1]
        async with (
            Producer(cluster.bootstrap, enable_idempotence=idempotent, delivery_timeout_ms=LATER_MS) as producer,
            asyncio.timeout(SOON_S),
        ):
            await producer.send_and_wait("t", b"1")
            refuse(broker, "t")
            await producer._cluster.refresh()
            for _ in range(2):
                deliveries = [await producer.send("t", b"no") for _ in range(3)]
                for delivery in deliveries:
                    with pytest.raises(AuthorizationError, match="'t'") as refused:
                        await delivery
                    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await producer.send_and_wait("open", b"1")
            allow(broker)
            # No answer of before counts: the first record of after goes.
            await producer.send_and_wait("t", b"2")
            await producer.flush()
        assert cluster.topics["t"].partitions[0].values() == [b"1", b"2"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("User:a may not DESCRIBE topic 't': ask who runs the cluster for an ACL", "{}"),
        ("", "topic 't': " + ErrorCode.TOPIC_AUTHORIZATION_FAILED.sentence),
    ],
)
async def test_a_refusal_says_who_may_not_do_what_and_whom_to_ask(said: str, told: str) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        async with Producer(cluster.bootstrap) as producer, asyncio.timeout(SOON_S):
            refuse(broker, "t", said)
            with pytest.raises(AuthorizationError) as unknown:
                await producer.send_and_wait("t", b"1")
            allow(broker)
            await producer.send_and_wait("t", b"2")
            refuse(broker, "t", said)
            await producer._cluster.refresh()
            with pytest.raises(AuthorizationError) as known:
                await producer.send_and_wait("t", b"3")
        assert str(unknown.value) == told.format(said)
        assert told.format(said) in str(known.value)


async def test_batches_that_are_tried_again_are_refused_and_none_is_doubled() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        async with Producer(cluster.bootstrap, delivery_timeout_ms=LATER_MS) as producer, asyncio.timeout(SOON_S):
            await producer.send_and_wait("t", b"1")
            broker.produce_error = lambda partition, header: ErrorCode.NOT_ENOUGH_REPLICAS
            delivery = await producer.send("t", b"no")
            await cluster.until(lambda: len(broker.produce_requests) > 2)
            refuse(broker, "t")
            with pytest.raises(AuthorizationError):
                await delivery
            broker.produce_error = lambda partition, header: ErrorCode.NONE
            allow(broker)
            await producer.send_and_wait("t", b"2")
        assert cluster.topics["t"].partitions[0].values() == [b"1", b"2"]


async def test_a_refused_producer_id_fails_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = True

    async def init_producer_id(*_: object) -> broker_pb2.InitProducerIdResponse:
        error = to_proto(ErrorCode.CLUSTER_AUTHORIZATION_FAILED if refused else ErrorCode.NONE)
        return broker_pb2.InitProducerIdResponse(error=error, producer_id=-1 if refused else 7, producer_epoch=0)

    monkeypatch.setattr(BrokerDouble, "InitProducerId", init_producer_id)
    async with ClusterDouble() as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap, delivery_timeout_ms=LATER_MS) as producer, asyncio.timeout(SOON_S):
            for _ in range(2):
                with pytest.raises(AuthorizationError, match="no producer id"):
                    await producer.send_and_wait("t", b"no")
            refused = False
            await producer.send_and_wait("t", b"1")
        assert cluster.topics["t"].partitions[0].values() == [b"1"]


async def polled_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.poll(100)


@pytest.mark.parametrize("position", [0, None])
async def test_a_consumer_hears_of_a_refusal_and_of_its_end(position: int | None) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        partition = TopicPartition("t", 0)
        async with (
            Producer(cluster.bootstrap) as producer,
            Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
            asyncio.timeout(SOON_S),
        ):
            await producer.send_and_wait("t", b"1")
            consumer.assign([partition])
            assert [record.value for record in await consumer.poll(2000)] == [b"1"]
            refuse(broker, "t")
            await consumer._cluster.refresh()
            if position is None:
                consumer.assign([])
                consumer.assign([partition])  # where it begins is looked up
            else:
                consumer.seek(partition, position)
            for _ in range(2):
                with pytest.raises(AuthorizationError, match="'t'"):
                    await polled_for_ever(consumer)
            allow(broker)
            found: list[bytes | None] = []
            while not found:
                with suppress(AuthorizationError):
                    found = [record.value for record in await consumer.poll(100)]
            assert found == [b"1"]
