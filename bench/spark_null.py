"""A Python source and a Python sink that do nothing: what Spark's Python data sources cost by themselves.

The source hands out the same batch of the columns of a topic again and again; the sink drops what it gets. No source
or sink in Python, on this machine and this Spark, is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench.events import event_table
from bench.work import PARTITIONS

BATCH_ROWS = 10_000
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass
class Rows(InputPartition):
    value: int


class NullSource(DataSource):
    """Option `rows`: how many, over all partitions."""

    @classmethod
    def name(cls) -> str:
        return "null"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return NullReader(int(self.options["rows"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NullStreamReader(int(self.options["rows"]))

    def writer(self, schema: StructType, overwrite: bool) -> NullWriter:
        return NullWriter()


class NullReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return cut(self._rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return batches(partition.value)


class NullStreamReader(DataSourceStreamReader):
    """One micro-batch."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return cut(end["rows"] - start["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return batches(partition.value)


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def cut(rows: int) -> list[InputPartition]:
    return [Rows(rows * (number + 1) // PARTITIONS - rows * number // PARTITIONS) for number in range(PARTITIONS)]


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    whole = batch(min(rows, BATCH_ROWS))
    for start in range(0, rows, BATCH_ROWS):
        yield whole.slice(0, min(rows - start, BATCH_ROWS))


@cache
def batch(rows: int) -> pa.RecordBatch:
    table = event_table(rows).combine_chunks()
    columns = {
        "key": table.column("key").chunk(0),
        "value": table.column("value").chunk(0),
        "topic": pa.repeat("bench-spark-read", rows),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * rows, pa.int64()).view(_TIMESTAMP),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), rows),
    }
    return pa.RecordBatch.from_pydict(columns)
