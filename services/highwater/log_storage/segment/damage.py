"""Batches on disk that are not what was written: how they are found, and what is remembered of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_reader import SegmentReader
from highwater.log_storage.segment.walk import WalkedBatch
from highwater.records import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """What stands at these offsets is not what was written."""

    first_offset: int
    last_offset: int
    problem: str


def walk_checked(
    segment: Segment | SegmentReader,
    position: int,
    *,
    checked: bool,
    end_offset: int | None = None,
    contiguous: bool = False,
) -> Iterator[WalkedBatch | DamagedRange]:
    """The batches of a segment from `position` on, and what is damaged between them; with `checked` by their CRCs too.
    A damaged batch whose header can still be believed is passed over; else the rest of the segment is damaged. Base
    offsets are not under the CRC: they must rise, and of a sealed segment stay below its `end_offset`. With
    `contiguous` no offset may be missing between them, nor, where the walk begins at the segment's first batch, up to
    `end_offset`. Raises `OSError`."""
    end, expected = segment.size_bytes, segment.base_offset
    while position < end:
        try:
            for found, header in segment.headers(position, checked=checked):
                if header.base_offset < expected or (end_offset is not None and header.next_offset > end_offset):
                    place = f"offsets {header.base_offset} to {header.last_offset} stand where {expected} is expected"
                    yield _rest(segment, expected, f"{segment.path}, position {found}: {place}")
                    return
                if contiguous and header.base_offset > expected:
                    yield _missing(segment, expected, header.base_offset)
                yield WalkedBatch(found, header)
                expected = header.next_offset
                position = found + header.size_bytes
            break
        except CorruptBatchError as error:
            problem = f"{segment.path}, {error}"
            header_there = _header_at(segment, error.position, end)
            if header_there is None or not expected <= header_there.base_offset < segment.end_offset:
                yield _rest(segment, expected, problem)
                return
            yield DamagedRange(header_there.base_offset, header_there.last_offset, problem)
            expected = header_there.next_offset
            position = error.position + header_there.size_bytes
    if contiguous and end_offset is not None and expected < end_offset:
        yield _missing(segment, expected, end_offset)


def _missing(segment: Segment | SegmentReader, first_offset: int, next_offset: int) -> DamagedRange:
    problem = f"{segment.path}: no batch has the offsets {first_offset} to {next_offset - 1}"
    return DamagedRange(first_offset, next_offset - 1, problem)


def _rest(segment: Segment | SegmentReader, first_offset: int, problem: str) -> DamagedRange:
    return DamagedRange(first_offset, max(segment.end_offset - 1, first_offset), problem)


def _header_at(segment: Segment | SegmentReader, position: int, end: int) -> BatchHeader | None:
    try:
        header = read_header(segment.peek(position, HEADER_BYTES))
    except CorruptBatchError:
        return None
    return header if position + header.size_bytes <= end and header.next_offset <= segment.end_offset else None


class KnownDamage:
    """Of one log. What stood in a segment that is not in the log any more, or was cut off, is forgotten with it. May be
    used from several threads: what is known is replaced as a whole."""

    def __init__(self) -> None:
        self._found: Mapping[Segment, Sequence[DamagedRange]] = {}
        self._lock = threading.Lock()  # of who replaces it

    def note(self, segment: Segment, found: Sequence[DamagedRange]) -> None:
        """The segment has been read anew: this is all that is wrong with it."""
        with self._lock:
            kept = {other: ranges for other, ranges in self._found.items() if other is not segment}
            self._found = {**kept, segment: tuple(found)} if found else kept

    def cut(self, offset: int) -> None:
        """What stood from `offset` on is cut off."""
        with self._lock:
            left = {segment: _below(offset, ranges) for segment, ranges in self._found.items()}
            self._found = {segment: ranges for segment, ranges in left.items() if ranges}

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._found

    def of(self, segments: Sequence[Segment]) -> list[DamagedRange]:
        """In the order of the log."""
        found = self._found
        if not found:
            return []
        present = sorted(set(found).intersection(segments), key=_base_offset)
        return [damaged for segment in present for damaged in found[segment]]

    def first_segment(self, segments: Sequence[Segment]) -> Segment | None:
        """The first of the log's that is damaged."""
        return next((segment for segment in segments if segment in self._found), None)


def _below(offset: int, ranges: Sequence[DamagedRange]) -> Sequence[DamagedRange]:
    below = (damaged for damaged in ranges if damaged.first_offset < offset)
    return tuple(replace(damaged, last_offset=min(damaged.last_offset, offset - 1)) for damaged in below)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
