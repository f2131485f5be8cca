"""The positions at which a read begins and ends, as users give them in options. Pure.

    startingOffsets       earliest | latest | latest-1000 | {"events": {"0": 23, "1": -2}}     (-2 earliest, -1 latest)
                          group:reports     (where that group has committed)
    startingTimestamp     1700000000000 | -10m
    startingOffsetsByTimestamp    {"events": {"0": 1700000000000}}

and the same for `ending...`, but for a group. A timestamp goes before offsets by timestamp, and they before offsets, as
in Spark's Kafka source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from highwater.client.scan.positions import EARLIEST, LATEST, Kind, Position
from highwater.client.topic_partition import TopicPartition
from highwater.spark.errors import OptionError

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1
GROUP_STRATEGY = "startingOffsetsByGroupStrategy"

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE_TIME = re.compile(r"-(\d+)\s*(ms|s|m|h|d)")
_BACK_FROM_LATEST = re.compile(r"latest\s*-\s*(\d+)")


_GROUP = "group:"
_UNCOMMITTED = {"earliest": EARLIEST, "latest": LATEST, "error": None}


class Side(Enum):
    STARTING = "starting"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """The offsets that a group has committed."""

    group: str
    uncommitted: Position | None  # of partitions of which it has committed nothing; None: an error


@dataclass(frozen=True, slots=True)
class Positions:
    """One position for every partition, or one for each, or those of a group. `option` is where it was said."""

    option: str
    everywhere: Position | None
    each: Mapping[TopicPartition, Position] = field(default_factory=dict)
    group: GroupPositions | None = None  # to be looked up, see `committed`

    def committed(self, offsets: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]) -> Positions:
        """Those of a group that has committed these offsets. Raises `OptionError` where it has committed none of a
        partition, and that is an error."""
        assert self.group is not None
        each = {}
        for one in partitions:
            position = Position(Kind.OFFSET, offsets[one]) if one in offsets else self.group.uncommitted
            if position is None:
                raise OptionError(
                    f"option {self.option}: group {self.group.group!r} has committed nothing of {_named([one])}; set "
                    f"{GROUP_STRATEGY} to earliest or latest"
                )
            each[one] = position
        return Positions(self.option, None, each)

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """The position of each of these. Raises `OptionError` where the option names others, or not all of them."""
        partitions = list(partitions)
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        if missing := sorted(set(partitions) - self.each.keys()):
            raise OptionError(
                f"option {self.option} must name every partition that is read, and lacks {_named(missing)}; "
                f"use {EARLIEST_OFFSET} for earliest and {LATEST_OFFSET} for latest"
            )
        if unknown := sorted(self.each.keys() - set(partitions)):
            raise OptionError(f"option {self.option} names {_named(unknown)}, which is not read or does not exist")
        return dict(self.each)


def parse_positions(options: Mapping[str, str], side: Side, default: Position) -> Positions:
    """Parses the positions of one side, from options with lower-case names. Raises `OptionError`."""
    word = side.value
    if (value := options.get(f"{word}timestamp")) is not None:
        return Positions(f"{word}Timestamp", _time(f"{word}Timestamp", value))
    if (value := options.get(f"{word}offsetsbytimestamp")) is not None:
        name = f"{word}OffsetsByTimestamp"
        each = {}
        for partition, timestamp in parse_partition_numbers(name, value).items():
            if timestamp < 0:
                raise OptionError(f"option {name} gives {_named([partition])} the time {timestamp}; times are ms >= 0")
            each[partition] = Position(Kind.TIME, timestamp)
        return Positions(name, None, each)
    name = f"{word}Offsets"
    value = options.get(name.lower())
    if value is None:
        return Positions(name, default)
    stripped = value.strip()
    if side is Side.STARTING and stripped.lower().startswith(_GROUP):
        return Positions(name, None, group=_group(name, stripped[len(_GROUP) :].strip(), options))
    if stripped.startswith("{"):
        numbers = parse_partition_numbers(name, stripped)
        return Positions(name, None, {key: _offset(name, key, number) for key, number in numbers.items()})
    return Positions(name, _named_position(name, stripped.lower()))


def _group(option: str, group: str, options: Mapping[str, str]) -> GroupPositions:
    if not group:
        raise OptionError(f"option {option} names no group: group:NAME")
    strategy = options.get(GROUP_STRATEGY.lower(), "earliest").strip().lower()
    if strategy not in _UNCOMMITTED:
        raise OptionError(f"option {GROUP_STRATEGY} is {strategy!r}; it can be earliest, latest or error")
    return GroupPositions(group, _UNCOMMITTED[strategy])


def parse_partition_numbers(option: str, text: str) -> dict[TopicPartition, int]:
    """`{"events": {"0": 23}}`. Raises `OptionError`."""
    example = f'option {option} is not of the form {{"topic": {{"0": 23}}}}: {text}'
    try:
        topics = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{example} ({error})") from None
    if not isinstance(topics, dict):
        raise OptionError(example)
    found: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise OptionError(example)
        for partition, number in partitions.items():
            if not partition.isdecimal() or not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(example)
            found[TopicPartition(topic, int(partition))] = number
    return found


def parse_duration_ms(option: str, text: str) -> int:
    """`15m`, `30s`, `500ms`, or a number of ms. Raises `OptionError`."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?", text.strip().lower())
    if match is None:
        raise OptionError(f"option {option} is {text!r}; it is a duration such as 30s, 15m or 2h")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def _named_position(option: str, text: str) -> Position:
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if (match := _BACK_FROM_LATEST.fullmatch(text)) is not None:
        return Position(Kind.LATEST, int(match[1]))
    raise OptionError(
        f"option {option} is {text!r}; it can be earliest, latest, latest-N (N records of each partition before its "
        f'end) or JSON such as {{"topic": {{"0": 23, "1": {EARLIEST_OFFSET}}}}}'
    )


def _time(option: str, text: str) -> Position:
    stripped = text.strip().lower()
    if stripped.isdecimal():
        return Position(Kind.TIME, int(stripped))
    if (match := _RELATIVE_TIME.fullmatch(stripped)) is not None:
        return Position(Kind.AGO, int(match[1]) * _UNITS_MS[match[2]])
    raise OptionError(f"option {option} is {text!r}; it is ms since 1970, or a time before now such as -10m or -2h")


def _offset(option: str, partition: TopicPartition, number: int) -> Position:
    if number == EARLIEST_OFFSET:
        return EARLIEST
    if number == LATEST_OFFSET:
        return LATEST
    if number < 0:
        raise OptionError(
            f"option {option} gives {_named([partition])} the offset {number}; it can be 0 or more, "
            f"{EARLIEST_OFFSET} (earliest) or {LATEST_OFFSET} (latest)"
        )
    return Position(Kind.OFFSET, number)


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)
