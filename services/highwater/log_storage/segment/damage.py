"""Batches on disk that are not what was written: how they are found, and what is remembered of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_reader import SegmentReader
from highwater.log_storage.segment.walk import DamagedBatch, WalkedBatch
from highwater.records import BatchHeader


class Damage(StrEnum):
    CORRUPT = "corrupt"  # it is there, and is not what was written
    MISSING = "missing"  # it is not there
    DIFFERS = "differs"  # it is whole, and not what other replicas have


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets `first_offset` to `last_offset`, and what is wrong with them."""

    first_offset: int
    last_offset: int
    problem: str
    kind: Damage = Damage.CORRUPT


def check_segment(
    segment: Segment | SegmentReader,
    position: int,
    *,
    check_crcs: bool,
    end_offset: int | None = None,
    contiguous: bool = False,
) -> Iterator[WalkedBatch | DamagedRange]:
    """Yields the batches of a segment from `position` on, and what is damaged between them.

    A damaged batch whose header can still be believed is passed over; else the rest of the segment is damaged. Base
    offsets are not under the CRC: they must rise, and of a sealed segment stay below its `end_offset`. With
    `contiguous` no offset may be missing between batches, nor, where the walk begins at the segment's first batch, up
    to `end_offset`. Raises `OSError`."""
    end, expected = segment.size_bytes, segment.base_offset
    for found in segment.batches_and_damage(position, check_crcs=check_crcs):
        header = found.header
        if isinstance(found, DamagedBatch):
            problem = f"{segment.path}, corrupt batch at byte {found.position}: {found.problem}"
            if header is None or not _believable(header, found.position, end, expected, segment.end_offset):
                yield _rest(segment, expected, problem)
                return
            yield DamagedRange(header.base_offset, header.last_offset, problem)
        else:
            header = found.header
            if header.base_offset < expected or (end_offset is not None and header.next_offset > end_offset):
                place = f"offsets {header.base_offset} to {header.last_offset} stand where {expected} is expected"
                yield _rest(segment, expected, f"{segment.path}, position {found.position}: {place}")
                return
            if contiguous and header.base_offset > expected:
                yield _missing(segment, expected, header.base_offset)
            yield found
        expected = header.next_offset
    if contiguous and end_offset is not None and expected < end_offset:
        yield _missing(segment, expected, end_offset)


def _believable(header: BatchHeader, position: int, end: int, expected: int, end_offset: int) -> bool:
    """Tells whether a damaged batch's header says where the next batch begins, in the file and in the log."""
    in_file = position + header.size_bytes <= end
    return in_file and expected <= header.base_offset and header.next_offset <= end_offset


def _missing(segment: Segment | SegmentReader, first_offset: int, next_offset: int) -> DamagedRange:
    problem = f"{segment.path}: no batch has the offsets {first_offset} to {next_offset - 1}"
    return DamagedRange(first_offset, next_offset - 1, problem, Damage.MISSING)


def _rest(segment: Segment | SegmentReader, first_offset: int, problem: str) -> DamagedRange:
    return DamagedRange(first_offset, max(segment.end_offset - 1, first_offset), problem)


class KnownDamage:
    """Of one log. What stood in a segment that is not in the log any more, or was cut off, is forgotten with it. May be
    used from several threads: what is known is replaced as a whole."""

    def __init__(self) -> None:
        self._found: Mapping[Segment, Sequence[DamagedRange]] = {}
        self._lock = threading.Lock()  # of who replaces it

    @property
    def noted(self) -> bool:
        """Tells whether some segment is damaged, which may be out of the log by now."""
        return bool(self._found)

    def note(self, segment: Segment, found: Sequence[DamagedRange]) -> None:
        """The segment has been read anew: this is all that is wrong with it."""
        with self._lock:
            kept = {other: ranges for other, ranges in self._found.items() if other is not segment}
            self._found = {**kept, segment: tuple(found)} if found else kept

    def cut(self, offset: int) -> None:
        """Forgets what stood from `offset` on: it is cut off."""
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
