"""Batches on disk that are not what was written: how they are found, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from highwater.log_storage.segment import Segment
from highwater.records import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """What stands at these offsets is not what was written."""

    first_offset: int
    last_offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    position: int
    header: BatchHeader


def walk_checked(
    segment: Segment, position: int, expected: int, *, checked: bool
) -> Iterator[WalkedBatch | DamagedRange]:
    """The batches of a segment from `position` on, where offset `expected` or a later one stands, and what is damaged
    between them. A damaged batch whose header can still be believed is passed over; else the rest of the segment is
    damaged. Raises `OSError`."""
    end = segment.size_bytes
    while position < end:
        try:
            for found, header in segment.headers(position, checked=checked):
                yield WalkedBatch(found, header)
                expected = header.next_offset
                position = found + header.size_bytes
            return
        except CorruptBatchError as error:
            problem = f"{segment.path}, {error}"
            header_there = _header_at(segment, error.position, end)
            if header_there is None or not expected <= header_there.base_offset < segment.end_offset:
                yield DamagedRange(expected, max(segment.end_offset - 1, expected), problem)
                return
            yield DamagedRange(header_there.base_offset, header_there.last_offset, problem)
            expected = header_there.next_offset
            position = error.position + header_there.size_bytes


def _header_at(segment: Segment, position: int, end: int) -> BatchHeader | None:
    try:
        header = read_header(segment.peek(position, HEADER_BYTES))
    except CorruptBatchError:
        return None
    return header if position + header.size_bytes <= end and header.next_offset <= segment.end_offset else None


class KnownDamage:
    """Of one log. What stood in a segment that is not in the log any more is forgotten with it."""

    def __init__(self) -> None:
        self._found: dict[Segment, list[DamagedRange]] = {}

    def note(self, segment: Segment, found: list[DamagedRange]) -> None:
        """The segment has been read anew: this is all that is wrong with it."""
        self._found.pop(segment, None)
        if found:
            self._found[segment] = found

    def of(self, segments: list[Segment]) -> list[DamagedRange]:
        """In the order of the log."""
        for segment in set(self._found).difference(segments):
            del self._found[segment]
        return [damaged for segment in sorted(self._found, key=_base_offset) for damaged in self._found[segment]]

    def first_segment(self, segments: list[Segment]) -> Segment | None:
        """The first of the log's that is damaged."""
        return next((segment for segment in segments if segment in self._found), None)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
