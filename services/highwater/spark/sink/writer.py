"""`df.write.format("highwater")` and `df.writeStream.format("highwater")`: whole columns, at least once.

A task sends its rows and ends when every one is acknowledged; its commit message says where they stand. A task that
Spark runs again sends them again: the log may then hold rows twice, and never lacks any.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from highwater.client.blocking import Producer as BlockingProducer
from highwater.client.producer.delivery import BatchMetadata, TableDelivery, TableMetadata
from highwater.spark.errors import OptionError, ShortTraceback
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import WriteOptions, lower_case, parse_write_options
from highwater.spark.sink.task_writes import RangesWritten, WrittenRange, left_behind
from highwater.spark.sink.write_rows import Target, check_write_columns, gathered, rows_by_target
from highwater.spark.worker.worker_process import prepare_worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write, which each of its tasks gets; goes to the executors pickled."""

    options: WriteOptions
    columns: frozenset[str]
    producer: dict[str, Any]


@dataclass
class TaskWritten(WriterCommitMessage):
    """The ranges that one task wrote, all of them acknowledged, and its producer id: -1 where it had none."""

    ranges: tuple[WrittenRange, ...]
    producer_id: int


class TableProducer(BlockingProducer):
    """A producer that hands out the outcome of tables later, in a task's own thread."""

    def begin_table(self, plan: WritePlan, target: Target) -> TableDelivery:
        """Returns when all of it is in the producer's buffer."""
        return self._run(
            lambda: self._client.send_table(
                target.topic,
                target.rows,
                timestamp_column="timestamp" if plan.options.include_timestamp else None,
                headers_column="headers" if "headers" in plan.columns else None,
                partition=target.partition,
            )
        )

    def settled(self, delivery: TableDelivery) -> tuple[BatchMetadata, ...]:
        """Waits for it. Raises its first failure."""

        async def outcome() -> TableMetadata:
            return await delivery

        return self._run(outcome).batches

    def producer_id(self) -> int:
        return self._call(lambda: self._client.producer_id)


class HighwaterWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._plan = write_plan(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with ShortTraceback():
            return send_all(self._plan, iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        warn_of_what_stays("the write", messages)


class HighwaterStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._plan = write_plan(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with ShortTraceback():
            return send_all(self._plan, iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        warn_of_what_stays(f"micro-batch {batchId}", messages)


def write_plan(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WritePlan:
    """Raises `OptionError` for what cannot be written, before anything is."""
    if overwrite:
        raise OptionError(
            "a topic cannot be overwritten: use mode append, and output mode append in a stream; for output modes "
            "update and complete write each micro-batch by foreachBatch (docs/spark.md#writing)"
        )
    parsed = parse_write_options(options)
    types = {one.name: one.dataType.simpleString() for one in schema.fields}
    columns = check_write_columns(types, topic=parsed.topic, include_timestamp=parsed.include_timestamp)
    return WritePlan(parsed, columns, client_settings(lower_case(options), "Producer"))


def send_all(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Sends every row; returns when all are acknowledged. Raises the SDK's errors."""
    prepare_worker()
    written = RangesWritten()
    unsettled: deque[TableDelivery] = deque()  # small, and no longer held than the oldest of them may take
    with TableProducer(plan.options.bootstrap, **plan.producer) as producer:
        for table in gathered(batches):
            for target in rows_by_target(table, plan.options.topic):
                unsettled.append(producer.begin_table(plan, target))
                while unsettled and unsettled[0].done():
                    written.add(producer.settled(unsettled.popleft()))
        for delivery in unsettled:
            written.add(producer.settled(delivery))
        return TaskWritten(written.ranges(), producer.producer_id())


def warn_of_what_stays(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Logs the records that a failed write left. Nothing is taken back: readers of the topic see them."""
    if left := left_behind([one.ranges if isinstance(one, TaskWritten) else None for one in messages]):
        logger.warning("%s failed, and these of its tasks' records stay: %s", what, left)
