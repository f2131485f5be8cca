"""Readers that meet a batch which cannot be read: they stop with its offsets and what can be done, or pass over it."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cluster_double import ClusterDouble

import highwater
from highwater.client import Consumer, CorruptRecordError, InvalidRequestError, Scan, TopicPartition
from highwater.client.blocking import Consumer as BlockingConsumer
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.records import Codec, encode_columns, encode_lists, read_header, retain
from highwater.records.header import crc32c
from highwater.records.payload_scan import scan_payload

T0 = TopicPartition("t", 0)
COUNT = 50  # records a batch
CRC_AT = 17
LAST_OFFSET_DELTA_AT = 23


def with_crc(batch: bytes) -> bytes:
    """As a producer that means harm sends it: the CRC is that of what is there."""
    return batch[:CRC_AT] + struct.pack(">I", crc32c(batch[CRC_AT + 4 :])) + batch[CRC_AT + 4 :]


def flipped(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def poisoned(batch: bytes) -> bytes:
    """The CRC is right, the payload cannot be expanded."""
    return with_crc(batch[:-40] + bytes(40))


def lying(batch: bytes) -> bytes:
    """The last offset is not that of the batch, and the CRC tells."""
    return batch[:LAST_OFFSET_DELTA_AT] + struct.pack(">i", 7 * COUNT) + batch[LAST_OFFSET_DELTA_AT + 4 :]


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble(brokers=1) as running:
        running.create("t", 1)
        partition = running.topics["t"].partitions[0]
        for first in range(0, 4 * COUNT, COUNT):
            values = [b"%d" % number for number in range(first, first + COUNT)]
            encoded = encode_lists(list(range(COUNT)), values, values, codec=Codec.LZ4)
            partition.append(read_header(encoded), encoded)
        yield running


def harm(cluster: ClusterDouble, change: Callable[[bytes], bytes], number: int = 1) -> None:
    partition = cluster.topics["t"].partitions[0]
    header, batch = partition.batches[number]
    partition.batches[number] = (header, change(batch))


async def polled(cluster: ClusterDouble, **options: Any) -> tuple[list[int], Consumer]:
    found: list[int] = []
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([T0])
        while not found or found[-1] < 4 * COUNT - 1:
            found += [record.offset for record in await consumer.poll(2000, max_records=30)]
    return found, consumer


async def by_tables(cluster: ClusterDouble, **options: Any) -> tuple[list[int], Consumer]:
    found: list[int] = []
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([T0])
        while not found or found[-1] < 4 * COUNT - 1:
            found += (await consumer.poll_table(2000, max_records=30))["offset"].to_pylist()
    return found, consumer


async def iterated(cluster: ClusterDouble, **options: Any) -> tuple[list[int], Consumer]:
    found: list[int] = []
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([T0])
        async for record in consumer:
            found.append(record.offset)
            if record.offset == 4 * COUNT - 1:
                break
    return found, consumer


async def scanned(cluster: ClusterDouble, **options: Any) -> tuple[list[int], Scan]:
    async with Scan("t", bootstrap=cluster.bootstrap, **options) as scan:
        return (await scan.to_table())["offset"].to_pylist(), scan


async def scanned_by_headers(cluster: ClusterDouble, **options: Any) -> tuple[list[int], Scan]:
    return await scanned(cluster, columns=["offset"], **options)


READERS = [polled, by_tables, iterated, scanned, scanned_by_headers]


@pytest.mark.parametrize("change", [flipped, poisoned])
@pytest.mark.parametrize(
    ("read", "number"),
    [*((read, number) for read in READERS for number in (0, 1)), (scanned, 3), (scanned_by_headers, 3)],
)
async def test_a_batch_is_passed_over_whole_and_said_once(
    cluster: ClusterDouble, read: Any, change: Any, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    harm(cluster, change, number)
    first, last = number * COUNT, (number + 1) * COUNT - 1
    if change is poisoned and read is scanned_by_headers:  # which need no payload
        found, reader = await read(cluster)
        assert found == list(range(4 * COUNT))
        return
    with pytest.raises(CorruptRecordError) as refused:
        await read(cluster)
    said = str(refused.value)
    assert said.startswith(f"t-0 at offset {first}: ")
    assert f"to go on without offsets {first} to {last}" in said
    assert f'set on_corrupt to "skip", or seek to {last + 1}' in said
    found, reader = await read(cluster, on_corrupt="skip")
    assert found == [offset for offset in range(4 * COUNT) if not first <= offset <= last]
    assert reader.passed_over == (1, COUNT)
    told = [each.getMessage() for each in caplog.records if "passed over" in each.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"t-0: offsets {first} to {last} cannot be read and are passed over: ")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("on_corrupt", ["error", "skip"])
async def test_nobody_passes_over_what_does_not_say_where_it_ends(
    cluster: ClusterDouble, read: Any, on_corrupt: str
) -> None:
    """A flipped bit in the last offset: the good records behind the batch are not lost with it."""
    harm(cluster, lying)
    with pytest.raises(CorruptRecordError) as refused:
        await read(cluster, on_corrupt=on_corrupt)
    assert "t-0 at offset 50: " in str(refused.value)
    assert "its header cannot be trusted" in str(refused.value)
    assert "seek to the offset of the next batch" in str(refused.value)


async def test_compaction_leaves_a_damaged_batch_without_a_number_that_agrees(cluster: ClusterDouble) -> None:
    harm(cluster, lambda batch: flipped(retain(batch, 0, np.arange(COUNT) % 5 == 0)))
    with pytest.raises(CorruptRecordError, match="its header cannot be trusted"):
        await scanned(cluster, on_corrupt="skip")
    async with Consumer(bootstrap=cluster.bootstrap) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2 * COUNT)
        assert (await consumer.poll(2000))[0].offset == 2 * COUNT


def test_batches_that_overlap_are_not_both_believed() -> None:
    batches = b"".join(encode_columns(pa.table({"value": [b"x"] * 10}), base_offset=base) for base in (100, 105))
    buffer = FetchBuffer(T0, lambda _: None)
    buffer.seek(100)
    buffer.accept(batches, 200, 0)
    records, _ = buffer.current()
    assert [record.offset for record in records] == list(range(100, 110))
    buffer.handed_out(10)
    with pytest.raises(CorruptRecordError, match="begins at 105, in a batch that ends at 109"):
        buffer.current()


async def test_the_blocking_twins_have_it_too(cluster: ClusterDouble) -> None:
    harm(cluster, poisoned)

    def read() -> None:
        scan = highwater.scan("t", bootstrap=cluster.bootstrap, on_corrupt="skip")
        assert pa.table(scan).num_rows == 3 * COUNT
        assert scan.passed_over == (1, COUNT)
        with BlockingConsumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest", on_corrupt="skip") as one:
            found = 0
            while found < 3 * COUNT:
                found += len(one.poll(2000))
            assert one.passed_over == (1, COUNT)

    await asyncio.to_thread(read)


def test_what_on_corrupt_can_be() -> None:
    for made in (lambda: Consumer(on_corrupt="ignore"), lambda: Scan("t", on_corrupt="ignore")):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="on_corrupt is 'ignore'; it can be error or skip"):
            made()


def test_values_that_no_append_expands_are_an_error_with_offsets() -> None:
    """The hole in the check of appends: the blocks of an lz4 frame that hold values alone (`payload_scan`)."""
    values = [b"%d, and so on. " % number * 60 for number in range(8000)]
    sound = encode_lists([5] * len(values), None, values, base_offset=1000, codec=Codec.LZ4)
    header = read_header(sound)
    batch = with_crc(sound[: len(sound) // 2] + bytes(300) + sound[len(sound) // 2 + 300 :])
    buffer = FetchBuffer(T0, lambda _: None)
    buffer.seek(1000)
    buffer.accept(batch, 9000, 0)
    scan_payload(batch, 0, header, max_payload_bytes=1 << 28)  # takes it
    fetched = buffer.take_encoded()
    assert fetched is not None
    with pytest.raises(CorruptRecordError, match="t-0 at offset 1000: .*without offsets 1000 to 8999"):
        buffer.decoded(fetched[0])


@pytest.mark.parametrize("behind", [0, 1], ids=["alone", "with one behind it"])
async def test_a_batch_of_what_was_before_is_an_error(behind: int) -> None:
    """The base offset is not in the CRC: damaged, the batch was left out, and its records skipped, or asked for 4,000
    times a second."""
    async with ClusterDouble(brokers=1) as cluster:
        partition = cluster.create("t", 1).partitions[0]
        for _ in range(2 + behind):
            encoded = encode_lists([0] * 10, None, [b"v"] * 10)
            partition.append(read_header(encoded), encoded)
        header, batch = partition.batches[1]
        partition.batches[1] = (header, struct.pack(">q", 0) + batch[8:])
        async with Consumer(bootstrap=cluster.bootstrap) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 10)
            with pytest.raises(CorruptRecordError, match="t-0 at offset 10: .*ends at 9, below the offset"):
                await consumer.poll(5000)
            assert len(cluster.brokers[1].fetch_requests) < 10
