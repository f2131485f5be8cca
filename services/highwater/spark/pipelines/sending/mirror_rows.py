"""A task of `mirror`: copies the records of one partition into the target's, in order, passing over those that an
earlier run of the task has brought there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from highwater.client.blocking import Producer
from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.data_source_options import Subscription
from highwater.spark.sink.write_rows import gathered
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import ReadPlan

COPIED_SCHEMA = "topic string, partition int, sent bigint, there bigint"
_COMPARED = ("key", "value", "timestamp", "headers")
_COMPARED_AT_ONCE = 1000  # rows
_POLL_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """The plan of a mirror, which each of its tasks gets; goes to the executors pickled."""

    bootstrap: tuple[str, ...]
    producer: dict[str, Any]


Copying = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def copying(plan: MirrorPlan, noted: Mapping[TopicPartition, int]) -> Copying:
    """A function for `mapInArrow` that copies a task's rows to the target. `noted` is where the target ended before the
    micro-batch was written for the first time."""

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        copied = _copy(plan, noted, batches)
        if copied is not None:
            yield copied

    return copy


def _copy(
    plan: MirrorPlan, noted: Mapping[TopicPartition, int], batches: Iterator[pa.RecordBatch]
) -> pa.RecordBatch | None:
    tables = gathered(batches)
    first = next(tables, None)
    if first is None:
        return None
    # One task reads one partition: nothing cuts or joins them between the source and here.
    partition = TopicPartition(first.column("topic")[0].as_py(), first.column("partition")[0].as_py())
    there = AlreadyThere(target_rows(plan, partition, noted[partition]))
    sent = 0
    with Producer(plan.bootstrap, **plan.producer) as producer:
        for table in chain([first], tables):
            rows = there.passed_over(table)
            if rows.num_rows:
                producer.send_table(
                    partition.topic,
                    rows,
                    timestamp_column="timestamp",
                    headers_column="headers",
                    partition=partition.partition,
                    wait=False,
                )
                sent += rows.num_rows
    return pa.RecordBatch.from_pydict(
        {
            "topic": [partition.topic],
            "partition": pa.array([partition.partition], pa.int32()),
            "sent": [sent],
            "there": [there.count],
        }
    )


class AlreadyThere:
    """Passes over the longest beginning of the rows that stands, in its order, among those of the target."""

    def __init__(self, target: Iterator[pa.RecordBatch]) -> None:
        rows = (row for batch in target for row in _rows(batch))
        first = list(islice(rows, 1))
        self._target = chain(first, rows)
        self._looking = bool(first)  # as a rule the target has nothing, and no row becomes Python's
        self.count = 0

    def passed_over(self, table: pa.Table) -> pa.Table:
        """The rows of the table that the target lacks: all of them, once one was not found."""
        passed = 0
        if self._looking:
            for row in _rows(table):
                if not any(row == found for found in self._target):  # the search goes on behind what was found
                    self._looking = False
                    break
                passed += 1
        self.count += passed
        return table.slice(passed)


def target_rows(plan: MirrorPlan, partition: TopicPartition, start: int) -> Iterator[pa.RecordBatch]:
    """Rows that the target's partition holds from `start` on: none, unless this is not the first run of the task."""
    with TopicOffsets(plan.bootstrap, Subscription(), {}) as topics:
        end = topics.latest([partition])[partition]
    if end > start:
        read = ReadPlan(plan.bootstrap, _COMPARED, False, _POLL_TIMEOUT_MS, {})
        yield from read_range(read, OffsetRange(partition, start, end))


def _rows(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[Any, ...]]:
    """The compared columns of each row, one by one. Some rows at a time become Python's: the search may end soon."""
    for begin in range(0, rows.num_rows, _COMPARED_AT_ONCE):
        yield from _python_rows(rows.slice(begin, _COMPARED_AT_ONCE))


def _python_rows(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = [rows.column(name).to_pylist() for name in _COMPARED[:2]]
    timestamps = rows.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    headers = [[tuple(pair.values()) for pair in pairs or ()] for pairs in rows.column("headers").to_pylist()]
    return zip(*columns, timestamps, headers, strict=True)
