"""Few rows of tables share batches with those that come after them; partitions that wait cost the sender nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest
from cluster_double import ClusterDouble, Fault

from highwater.client import DeliveryTimeoutError, Producer
from highwater.client.producer.accumulator import PartitionAccumulator
from highwater.client.producer.sender import SMALL_CHUNK_BYTES
from highwater.client.producer.table_batches import together
from highwater.records import decode


def table_of(*values: bytes, **columns: Any) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary()), **columns})


async def held_back(cluster: ClusterDouble, producer: Producer) -> asyncio.Event:
    """As many batches as may are under way and not answered before the event."""
    release = asyncio.Event()
    cluster.brokers[1].before_answer = release.wait
    for number in range(5):
        await producer.send("t", b"before-%d" % number, partition=0)
        await cluster.until(lambda count=number + 1: len(cluster.brokers[1].produce_requests) == count)  # type: ignore[misc]
    return release


async def test_tables_that_wait_share_a_batch_and_each_knows_its_rows() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            release = await held_back(cluster, producer)
            first = await producer.send_table("t", table_of(b"a", b"b"))
            second = await producer.send_table("t", table_of(b"c"))
            release.set()
            places = [await first, await second]
        partition = cluster.topics["t"].partitions[0]
        assert len(partition.batches) == 6
        assert partition.values()[5:] == [b"a", b"b", b"c"]
    assert [(place.records, [(b.base_offset, b.records) for b in place.batches]) for place in places] == [
        (2, [(5, 2)]),
        (1, [(7, 1)]),
    ]


async def test_records_and_tables_keep_their_order() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            release = await held_back(cluster, producer)
            await producer.send_table("t", table_of(b"1"))
            await producer.send("t", b"2", partition=0)
            await producer.send_table("t", table_of(b"3", b"4"))
            await producer.send_table("t", table_of(b"x" * SMALL_CHUNK_BYTES))
            await producer.send_table("t", table_of(b"6"))
            await producer.send("t", b"7", partition=0)
            release.set()
            await producer.flush()
        values = cluster.topics["t"].partitions[0].values()[5:]
        assert values == [b"1", b"2", b"3", b"4", b"x" * SMALL_CHUNK_BYTES, b"6", b"7"]


async def test_rows_with_headers_share_a_batch_with_rows_without() -> None:
    pair = pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())])
    headers = pa.array([[{"key": "h", "value": b"1"}]], pa.list_(pair))
    async with ClusterDouble() as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            release = await held_back(cluster, producer)
            await producer.send_table("t", table_of(*[b"plain"] * 20))
            await producer.send_table("t", table_of(b"with", headers=headers), headers_column="headers")
            release.set()
            await producer.flush()
        batch = decode(cluster.topics["t"].partitions[0].batches[-1][1])
    assert [(record.value, tuple(record.headers)) for record in batch.records()] == [
        *[(b"plain", ())] * 20,
        (b"with", (("h", b"1"),)),
    ]


async def test_a_table_whose_rows_were_given_up_says_so_and_others_do_not() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 2)
        cluster.brokers[1].fault = lambda request: (
            Fault.CUT_BEFORE if any(part.partition.partition == 0 for part in request.partitions) else None
        )
        async with Producer(
            cluster.bootstrap, retry_backoff_ms=1, request_timeout_ms=300, delivery_timeout_ms=400
        ) as producer:
            lost = await producer.send_table("t", table_of(b"a"), partition=0)
            also_lost = await producer.send_table("t", table_of(b"b"), partition=0)
            for delivery in (lost, also_lost):
                with pytest.raises(DeliveryTimeoutError):
                    await delivery
            cluster.brokers[1].fault = lambda request: None
            assert (await (await producer.send_table("t", table_of(b"c"), partition=1))).records == 1


async def test_many_small_tables_lose_nothing_and_keep_their_order_when_responses_are_lost() -> None:
    chance = random.Random(11)
    faults = [None, None, None, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.REPEAT]
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t", 7)
        for broker in cluster.brokers.values():
            broker.fault = lambda request: chance.choice(faults)
        sent: dict[int, list[bytes]] = {partition: [] for partition in range(7)}
        async with Producer(
            cluster.bootstrap, batch_size=2_000, retry_backoff_ms=1, retry_backoff_max_ms=5, linger_ms=1
        ) as producer:
            deliveries = []
            for number in range(400):
                partition = chance.randrange(7)
                values = [b"%d-%d" % (number, row) for row in range(chance.randint(1, 40))]
                sent[partition] += values
                deliveries.append(
                    (partition, values, await producer.send_table("t", table_of(*values), partition=partition))
                )
            for partition, values, delivery in deliveries:
                place = await delivery
                stored = cluster.topics["t"].partitions[partition].values()
                found = [stored[b.base_offset + row] for b in place.batches for row in range(b.records)]
                assert found == values
        assert {number: log.values() for number, log in enumerate(cluster.topics["t"].partitions)} == sent


async def test_partitions_that_wait_for_an_answer_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = 400
    monkeypatch.setattr("highwater.client.cluster.cluster.SILENT_AFTER_S", 60.0)  # a refresh has all looked at
    async with ClusterDouble() as cluster:
        cluster.create("t", waiting + 1)
        broker = cluster.brokers[1]
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"warm", partition=waiting)
            release = asyncio.Event()
            broker.before_answer = release.wait
            for partition in range(waiting):
                await producer.send("t", b"waits", partition=partition)
            await cluster.until(lambda: sum(len(each.partitions) for each in broker.produce_requests) == waiting + 1)
            looked: list[int] = []
            due = producer._sender._open_batch_due

            def noted(accumulator: PartitionAccumulator, now_ms: float) -> bool:
                looked.append(accumulator.queue.partition)
                return due(accumulator, now_ms)

            monkeypatch.setattr(producer._sender, "_open_batch_due", noted)
            broker.before_answer = None
            await producer.send_and_wait("t", b"lone", partition=waiting)
            assert set(looked) == {waiting}
            release.set()


def test_batches_are_put_together_without_what_they_were_cut_from() -> None:
    schema = pa.schema([("timestamp", pa.int64()), ("value", pa.binary())])
    parts = [pa.record_batch([[n], [b"%d" % n]], schema=schema) for n in range(3)]
    assert together(parts).to_pydict() == {"timestamp": [0, 1, 2], "value": [b"0", b"1", b"2"]}
    assert together(parts[:1]) is parts[0]
