"""Times that are none: refused where they are sent, survived where they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cluster_double import ClusterDouble

from highwater.cli.consume import _fields
from highwater.client import Consumer, InvalidTimestampError, Producer, blocking
from highwater.client.producer.table_batches import TableColumns, normalised
from highwater.errors import ErrorCode
from highwater.records import Record, decode, encode_columns, encode_rows, iter_batches
from highwater.spark.source.columns import arrow_schema, read_columns

STORED = [-5, 2**62, -(2**62), -1, 1_700_000_000_000]
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_000, tzinfo=UTC)
SHOWN = [
    datetime(1969, 12, 31, 23, 59, 59, 995_000, tzinfo=UTC),
    LAST,
    FIRST,
    datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
]


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble() as running:
        running.create("t", 1)
        yield running


@pytest.mark.parametrize(
    "wrong", [-5, -2, 2**62, 2**70, 253_402_214_400_000, 1.5, "1", datetime(2024, 1, 1, tzinfo=UTC)]
)
async def test_send_refuses_what_is_no_time(cluster: ClusterDouble, wrong: Any) -> None:
    async with Producer(cluster.bootstrap) as producer:
        with pytest.raises(InvalidTimestampError, match="timestamp_ms"):
            await producer.send("t", b"v", timestamp_ms=wrong)
        with pytest.raises(ValueError, match="timestamp_ms"):
            await producer.send("t", b"v", timestamp_ms=wrong)
        await producer.send_and_wait("t", b"after", timestamp_ms=-1)
        await producer.send_and_wait("t", b"numpy's", timestamp_ms=np.int64(7))  # type: ignore[arg-type]
    assert cluster.topics["t"].partitions[0].values() == [b"after", b"numpy's"]


async def test_the_blocking_send_refuses_it_at_once(cluster: ClusterDouble) -> None:
    def send() -> None:
        with blocking.Producer(cluster.bootstrap) as producer:
            with pytest.raises(InvalidTimestampError) as refused:
                producer.send("t", b"v", timestamp_ms=-5)
            assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
            producer.send("t", b"v", timestamp_ms=0)

    await asyncio.to_thread(send)
    assert cluster.topics["t"].partitions[0].values() == [b"v"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, -5], pa.int64()),
        pa.array([0, 2**62], pa.int64()),
        pa.array([0, 2**62], pa.timestamp("ms")),
        pa.array([0, -(2**50)], pa.timestamp("us")),
        pa.array([0, -1], pa.timestamp("ns")),
        pa.array([0, -3], pa.timestamp("s", tz="UTC")),
        pa.array([-300], pa.date32()),
    ],
)
async def test_a_table_with_what_is_no_time_is_refused_whole(cluster: ClusterDouble, column: pa.Array) -> None:
    table = pa.table({"value": ["v"] * len(column), "at": column})
    async with Producer(cluster.bootstrap) as producer:
        with pytest.raises(InvalidTimestampError, match="column 'at' has the timestamp"):
            await producer.send_table("t", table, timestamp_column="at")
    assert cluster.topics["t"].partitions[0].end_offset == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**61 + 1], pa.timestamp("s")),  # in ms it would leave 64 bits, and come out as another time
        pa.array([2**63 + 1], pa.uint64()),
        pa.array([None], pa.timestamp("ms")),
        pa.array(["today"]),
    ],
)
def test_a_column_that_holds_no_times_is_refused(column: pa.Array) -> None:
    table = pa.table({"value": ["v"], "at": column})
    with pytest.raises(InvalidTimestampError, match="column 'at'"):
        normalised(table, TableColumns(timestamp="at"))


def _rows(timestamps: list[int]) -> bytes:
    return encode_rows([Record(0, timestamp, b"k", b"v", ()) for timestamp in timestamps])


def _columns(timestamps: list[int]) -> bytes:
    return encode_columns(pa.table({"timestamp": pa.array(timestamps, pa.int64()), "value": ["v"] * len(timestamps)}))


@pytest.mark.parametrize("encode", [_rows, _columns])
async def test_readers_survive_what_is_stored(cluster: ClusterDouble, encode: Callable[[list[int]], bytes]) -> None:
    batch = encode(STORED)
    ((_, header),) = iter_batches(batch)
    cluster.topics["t"].partitions[0].append(header, batch)
    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        table = await consumer.poll_table()
        assert [row["timestamp"] for row in table.to_pylist()] == SHOWN
        consumer.seek(("t", 0), 0)
        records = await consumer.poll()
        assert [record.timestamp_ms for record in records] == STORED
        consumer.seek(("t", 0), 0)
        half = await consumer.poll(max_records=1)  # the others are handed out as a table of records
        table = await consumer.poll_table()
        assert [record.timestamp_ms for record in half] == STORED[:1]
        assert table.column("timestamp").to_pylist() == SHOWN[1:]
    assert [_fields(record)["timestamp"] for record in records] == STORED


@pytest.mark.parametrize("encode", [_rows, _columns])
def test_spark_shows_the_nearest_date(encode: Callable[[list[int]], bytes]) -> None:
    columns = ("offset", "timestamp")
    found = read_columns(decode(encode(STORED)), "t", 0, 0, len(STORED), columns)
    assert found.schema == arrow_schema(columns)
    assert found.column("timestamp").to_pylist() == SHOWN


async def test_a_column_of_times_that_can_be_shown_is_not_copied(cluster: ClusterDouble) -> None:
    async with Producer(cluster.bootstrap) as producer:
        await (await producer.send_table("t", pa.table({"value": ["v"] * 50})))
    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        (batch,) = await consumer.poll_batches()
    addresses = [batch.column(name).buffers()[1].address for name in ("timestamp", "value")]
    assert abs(addresses[1] - addresses[0]) < 4096  # of one message
