"""Where `highwater groups reset` sends a group."""

from __future__ import annotations

import re

import pytest

from highwater.cli.groups.reset_positions import (
    NamedPartitions,
    ResetPosition,
    offset_of,
    parse_named_partitions,
    parse_reset_position,
    planned,
    time_asked,
)
from highwater.client import InvalidRequestError, TopicPartition
from highwater.client.scan.bounds import LogEnds
from highwater.client.scan.positions import Kind, Position

LOG = LogEnds(100, 5_000)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", 100),
        ("latest", 5_000),
        ("latest-1000", 4_000),
        ("latest-999999", 100),
        ("earliest+10", 110),
        (" Earliest + 10 ", 110),
        ("earliest+999999", 5_000),
    ],
)
def test_a_position_in_a_log(to: str, expected: int) -> None:
    assert offset_of(parse_reset_position(to, None, None), LOG, None) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0, 100), (100, 100), (4_711, 4_711), (5_000, 5_000), (9_999, 5_000)])
def test_an_offset_is_kept_within_the_log(offset: int, expected: int) -> None:
    assert offset_of(parse_reset_position(None, offset, None), LOG, None) == expected


def test_a_time_is_the_first_record_at_or_after_it_or_the_end() -> None:
    wanted = parse_reset_position(None, None, "2026-11-25T10:00:00Z")
    assert time_asked(wanted, 0) == 1_795_600_800_000
    assert offset_of(wanted, LOG, 300) == 300
    assert offset_of(wanted, LOG, None) == 5_000
    assert time_asked(parse_reset_position(None, None, "-1h"), 3_600_001) == 1
    assert time_asked(parse_reset_position(None, None, "-1h"), 5) == 0
    assert time_asked(ResetPosition(Position(Kind.EARLIEST)), 5) is None


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((None, None, None), "one of --to, --to-offset and --to-datetime"),
        (("latest", 3, None), "one of --to, --to-offset and --to-datetime"),
        (("4711", None, None), "use --to-offset"),
        (("-1h", None, None), "use --to-datetime"),
        (("latest+1", None, None), "--to is 'latest+1'"),
        (("earliest-1", None, None), "--to is 'earliest-1'"),
        ((None, None, "latest"), "--to-datetime is 'latest'"),
        ((None, None, "2026-13-01"), "no time"),
        ((None, -1, None), "offsets are 0 or more"),
    ],
)
def test_what_is_no_position(arguments: tuple[str | None, int | None, str | None], part: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(part)):
        parse_reset_position(*arguments)


def test_partitions_that_are_named() -> None:
    assert parse_named_partitions("events") == NamedPartitions("events", None)
    assert parse_named_partitions("events:0, 1,0") == NamedPartitions("events", (0, 1))
    for wrong in ("", "events:", "events:a", "events:0,,1", ":0", "a:b:0"):
        with pytest.raises(InvalidRequestError, match="--topic is"):
            parse_named_partitions(wrong)


def test_before_and_after_by_partition() -> None:
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    logs = {first: LogEnds(0, 10), second: LogEnds(3, 20)}
    resets = planned(parse_reset_position("latest-5", None, None), [second, first], {first: 5}, logs, {})
    assert [(each.partition, each.before, each.after, each.changes) for each in resets] == [
        (first, 5, 5, False),
        (second, None, 15, True),
    ]
