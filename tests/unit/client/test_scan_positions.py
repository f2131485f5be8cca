"""Where a scan begins and ends: what can be written, and the offsets that come of it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from highwater.client import InvalidRequestError, OffsetOutOfRangeError, OffsetRange, UnknownTopicError
from highwater.client.scan.bounds import LogEnds, decided, partitions_read, times_asked
from highwater.client.scan.positions import EARLIEST, LATEST, Kind, Position, parse_position, parse_positions

T2026 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
NONE: dict[int, int | None] = {}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ("latest-1000", Position(Kind.LATEST, 1000)),
        ("latest - 5", Position(Kind.LATEST, 5)),
        ("-1h", Position(Kind.AGO, 3_600_000)),
        ("-30m", Position(Kind.AGO, 1_800_000)),
        ("-2d", Position(Kind.AGO, 172_800_000)),
        ("-10 s", Position(Kind.AGO, 10_000)),
        ("-500ms", Position(Kind.AGO, 500)),
        (4711, Position(Kind.OFFSET, 4711)),
        (np.int64(7), Position(Kind.OFFSET, 7)),
        ("4711", Position(Kind.OFFSET, 4711)),
        (0, Position(Kind.OFFSET, 0)),
        ("2026-01-01", Position(Kind.TIME, T2026)),
        (date(2026, 1, 1), Position(Kind.TIME, T2026)),
        ("2026-01-01T00:00:00Z", Position(Kind.TIME, T2026)),
        ("2026-01-01 01:00:00+01:00", Position(Kind.TIME, T2026)),
        (datetime(2026, 1, 1), Position(Kind.TIME, T2026)),
        (datetime(2026, 1, 1, tzinfo=UTC), Position(Kind.TIME, T2026)),
        (datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5))), Position(Kind.TIME, T2026)),
        ("2026-01-01T00:00:00.000001", Position(Kind.TIME, T2026 + 1)),
        (datetime(2026, 1, 1, 0, 0, 0, 999_000), Position(Kind.TIME, T2026 + 999)),
        ("1970-01-01", Position(Kind.TIME, 0)),
    ],
)
def test_what_can_be_written(written: Any, expected: Position) -> None:
    assert parse_position("start", written) == expected


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ("", "start is ''; it can be an offset"),
        ("yesterday", "start is 'yesterday'; it can be"),
        ("1h", "start is '1h'; it can be"),
        ("-1w", "start is '-1w'; it can be"),
        ("latest+1", "start is 'latest+1'; it can be"),
        (-10, "start is -10, and offsets are 0 or more; the last 10 of each partition: latest-10"),
        ("-10", "the last 10 of each partition: latest-10"),
        (1 << 63, "the largest offset is"),
        ("2026-13-01", "start is '2026-13-01', which is no time: month must be in 1..12"),
        ("2026-01-01T25:00", "which is no time: hour must be in 0..23"),
        ("1969-12-31", "before 1970"),
        (True, "start is True; it can be"),
        (None, "start is a NoneType; it can be"),
        (1.5, "start is a float; it can be"),
        ({}, "start is an empty mapping"),
        ({"0": 1}, "start names the partition '0'"),
        ({-1: 1}, "start names the partition -1"),
        ({0: 1, 3: "soon"}, "start of partition 3 is 'soon'"),
    ],
)
def test_what_cannot(written: Any, part: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_positions("start", written)
    assert part in str(refused.value)


def test_the_partitions_that_are_read() -> None:
    everywhere = parse_positions("start", "earliest")
    each = parse_positions("end", {2: 5, 0: "latest"})
    assert partitions_read("t", 3, None, everywhere, everywhere) == (0, 1, 2)
    assert partitions_read("t", 3, [2, 1, 2], everywhere, everywhere) == (2, 1)
    assert partitions_read("t", 3, None, everywhere, each) == (2, 0)
    assert partitions_read("t", 3, [0, 2], everywhere, each) == (0, 2)
    with pytest.raises(InvalidRequestError, match="end lacks partition 1, which the read includes"):
        partitions_read("t", 3, [0, 1, 2], everywhere, each)
    with pytest.raises(InvalidRequestError, match="end names partition 2, which the read does not include"):
        partitions_read("t", 3, [0], everywhere, each)
    with pytest.raises(InvalidRequestError, match="end lacks partition 1"):
        partitions_read("t", 3, None, parse_positions("start", {0: 1, 1: 1, 2: 1}), each)
    with pytest.raises(UnknownTopicError, match="'t' has partitions 0 to 1, there is no 2"):
        partitions_read("t", 2, None, everywhere, each)
    with pytest.raises(InvalidRequestError, match="partitions is empty"):
        partitions_read("t", 2, [], everywhere, everywhere)
    with pytest.raises(InvalidRequestError, match="partitions names '0'"):
        partitions_read("t", 2, ["0"], everywhere, everywhere)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", (100, 200)),
        ("latest", "latest", (200, 200)),
        ("latest-30", "latest", (170, 200)),
        ("latest-1000", "latest", (100, 200)),
        ("latest-30", "latest-10", (170, 190)),
        ("latest-10", "latest-30", (170, 170)),
        (150, 160, (150, 160)),
        (150, 10_000, (150, 200)),
        (10_000, "latest", (200, 200)),
        (160, 150, (150, 150)),
        ("earliest", 50, (50, 50)),
    ],
)
def test_ranges(start: Any, end: Any, expected: tuple[int, int]) -> None:
    positions = parse_positions("start", start), parse_positions("end", end)
    found = decided(
        "t", [0], {0: LogEnds(100, 200)}, (positions[0], NONE), (positions[1], NONE), fail_on_data_loss=True
    )
    assert found == {0: OffsetRange(*expected)}
    assert len(found[0]) == expected[1] - expected[0]


def test_ranges_of_times() -> None:
    start, end = parse_positions("start", "-1h"), parse_positions("end", {0: T2026 * 2, 1: "2026-01-01"})
    assert times_asked(start, [0, 1], now_ms=4_000_000) == {0: 400_000, 1: 400_000}
    assert times_asked(start, [0], now_ms=1) == {0: 0}
    assert times_asked(end, [0, 1], now_ms=0) == {1: T2026}
    logs = {0: LogEnds(0, 10), 1: LogEnds(0, 10)}
    found = decided("t", [0, 1], logs, (start, {0: 4, 1: None}), (end, {1: None}), fail_on_data_loss=True)
    assert found == {0: OffsetRange(4, 10), 1: OffsetRange(10, 10)}


def test_an_offset_that_retention_has_deleted() -> None:
    start, end = parse_positions("start", 40), parse_positions("end", "latest")
    logs = {0: LogEnds(0, 10), 3: LogEnds(100, 200)}
    with pytest.raises(OffsetOutOfRangeError, match="t-3: offsets 40 to 99 are no longer in the log"):
        decided("t", [0, 3], logs, (start, NONE), (end, NONE), fail_on_data_loss=True)
    found = decided("t", [0, 3], logs, (start, NONE), (end, NONE), fail_on_data_loss=False)
    assert found == {0: OffsetRange(10, 10), 3: OffsetRange(100, 200)}
