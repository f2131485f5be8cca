"""A range as Spark hands it to a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql.datasource import InputPartition

from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.progress.read_progress import RangeOfRead, ranges_of_read


@dataclass
class RangePartition(InputPartition):
    """One task's range."""

    value: OffsetRange
    part: RangeOfRead


def range_partitions(ranges: Sequence[OffsetRange]) -> list[RangePartition]:
    """The ranges of one batch read, or one micro-batch, for its tasks."""
    parts = ranges_of_read(uuid4().hex, ranges)
    return [RangePartition(one, part) for one, part in zip(ranges, parts, strict=True)]
