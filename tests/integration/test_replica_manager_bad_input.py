"""What no client of ours would send: each part gets an error of its own that says what is wrong, and the broker goes
on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from replica_manager_cluster import TestCluster, Topic, rows, to_key

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.records import Record, encode_columns, encode_rows
from highwater.v1 import broker_pb2, common_pb2

HUGE = 2**31 - 1


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as running:
        yield running


def keys_of(topic: Topic) -> tuple[common_pb2.PartitionKey, common_pb2.PartitionKey, common_pb2.PartitionKey]:
    """One whose topic id is too short, one whose partition is negative, and the good one."""
    return (
        common_pb2.PartitionKey(topic_id=b"short"),
        common_pb2.PartitionKey(topic_id=topic.key.topic_id, partition=-1),
        to_key(topic.key),
    )


async def test_produced_parts(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    short, negative, good = keys_of(topic)
    records = rows(b"a")
    response = await cluster[0].stub.Produce(
        broker_pb2.ProduceRequest(
            acks=-1,
            timeout_ms=-5,
            partitions=[
                broker_pb2.ProducePartition(partition=partition, records=sent)
                for partition, sent in (
                    (short, records),
                    (negative, records),
                    (good, b""),
                    (good, b"x" * 100),
                    (good, records[:-1]),
                    (good, records[:-1] + b"!"),
                    (good, records),
                    (good, records),
                )
            ],
        )
    )
    assert [result.error.code for result in response.results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert [result.base_offset for result in response.results[-2:]] == [0, 1]
    assert not (await cluster[0].stub.Produce(broker_pb2.ProduceRequest(acks=-1))).results


async def test_fetched_parts(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    await cluster[0].produce(topic.key, rows(b"a"))
    short, negative, good = keys_of(topic)
    request = broker_pb2.FetchRequest(
        max_wait_ms=HUGE,
        min_bytes=-1,
        max_bytes=HUGE,
        partitions=[
            broker_pb2.FetchPartition(partition=partition, leader_epoch=epoch, fetch_offset=offset, max_bytes=max_bytes)
            for partition, epoch, offset, max_bytes in (
                (short, -1, 0, 1),
                (negative, -1, 0, 1),
                (good, -1, -1, 1),
                (good, 7, -3, 1),
                (good, -1, 2**62, 1),
                (good, -1, 0, -1),
                (good, -1, 0, HUGE),
            )
        ],
    )
    request.consumer.SetInParent()
    response = await cluster[0].stub.Fetch(request, timeout=5)
    assert [result.error.code for result in response.results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert [bool(result.records) for result in response.results] == [False] * 5 + [True] * 2
    assert (await cluster[0].stub.Fetch(broker_pb2.FetchRequest())).error.code == ErrorCode.INVALID_REQUEST


async def test_a_replica_that_is_none(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    short, _, good = keys_of(topic)
    request = broker_pb2.FetchRequest(
        partitions=[
            broker_pb2.FetchPartition(partition=short),
            broker_pb2.FetchPartition(partition=good, leader_epoch=-1, fetch_offset=-3, acked_offset=5),
            broker_pb2.FetchPartition(partition=good, leader_epoch=0, fetch_offset=-3, acked_offset=5),
        ]
    )
    request.replica.broker_id = -7
    call = cluster[0].stub.FetchStream()
    await call.write(request)
    async with asyncio.timeout(5):
        response = await call.read()
    call.cancel()
    assert [result.error.code for result in response.results] == [
        ErrorCode.UNKNOWN_LEADER_EPOCH,  # it may be instructed yet
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_ASSIGNED,
    ]


async def test_bytes_that_are_no_message(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    produce = cluster[0].channel.unary_unary("/highwater.v1.Broker/Produce")
    with pytest.raises(grpc.aio.AioRpcError):
        await produce(b"\xff\xff\xff\x01garbage")
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_internal_topics_are_not_written_by_clients(cluster: TestCluster) -> None:
    internal, topic = await cluster.create_topic("__consumer_offsets"), await cluster.create_topic("_orders")
    refused = (await cluster[0].produce(internal.key, rows(b"a"))).error
    assert (refused.code, refused.retriable) == (ErrorCode.INVALID_TOPIC, False)
    assert "two underscores" in refused.message
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_produced_times(cluster: TestCluster) -> None:
    """Both payloads; and what the topic takes is its configuration, of a topic that is there too."""
    topic = await cluster.create_topic("orders")
    in_two_hours = int(time.time() * 1000) + 7_200_000

    async def produced(*batches: bytes) -> list[int]:
        parts = [broker_pb2.ProducePartition(partition=to_key(topic.key), records=batch) for batch in batches]
        request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=10_000, partitions=parts)
        return [result.error.code for result in (await cluster[0].stub.Produce(request)).results]

    def both(timestamp: int) -> tuple[bytes, bytes]:
        table = pa.table({"timestamp": pa.array([timestamp], pa.int64()), "key": [b"k"], "value": [b"v"]})
        return encode_rows([Record(0, timestamp, b"k", b"v", ())]), encode_columns(table)

    refused = [ErrorCode.INVALID_TIMESTAMP] * 2
    assert await produced(*both(-5)) == refused
    assert await produced(*both(2**62)) == refused
    assert await produced(*both(in_two_hours)) == refused
    assert await produced(*both(-1)) == [ErrorCode.NONE] * 2
    assert await produced(*both(int(time.time() * 1000))) == [ErrorCode.NONE] * 2


async def test_every_refusal_says_what_to_do(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    short, negative, _ = keys_of(topic)
    stub, keys = cluster[0].stub, (short, negative)
    produce = broker_pb2.ProduceRequest(
        acks=-1, partitions=[broker_pb2.ProducePartition(partition=key, records=rows(b"a")) for key in keys]
    )
    fetch = broker_pb2.FetchRequest(partitions=[broker_pb2.FetchPartition(partition=key) for key in keys])
    fetch.consumer.SetInParent()
    list_offsets = broker_pb2.ListOffsetsRequest(
        replica_id=-1, partitions=[broker_pb2.ListOffsetsPartition(partition=key) for key in keys]
    )
    ends = broker_pb2.OffsetForLeaderEpochRequest(partitions=[broker_pb2.EpochPartition(partition=key) for key in keys])
    delete = broker_pb2.DeleteRecordsRequest(
        partitions=[broker_pb2.DeleteRecordsPartition(partition=key) for key in keys]
    )
    for response in (
        await stub.Produce(produce),
        await stub.Fetch(fetch),
        await stub.ListOffsets(list_offsets),
        await stub.OffsetForLeaderEpoch(ends),
        await stub.DeleteRecords(delete),
    ):
        unknown, elsewhere = (result.error for result in response.results)
        assert unknown.code == ErrorCode.UNKNOWN_TOPIC_ID
        assert f"no topic of id {b'short'.hex()}" in unknown.message
        assert elsewhere.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert f"does not lead partition -1 of topic id {topic.key.topic_id.hex()}" in elsewhere.message
        assert "ask for Metadata" in unknown.message
        assert "ask for Metadata" in elsewhere.message
