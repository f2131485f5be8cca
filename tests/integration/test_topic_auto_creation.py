"""`auto.create.topics.enable` (RULES 9.1): a topic that a producer asks for comes into being, where that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from etcd_proxy import until
from replica_manager_cluster import TestCluster, Trio

from highwater.client import Consumer, Producer, TopicPartition, UnknownTopicError
from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.topics import read_topics
from highwater.metadata.store.store import Store
from highwater.v1 import broker_pb2


@asynccontextmanager
async def running(
    etcd: LocalEtcd, store: Store, keys: Keys, directory: Path, *, replication_factor: int = 1, **settings: str
) -> AsyncIterator[Trio]:
    """One broker, and a controller that has told it of all topics (RULES 9.4)."""
    controller = ControllerService(
        ControllerSettings(
            controller_id=0,
            cluster=keys.cluster,
            listen=["127.0.0.1:0"],
            advertised_listener="127.0.0.1:0",
            etcd=[etcd.address],
            num_partitions=3,
            default_replication_factor=replication_factor,
        )
    )
    await controller.start()
    try:
        async with TestCluster(store, keys, etcd.address, directory, brokers=1, settings=settings) as cluster:
            replica_manager = cluster[0].replica_manager
            assert replica_manager is not None
            await until(lambda: replica_manager.replica_manager.metadata.complete)
            yield cluster[0]
    finally:
        await controller.stop()


@pytest.fixture
async def creating(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[Trio]:
    async with running(etcd, store, keys, tmp_path, **{"auto.create.topics.enable": "true"}) as broker:
        yield broker


async def asked(broker: Trio, topic: str, *, allowed: bool = True) -> broker_pb2.TopicMetadata:
    response = await broker.stub.Metadata(
        broker_pb2.MetadataRequest(topics=[topic], allow_auto_topic_creation=allowed), timeout=10
    )
    (found,) = response.topics
    return found


async def names(store: Store, keys: Keys) -> set[str]:
    return {topic.assignment.topic for topic in (await read_topics(store, keys)).topics.values()}


async def test_a_producers_topic_comes_into_being_with_the_clusters_defaults(
    creating: Trio, store: Store, keys: Keys
) -> None:
    address = creating._socket("rm")
    async with Producer(bootstrap=address) as producer:
        sent = await producer.send("orders", b"first", partition=2)
        assert (await sent).offset == 0
    async with Consumer(bootstrap=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 2)])
        async for record in consumer:
            assert record.value == b"first"
            break
    (topic,) = (await read_topics(store, keys)).topics.values()
    assert (topic.assignment.topic, len(topic.assignment.replicas)) == ("orders", 3)


async def test_many_who_ask_at_once_get_one_topic(creating: Trio, store: Store, keys: Keys) -> None:
    answers = await asyncio.gather(*(asked(creating, "orders") for _ in range(20)))
    assert {(answer.error.code, answer.topic_id) for answer in answers} == {(0, answers[0].topic_id)}
    assert await names(store, keys) == {"orders"}


async def test_who_does_not_allow_it_makes_no_topic(creating: Trio, store: Store, keys: Keys) -> None:
    assert (await asked(creating, "orders", allowed=False)).error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await names(store, keys) == set()


async def test_an_illegal_name_is_refused(creating: Trio) -> None:
    refused = (await asked(creating, "../orders")).error
    assert (refused.code, refused.retriable) == (ErrorCode.INVALID_TOPIC, False)
    assert "illegal topic name" in refused.message


async def test_a_reserved_name_is_refused(creating: Trio, store: Store, keys: Keys) -> None:
    refused = (await asked(creating, "__orders")).error
    assert (refused.code, refused.retriable) == (ErrorCode.INVALID_TOPIC, False)
    assert "reserved" in refused.message
    assert await names(store, keys) == set()


async def test_what_the_controller_refuses_is_told(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "true"}
    async with running(etcd, store, keys, tmp_path, replication_factor=3, **settings) as broker:
        refused = (await asked(broker, "orders")).error
    assert refused.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "start more brokers" in refused.message


async def test_it_is_off_unless_set(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> None:
    async with running(etcd, store, keys, tmp_path) as broker:
        async with Producer(bootstrap=broker._socket("rm")) as producer:
            with pytest.raises(UnknownTopicError):
                await producer.send("orders", b"first")
        assert await names(store, keys) == set()
