"""Selects the log that the cleaner takes next, the offsets of it, and the segments that become one. Pure.

A log has a clean part, up to the offset in `cleaner-offset-checkpoint`, a dirty part behind it, and a part that must
not be touched: the active segment, what is not committed, what is younger than `min.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from highwater.log_storage.segment.offset_index import MAX_RELATIVE_OFFSET

NO_TIMESTAMP = -1

Key = TypeVar("Key", bound=Hashable)


class Compaction(NamedTuple):
    """The settings of a topic's compaction."""

    min_cleanable_ratio: float  # the dirty share from which on a log is cleaned
    min_lag_ms: int  # records stay for so long at least
    max_lag_ms: int  # after which a log is cleaned however clean it is


class SegmentFacts(NamedTuple):
    """The facts of a segment that the choice needs."""

    base_offset: int
    size_bytes: int
    newest_ms: int  # its largest timestamp; where no batch has one, when the file was last written
    first_timestamp: int  # of its first batch, `NO_TIMESTAMP` where that has none


class CleanableRange(NamedTuple):
    """The dirty part, from one offset up to another that is the base of a segment. Empty where they are equal."""

    first_dirty_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogToClean(Generic[Key]):
    """A log as the choice sees it. Sizes in bytes, of whole segments: the one that holds the first dirty offset counts
    as dirty."""

    key: Key
    range: CleanableRange
    clean_bytes: int
    cleanable_bytes: int
    min_cleanable_ratio: float
    overdue_ms: int  # how much longer than max.compaction.lag.ms its oldest dirty record has waited, 0 where it has not

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def due(self) -> bool:
        """Tells whether it is to be cleaned at all."""
        return self.cleanable_bytes > 0 and (self.overdue_ms > 0 or self.ratio > self.min_cleanable_ratio)


def cleanable_range(
    segments: Sequence[SegmentFacts],
    *,
    cleaned_to: int | None,
    log_start_offset: int,
    stable_offset: int,
    min_lag_ms: int,
    wall_clock_ms: int,
) -> CleanableRange:
    """Finds what can be cleaned of a log; the last of `segments` is the active one.

    `cleaned_to` is what the checkpoint says, None where it says nothing. `stable_offset`: from there on nothing may be
    touched (the high watermark; what is not on disk yet).
    """
    active = segments[-1].base_offset
    first_dirty_offset = log_start_offset
    if cleaned_to is not None and log_start_offset <= cleaned_to <= active:
        first_dirty_offset = cleaned_to
    first_dirty_offset = max(first_dirty_offset, segments[0].base_offset)
    end_offset = active
    for number, segment in enumerate(segments[:-1]):
        next_offset = segments[number + 1].base_offset
        if next_offset <= first_dirty_offset:
            continue
        if next_offset > stable_offset or (min_lag_ms > 0 and segment.newest_ms > wall_clock_ms - min_lag_ms):
            end_offset = segment.base_offset
            break
    return CleanableRange(first_dirty_offset, max(first_dirty_offset, end_offset))


def log_to_clean(
    key: Key,
    segments: Sequence[SegmentFacts],
    compaction: Compaction,
    *,
    cleaned_to: int | None,
    log_start_offset: int,
    stable_offset: int,
    wall_clock_ms: int,
) -> LogToClean[Key]:
    """See `cleanable_range`."""
    found = cleanable_range(
        segments,
        cleaned_to=cleaned_to,
        log_start_offset=log_start_offset,
        stable_offset=stable_offset,
        min_lag_ms=compaction.min_lag_ms,
        wall_clock_ms=wall_clock_ms,
    )
    clean_bytes = cleanable_bytes = 0
    oldest: int | None = None
    for segment, following in pairwise(segments):
        if segment.base_offset >= found.end_offset:
            break
        if following.base_offset <= found.first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        cleanable_bytes += segment.size_bytes
        if segment.first_timestamp >= 0:
            oldest = segment.first_timestamp if oldest is None else min(oldest, segment.first_timestamp)
    if found.first_dirty_offset == found.end_offset:
        cleanable_bytes = 0
    waited_ms = 0 if oldest is None else wall_clock_ms - oldest
    return LogToClean(
        key,
        found,
        clean_bytes,
        cleanable_bytes,
        compaction.min_cleanable_ratio,
        max(0, waited_ms - compaction.max_lag_ms),
    )


def filthiest(logs: Iterable[LogToClean[Key]]) -> LogToClean[Key] | None:
    """The one of those due with the largest dirty share; None where none is due."""
    return max((log for log in logs if log.due), key=lambda log: log.ratio, default=None)


class SegmentSizes(NamedTuple):
    """The sizes of a segment that grouping needs."""

    base_offset: int
    next_offset: int  # where the next segment begins
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Sequence[SegmentSizes], max_bytes: int, max_index_bytes: int
) -> list[Sequence[SegmentSizes]]:
    """Runs of segments of which each becomes one: not larger than `max_bytes`, each of its indexes not larger than
    `max_index_bytes`, no offset further than 31 bits from the first. A segment that exceeds a limit by itself stays by
    itself."""
    groups: list[Sequence[SegmentSizes]] = []
    start = size_bytes = index_bytes = time_index_bytes = 0
    for end, segment in enumerate(segments):
        size_bytes += segment.size_bytes
        index_bytes += segment.index_bytes
        time_index_bytes += segment.time_index_bytes
        if end > start and (
            size_bytes > max_bytes
            or index_bytes > max_index_bytes
            or time_index_bytes > max_index_bytes
            or segment.next_offset - 1 - segments[start].base_offset > MAX_RELATIVE_OFFSET
        ):
            groups.append(segments[start:end])
            start, size_bytes = end, segment.size_bytes
            index_bytes, time_index_bytes = segment.index_bytes, segment.time_index_bytes
    if start < len(segments):
        groups.append(segments[start:])
    return groups
