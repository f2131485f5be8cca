"""`df.write.format("highwater")` and `df.writeStream.format("highwater")`: whole columns, at least once.

A task sends its rows and ends when every one is acknowledged. A task that Spark runs again sends them again: the log
may then hold rows twice, and never lacks any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from highwater.client import Producer
from highwater.client.blocking import Producer as BlockingProducer
from highwater.spark.client_settings import client_settings
from highwater.spark.mistakes import OneSentence
from highwater.spark.options import WriteOptions, lower_case, parse_write_options
from highwater.spark.positions import OptionError
from highwater.spark.write_rows import check_write_columns, rows_by_target

# Spark hands over 10,000 rows at a time. Batches of the log come out better when more are cut at once.
SEND_ROWS = 100_000
SEND_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class WritePlan:
    """What every task of a write needs to know; goes to the executors pickled."""

    options: WriteOptions
    columns: frozenset[str]
    producer: dict[str, Any]


@dataclass
class RowsSent(WriterCommitMessage):
    """What one task sent, by topic: all of it acknowledged."""

    rows: dict[str, int] = field(default_factory=dict)


class HighwaterWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._plan = write_plan(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with OneSentence():
            return send_all(self._plan, iterator)


class HighwaterStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._plan = write_plan(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with OneSentence():
            return send_all(self._plan, iterator)


def write_plan(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WritePlan:
    """Raises `OptionError` for what cannot be written, before anything is."""
    if overwrite:
        raise OptionError("a topic cannot be overwritten: use mode append, or output mode append or update")
    parsed = parse_write_options(options)
    types = {one.name: one.dataType.simpleString() for one in schema.fields}
    columns = check_write_columns(types, topic=parsed.topic, include_timestamp=parsed.include_timestamp)
    return WritePlan(parsed, columns, client_settings(lower_case(options), Producer))


def send_all(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> RowsSent:
    """Sends every row; returns when all are acknowledged. Raises the SDK's errors."""
    sent = RowsSent()
    with BlockingProducer(plan.options.bootstrap, **plan.producer) as producer:
        for table in gathered(batches):
            for target in rows_by_target(table, plan.options.topic):
                producer.send_table(
                    target.topic,
                    target.rows,
                    timestamp_column="timestamp" if plan.options.include_timestamp else None,
                    headers_column="headers" if "headers" in plan.columns else None,
                    partition=target.partition,
                    wait=False,
                )
                sent.rows[target.topic] = sent.rows.get(target.topic, 0) + target.rows.num_rows
    return sent


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about `SEND_ROWS` rows, or `SEND_BYTES`."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= SEND_ROWS or size >= SEND_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)
