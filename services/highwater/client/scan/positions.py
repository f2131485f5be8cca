"""Places in partitions as users write them, at which a read begins or ends. Pure.

earliest, latest           the first record there is, and what comes next
latest-1000                so many offsets before the end of each partition
-1h  -30m  -2d  -10s  -500ms    the first record at or after that time before now
2026-11-25  2026-11-25T10:00:00+01:00, or a `datetime`      the first record at or after it; UTC where no zone is said
4711, or an int            an offset
{0: 4711, 1: "latest"}     one of these for each partition that is read
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import Enum, auto
from typing import TypeAlias

from highwater.client.exceptions import InvalidRequestError

WrittenPosition: TypeAlias = str | int | date
WrittenPositions: TypeAlias = WrittenPosition | Mapping[int, WrittenPosition]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-\s*(\d{1,15})\s*(ms|s|m|h|d)")
_BEFORE_LATEST = re.compile(r"latest\s*-\s*(\d{1,18})")
_MAX_OFFSET = (1 << 63) - 1
_FORMS = (
    "an offset (4711), earliest, latest, latest-N (N offsets before the end of each partition), a time before now "
    "(-1h, -30m, -2d) or a time (2026-11-25T10:00:00Z)"
)


class Kind(Enum):
    EARLIEST = auto()
    LATEST = auto()  # `number` offsets before the end, 0: the end
    OFFSET = auto()  # `number` is the offset
    TIME = auto()  # `number` is ms since 1970: the first record at or after it
    AGO = auto()  # `number` is ms before now


@dataclass(frozen=True, slots=True)
class Position:
    kind: Kind
    number: int = 0


EARLIEST = Position(Kind.EARLIEST)
LATEST = Position(Kind.LATEST)


@dataclass(frozen=True, slots=True)
class Positions:
    """One position for every partition, or one for each of some. `name` is what the user calls it."""

    name: str
    everywhere: Position | None
    each: Mapping[int, Position]

    def of(self, partition: int) -> Position:
        return self.each[partition] if self.everywhere is None else self.everywhere


def parse_positions(name: str, written: WrittenPositions) -> Positions:
    """The positions of one end of a read; `name` is the argument's or option's, for errors. Raises
    `InvalidRequestError`."""
    if not isinstance(written, Mapping):
        return Positions(name, parse_position(name, written), {})
    if not written:
        raise InvalidRequestError(f"{name} is an empty mapping: it names no partition to read")
    each = {}
    for partition, one in written.items():
        if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
            raise InvalidRequestError(
                f"{name} names the partition {partition!r}; partitions are numbers from 0: {{0: 4711}}"
            )
        each[partition] = parse_position(f"{name} of partition {partition}", one)
    return Positions(name, None, each)


def parse_position(name: str, written: WrittenPosition) -> Position:
    """Raises `InvalidRequestError`."""
    if isinstance(written, datetime):
        return _time(name, written)
    if isinstance(written, date):
        return _time(name, datetime.combine(written, time()))
    if isinstance(written, str):
        return _of_text(name, written)
    if isinstance(written, bool):
        raise InvalidRequestError(f"{name} is {written}; it can be {_FORMS}")
    try:
        number = operator.index(written)
    except TypeError:
        kind = type(written).__name__
        raise InvalidRequestError(
            f"{name} is a {kind}; it can be {_FORMS}, a datetime or a mapping of partitions"
        ) from None
    return _offset(name, number)


def _of_text(name: str, written: str) -> Position:
    text = written.strip()
    lower = text.lower()
    if lower == "earliest":
        return EARLIEST
    if lower == "latest":
        return LATEST
    if (match := _BEFORE_LATEST.fullmatch(lower)) is not None:
        return Position(Kind.LATEST, int(match[1]))
    if (match := _AGO.fullmatch(lower)) is not None:
        return Position(Kind.AGO, int(match[1]) * _UNITS_MS[match[2]])
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return _offset(name, int(text))
    if re.match(r"\d{4}-", text):
        try:
            return _time(name, datetime.fromisoformat(text))
        except ValueError as error:
            raise InvalidRequestError(f"{name} is {written!r}, which is no time: {error}") from None
    raise InvalidRequestError(f"{name} is {written!r}; it can be {_FORMS}")


def _offset(name: str, number: int) -> Position:
    if number < 0:
        raise InvalidRequestError(
            f"{name} is {number}, and offsets are 0 or more; the last {-number} of each partition: latest{number}"
        )
    if number > _MAX_OFFSET:
        raise InvalidRequestError(f"{name} is {number}; the largest offset is {_MAX_OFFSET}")
    return Position(Kind.OFFSET, number)


def _time(name: str, moment: datetime) -> Position:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    # Up: records have whole ms, and none of an earlier one is at or after it.
    ms = -(-(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // 1000)
    if ms < 0:
        raise InvalidRequestError(f"{name} is {moment.isoformat()}, before 1970")
    return Position(Kind.TIME, ms)
