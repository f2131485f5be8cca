"""The filters of a query that narrow the read itself: on topic, partition, offset and timestamp."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.ranges import OffsetRange

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(slots=True)
class PushedFilters:
    """Intersection of all that was pushed."""

    offset_from: int = 0
    offset_until: int | None = None
    partition_from: int = 0
    partition_until: int | None = None
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offsets: frozenset[int] | None = None
    timestamp_from_ms: int | None = None
    """No record before the first with this timestamp or a later one; records behind that may be older."""

    def push(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Yields those that Spark has still to apply."""
        for one in filters:
            if not self._take(one):
                yield one

    def keeps(self, partition: TopicPartition) -> bool:
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and partition.partition >= self.partition_from
            and (self.partition_until is None or partition.partition < self.partition_until)
        )

    def narrowed(self, one: OffsetRange, first_at_time: int | None = None) -> OffsetRange:
        """`first_at_time` is the offset that `timestamp_from_ms` begins at."""
        start = max(one.start, self.offset_from, first_at_time or 0)
        until = one.until if self.offset_until is None else min(one.until, self.offset_until)
        if self.offsets is not None:
            start = max(start, min(self.offsets, default=until))
            until = min(until, max(self.offsets, default=start - 1) + 1)
        return replace(one, start=start, until=max(start, until))

    def _take(self, one: Filter) -> bool:
        """Takes a filter up; True where Spark need not apply it any more."""
        attribute = getattr(one, "attribute", None)
        if attribute is None or len(attribute) != 1:
            return False
        (column,) = attribute
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        value: Any = getattr(one, "value", None)
        if column == "timestamp":
            self._take_timestamp(one, value)
            return False  # timestamps need not rise with offsets: Spark looks at every record that is left
        if column == "topic":
            return self._take_topic(one, value)
        if column == "offset":
            taken = self._take_offset(one, value)
        elif column == "partition":
            taken = self._take_partition(one, value)
        else:
            return False
        return taken

    def _take_topic(self, one: Filter, value: Any) -> bool:
        wanted = _one_of(one, value, str)
        if wanted is None:
            return False
        self.topics = wanted if self.topics is None else self.topics & wanted
        return True

    def _take_partition(self, one: Filter, value: Any) -> bool:
        wanted = _one_of(one, value, int)
        if wanted is not None:
            self.partitions = wanted if self.partitions is None else self.partitions & wanted
            return True
        start, until = _bounds(one, value)
        if start is not None:
            self.partition_from = max(self.partition_from, start)
        if until is not None:
            self.partition_until = until if self.partition_until is None else min(self.partition_until, until)
        return start is not None or until is not None

    def _take_offset(self, one: Filter, value: Any) -> bool:
        wanted = _one_of(one, value, int)
        if wanted is not None:
            self.offsets = wanted if self.offsets is None else self.offsets & wanted
            return len(self.offsets) <= 1  # several: the range from the first to the last, and Spark picks
        start, until = _bounds(one, value)
        if start is not None:
            self.offset_from = max(self.offset_from, start)
        if until is not None:
            self.offset_until = until if self.offset_until is None else min(self.offset_until, until)
        return start is not None or until is not None

    def _take_timestamp(self, one: Filter, value: Any) -> None:
        if not isinstance(value, datetime):
            return
        us = _microseconds(value)
        if isinstance(one, EqualTo | EqualNullSafe | GreaterThanOrEqual):
            start_ms = -(-us // 1000)
        elif isinstance(one, GreaterThan):
            start_ms = us // 1000 + 1
        else:
            return
        start_ms = max(start_ms, 0)
        self.timestamp_from_ms = start_ms if self.timestamp_from_ms is None else max(self.timestamp_from_ms, start_ms)


def _one_of(one: Filter, value: Any, kind: type) -> frozenset[Any] | None:
    if isinstance(one, EqualTo | EqualNullSafe) and isinstance(value, kind):
        return frozenset([value])
    if isinstance(one, In) and all(isinstance(item, kind) for item in value):
        return frozenset(value)
    return None


def _bounds(one: Filter, value: Any) -> tuple[int | None, int | None]:
    """The least value of an integer column, and the one above the greatest; None: no such bound."""
    if not isinstance(value, int):
        return None, None
    if isinstance(one, GreaterThan):
        return value + 1, None
    if isinstance(one, GreaterThanOrEqual):
        return value, None
    if isinstance(one, LessThan):
        return None, value
    if isinstance(one, LessThanOrEqual):
        return None, value + 1
    return None, None


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
