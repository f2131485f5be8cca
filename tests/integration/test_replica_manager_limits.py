"""Limits of one broker: bytes of a fetch, with and without the tail cache; requests that wait; sizes of batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from replica_manager_cluster import TestCluster, Topic, eventually, fetch_request, rows, to_key

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.metadata.store.store import Store
from highwater.records import Codec, encode_columns, iter_batches
from highwater.v1 import broker_pb2, common_pb2


@pytest.fixture(params=["0", "67108864"], ids=["log-storage", "tail-cache"])
async def cluster(
    request: pytest.FixtureRequest, etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> AsyncIterator[TestCluster]:
    settings = {"tail.cache.bytes": request.param, "queued.max.requests": "2"}
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1, settings=settings) as running:
        yield running


def columns(*values: bytes) -> bytes:
    table = pa.table(
        {
            "timestamp": pa.array([1000] * len(values), pa.int64()),
            "key": pa.array([b"k"] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    return encode_columns(table, codec=Codec.NONE)


async def test_the_first_batch_comes_whole_and_the_others_within_the_limit(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    size = len(rows(b"x" * 1000))
    for _ in range(5):
        await cluster[0].produce(topic.key, rows(b"x" * 1000))

    async def batches(max_bytes: int, offset: int = 0) -> list[int]:
        records = (await cluster[0].fetch(topic.key, offset, max_bytes=max_bytes)).records
        return [header.base_offset for _, header in iter_batches(records)]

    assert await batches(1) == [0]
    assert await batches(2 * size) == [0, 1]
    assert await batches(3 * size - 1, offset=2) == [2, 3]
    assert await batches(100 * size) == [0, 1, 2, 3, 4]


async def test_a_fetch_that_asks_for_more_than_there_is_waits_its_time_and_takes_what_there_is(
    cluster: TestCluster,
) -> None:
    topic = await cluster.create_topic("orders")
    await cluster[0].produce(topic.key, rows(b"a"))
    started = time.monotonic()
    fetched = await cluster[0].fetch(topic.key, 0, max_wait_ms=300, min_bytes=100_000)
    assert time.monotonic() - started >= 0.29
    assert len(list(iter_batches(fetched.records))) == 1


async def test_a_fetch_waits_until_enough_bytes_are_there(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    need = 3 * len(rows(b"x" * 1000))
    waiting = asyncio.create_task(cluster[0].fetch(topic.key, 0, max_wait_ms=20_000, min_bytes=need))
    for _ in range(3):
        await cluster[0].produce(topic.key, rows(b"x" * 1000))
    async with asyncio.timeout(5):
        assert len((await waiting).records) >= need


async def test_a_reader_of_rows_is_told_where_columns_begin(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    await cluster[0].produce(topic.key, rows(b"a"))
    await cluster[0].produce(topic.key, columns(b"b", b"c"))
    before = await cluster[0].fetch(topic.key, 0)
    assert [header.base_offset for _, header in iter_batches(before.records)] == [0]
    assert (await cluster[0].fetch(topic.key, 1)).error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    both = await cluster[0].fetch(topic.key, 0, columns=True)
    assert [header.base_offset for _, header in iter_batches(both.records)] == [0, 1]


async def test_a_topic_of_rows_takes_no_columns(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", config={"payload.format": "rows"})
    refused = await cluster[0].produce(topic.key, columns(b"a"))
    assert refused.error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_a_batch_above_the_topics_limit_is_refused(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", config={"max.message.bytes": "2000"})
    assert (await cluster[0].produce(topic.key, rows(b"x" * 3000))).error.code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await cluster[0].produce(topic.key, rows(b"x" * 1000))).error.code == ErrorCode.NONE


async def test_what_waits_for_followers_is_not_under_way_in_log_storage(cluster: TestCluster) -> None:
    """A thousand producers with acks=all wait in normal work, each for a while."""
    topic = await unreplicated(cluster)
    streams = []
    for count in (2, 4, 6, 8):
        for _ in range(2):
            streams.append(cluster[0].stub.ProduceStream())
            await streams[-1].write(produce_request(topic))
        await produces_wait(cluster, count)
    await cluster[0].stop_replica_manager()


async def test_a_unary_produce_counts_until_it_is_answered(cluster: TestCluster) -> None:
    """gRPC holds the records of its request until then, so they are bounded as what is under way."""
    topic = await unreplicated(cluster)

    async def error(timeout_ms: int) -> common_pb2.Error:
        response = await cluster[0].stub.Produce(produce_request(topic, timeout_ms=timeout_ms))
        found: common_pb2.Error = response.results[0].error
        return found

    waiting = [asyncio.create_task(error(500)) for _ in range(2)]
    await produces_wait(cluster, 2)
    refused = await error(500)
    assert (refused.code, refused.retriable) == (ErrorCode.OVERLOADED, True)
    assert [found.code for found in await asyncio.gather(*waiting)] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert (await error(500)).code != ErrorCode.OVERLOADED


async def test_one_request_is_answered_partition_by_partition(cluster: TestCluster) -> None:
    topic, missing = await cluster.create_topic("orders"), await cluster.create_topic("other", instruct=False)
    response = await cluster[0].stub.Produce(
        broker_pb2.ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            partitions=[
                broker_pb2.ProducePartition(partition=to_key(missing.key), records=rows(b"a")),
                broker_pb2.ProducePartition(partition=to_key(topic.key), records=rows(b"b")),
            ],
        )
    )
    assert [result.error.code for result in response.results] == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]


async def test_a_replica_may_not_fetch_without_a_stream(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    request = fetch_request(topic.key, 0)
    request.replica.broker_id = 1
    assert (await cluster[0].stub.Fetch(request)).error.code == ErrorCode.INVALID_REQUEST


async def unreplicated(cluster: TestCluster) -> Topic:
    """A topic whose second in-sync replica does not exist: nothing is committed before that has left the ISR."""
    topic = await cluster.create_topic("orders", instruct=False)
    state = PartitionState(0, 0, cluster[0].broker_epoch, (0, 1))
    revision = await cluster.store.put(cluster.keys.state("orders", 0), state.to_json())
    topic = Topic(topic.name, topic.key, (0, 1), {}, VersionedState(state, revision))
    await cluster.instruct(0, topic)
    return topic


def produce_request(topic: Topic, *, timeout_ms: int = 60_000) -> broker_pb2.ProduceRequest:
    part = broker_pb2.ProducePartition(partition=to_key(topic.key), records=rows(b"a"))
    return broker_pb2.ProduceRequest(acks=-1, timeout_ms=timeout_ms, partitions=[part])


async def produces_wait(cluster: TestCluster, count: int) -> None:
    """For followers, and nothing else than `count` of them."""
    manager = cluster[0].replica_manager
    assert manager is not None
    purgatory = manager.replica_manager.purgatory.produces

    async def all_wait() -> bool:
        return len(purgatory) == count

    await eventually(all_wait, f"{count} produces wait")
