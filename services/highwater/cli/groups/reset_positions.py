"""Positions to which a reset sends a group: as they are written, and the offset that one is in a partition. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from highwater.client.exceptions import InvalidRequestError
from highwater.client.scan.bounds import LogEnds
from highwater.client.scan.positions import Kind, Position, parse_position
from highwater.client.topic_partition import TopicPartition

_AFTER_EARLIEST = re.compile(r"\s*earliest\s*\+\s*(\d{1,18})\s*", re.IGNORECASE)
_TOPIC = re.compile(r"([^:]+)(?::([\d,\s]+))?")


@dataclass(frozen=True, slots=True)
class ResetPosition:
    """A position as a scan has it, and so many offsets behind it."""

    position: Position
    plus: int = 0


@dataclass(frozen=True, slots=True)
class NamedPartitions:
    """Partitions of a topic; None: all."""

    topic: str
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reset:
    """A change of one partition by a reset."""

    partition: TopicPartition
    before: int | None
    """None: nothing was committed."""
    after: int
    log: LogEnds

    @property
    def changes(self) -> bool:
        return self.before != self.after


def parse_reset_position(to: str | None, to_offset: int | None, to_time: str | None) -> ResetPosition:
    """Exactly one of them is given. Raises `InvalidRequestError`."""
    if (to is not None) + (to_offset is not None) + (to_time is not None) != 1:
        raise InvalidRequestError("say where to go on: one of --to, --to-offset and --to-datetime")
    if to_offset is not None:
        return ResetPosition(parse_position("--to-offset", to_offset))
    if to_time is not None:
        position = parse_position("--to-datetime", to_time)
        if position.kind not in (Kind.TIME, Kind.AGO):
            raise InvalidRequestError(
                f"--to-datetime is {to_time!r}; it can be a time before now (-1h, -30m, -2d) or a time "
                "(2026-11-25T10:00:00Z)"
            )
        return ResetPosition(position)
    assert to is not None
    if (match := _AFTER_EARLIEST.fullmatch(to)) is not None:
        return ResetPosition(Position(Kind.EARLIEST), int(match[1]))
    position = parse_position("--to", to)
    if position.kind not in (Kind.EARLIEST, Kind.LATEST):
        other = "--to-offset" if position.kind is Kind.OFFSET else "--to-datetime"
        raise InvalidRequestError(f"--to is {to!r}; it can be earliest, latest, latest-N or earliest+N: use {other}")
    return ResetPosition(position)


def parse_named_partitions(written: str) -> NamedPartitions:
    """`events` or `events:0,1`. Raises `InvalidRequestError`."""
    match = _TOPIC.fullmatch(written.strip())
    numbers = [] if match is None or match[2] is None else [each.strip() for each in match[2].split(",")]
    if match is None or not all(each.isdecimal() for each in numbers):
        raise InvalidRequestError(f"--topic is {written!r}; it is a topic, or some of its partitions: events:0,1")
    return NamedPartitions(match[1], tuple(dict.fromkeys(map(int, numbers))) or None)


def offset_of(wanted: ResetPosition, log: LogEnds, of_time: int | None) -> int:
    """The offset, within the log: what lies before its first record or behind its end is taken to these. `of_time` is
    the first offset at or after a time; None: there is none, and the end is meant."""
    kind, number = wanted.position.kind, wanted.position.number
    if kind is Kind.EARLIEST:
        offset = log.start + wanted.plus
    elif kind is Kind.LATEST:
        offset = log.end - number
    elif kind is Kind.OFFSET:
        offset = number
    else:
        offset = log.end if of_time is None else of_time
    return min(max(offset, log.start), log.end)


def planned(
    wanted: ResetPosition,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogEnds],
    of_times: Mapping[TopicPartition, int | None],
) -> list[Reset]:
    """By partition. `of_times` are the offsets of the position's time, where it is one."""
    return [
        Reset(one, committed.get(one), offset_of(wanted, logs[one], of_times.get(one)), logs[one])
        for one in sorted(partitions)
    ]


def time_asked(wanted: ResetPosition, now_ms: int) -> int | None:
    """The time, in ms since 1970, whose offsets the leaders must be asked for."""
    if wanted.position.kind is Kind.TIME:
        return wanted.position.number
    if wanted.position.kind is Kind.AGO:
        return max(now_ms - wanted.position.number, 0)
    return None
