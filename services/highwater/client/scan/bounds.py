"""The offsets at which a read of each partition begins and ends. Pure.

Ends are those at the time of the question: what is written afterwards belongs to no range, wherever an end is said to
be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from highwater.client.exceptions import InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from highwater.client.scan.positions import Kind, Position, Positions


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` up to and without `until`. Invariant: start <= until."""

    start: int
    until: int

    def __len__(self) -> int:
        return self.until - self.start


@dataclass(frozen=True, slots=True)
class LogEnds:
    """A partition's log as its leader described it."""

    start: int  # the first offset that is there
    end: int  # the high watermark


def partitions_read(
    topic: str, total: int, named: Iterable[int] | None, start: Positions, end: Positions
) -> tuple[int, ...]:
    """The partitions of a read: those named; else those that `start` or `end` name; else all. Raises
    `UnknownTopicError` for a partition that there is not, `InvalidRequestError` where the arguments do not agree."""
    mappings = [positions for positions in (start, end) if positions.everywhere is None]
    if named is not None:
        read = tuple(dict.fromkeys(named))
        if not read:
            raise InvalidRequestError("partitions is empty: there is nothing to read")
    elif mappings:
        read = tuple(mappings[0].each)
    else:
        read = tuple(range(total))
    for partition in read:
        if isinstance(partition, bool) or not isinstance(partition, int):
            raise InvalidRequestError(f"partitions names {partition!r}; they are numbers from 0")
        if not 0 <= partition < total:
            raise UnknownTopicError(f"topic {topic!r} has partitions 0 to {total - 1}, there is no {partition}")
    for positions in mappings:
        if missing := sorted(set(read) - positions.each.keys()):
            raise InvalidRequestError(f"{positions.name} lacks {_listed(missing)}, which the read includes")
        if other := sorted(positions.each.keys() - set(read)):
            raise InvalidRequestError(f"{positions.name} names {_listed(other)}, which the read does not include")
    return read


def times_asked(positions: Positions, read: Iterable[int], now_ms: int) -> dict[int, int]:
    """The times, in ms since 1970, whose offsets the leaders must be asked for."""
    asked = {}
    for partition in read:
        position = positions.of(partition)
        if position.kind is Kind.TIME:
            asked[partition] = position.number
        elif position.kind is Kind.AGO:
            asked[partition] = max(now_ms - position.number, 0)
    return asked


def decided(
    topic: str,
    read: Iterable[int],
    logs: Mapping[int, LogEnds],
    start: tuple[Positions, Mapping[int, int | None]],
    end: tuple[Positions, Mapping[int, int | None]],
    *,
    fail_on_data_loss: bool,
) -> dict[int, OffsetRange]:
    """The range of each partition. With the positions come the offsets found for their times; None: no record is so
    late.

    Raises:
        OffsetOutOfRangeError: an offset to start at is no longer in the log, and `fail_on_data_loss`.
    """
    ranges = {}
    for partition in read:
        log = logs[partition]
        until = min(_offset(end[0].of(partition), log, end[1].get(partition)), log.end)
        begin = start[0].of(partition)
        first = min(_offset(begin, log, start[1].get(partition)), until)
        if first < min(log.start, until):
            if fail_on_data_loss:
                raise OffsetOutOfRangeError(lost(topic, partition, first, min(log.start, until)))
            first = min(log.start, until)
        ranges[partition] = OffsetRange(first, until)
    return ranges


def lost(topic: str, partition: int, first: int, until: int) -> str:
    """The sentence for offsets from `first` up to and without `until` that are gone."""
    return (
        f"{topic}-{partition}: offsets {first} to {until - 1} are no longer in the log, retention has deleted them; "
        "begin at 'earliest', or read what is left with fail_on_data_loss=False"
    )


def _offset(position: Position, log: LogEnds, of_time: int | None) -> int:
    if position.kind is Kind.EARLIEST:
        return log.start
    if position.kind is Kind.LATEST:
        return max(log.end - position.number, log.start)
    if position.kind is Kind.OFFSET:
        return position.number
    return log.end if of_time is None else of_time


def _listed(partitions: list[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, partitions))}"
