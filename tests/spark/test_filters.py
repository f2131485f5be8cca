"""What of a query's filters narrows a read. No session is needed, only Spark's classes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.source.filters import PushedFilters

P0, P1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
WHOLE = OffsetRange(P0, 0, 100)


def pushed(*filters: Filter) -> tuple[PushedFilters, list[Filter]]:
    found = PushedFilters()
    return found, list(found.push(filters))


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([GreaterThan(("offset",), 10)], (11, 100)),
        ([GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 20)], (10, 20)),
        ([LessThanOrEqual(("offset",), 20)], (0, 21)),
        ([EqualTo(("offset",), 7)], (7, 8)),
        ([EqualTo(("offset",), 7), EqualTo(("offset",), 8)], (100, 100)),
        ([GreaterThan(("offset",), 500)], (501, 501)),
        ([IsNotNull(("offset",))], (0, 100)),
    ],
)
def test_offsets(filters: list[Filter], bounds: tuple[int, int]) -> None:
    found, left = pushed(*filters)
    narrowed = found.narrowed(WHOLE)
    assert (narrowed.start, narrowed.until) == bounds
    assert left == []


def test_several_offsets_are_a_range_and_spark_picks() -> None:
    one = In(("offset",), (3, 9))
    found, left = pushed(one)
    assert found.narrowed(WHOLE) == OffsetRange(P0, 3, 10)
    assert left == [one]


def test_partitions_and_topics() -> None:
    assert [pushed(EqualTo(("partition",), 1))[0].keeps(one) for one in (P0, P1, OTHER)] == [False, True, False]
    assert [pushed(In(("partition",), (0, 5)))[0].keeps(one) for one in (P0, P1, OTHER)] == [True, False, True]
    assert [pushed(LessThan(("partition",), 1))[0].keeps(one) for one in (P0, P1, OTHER)] == [True, False, True]
    assert [pushed(GreaterThan(("partition",), 0))[0].keeps(one) for one in (P0, P1, OTHER)] == [False, True, False]
    assert [pushed(EqualTo(("topic",), "u"))[0].keeps(one) for one in (P0, P1, OTHER)] == [False, False, True]


def test_timestamps_are_a_first_offset_and_spark_looks_again() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    at_least = GreaterThanOrEqual(("timestamp",), moment)
    found, left = pushed(at_least)
    assert (found.timestamp_from_ms, left) == (1_700_000_000_124, [at_least])
    assert pushed(GreaterThan(("timestamp",), moment))[0].timestamp_from_ms == 1_700_000_000_124
    whole = moment.replace(microsecond=123000)
    assert pushed(GreaterThanOrEqual(("timestamp",), whole))[0].timestamp_from_ms == 1_700_000_000_123
    assert pushed(GreaterThan(("timestamp",), whole))[0].timestamp_from_ms == 1_700_000_000_124
    assert found.narrowed(WHOLE, first_at_time=60) == OffsetRange(P0, 60, 100)
    before = LessThan(("timestamp",), moment)
    assert pushed(before)[0].timestamp_from_ms is None


def test_what_is_left_to_spark() -> None:
    others: list[Filter] = [
        EqualTo(("value",), b"x"),
        IsNull(("offset",)),
        IsNotNull(("key",)),
        Not(EqualTo(("offset",), 3)),
        EqualTo(("headers", "key"), "h"),
        GreaterThan(("topic",), "a"),
    ]
    found, left = pushed(*others)
    assert left == others
    assert found.narrowed(WHOLE) == WHOLE
    assert found.keeps(P0)
