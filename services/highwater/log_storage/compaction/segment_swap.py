"""Between a log and a pass of compaction over its files: what is to be cleaned of it, and its cleaned segments in the
place of the old ones."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from highwater.log_storage.compaction.cleaner_job import CleanedGroup, CleanJob, SegmentFile
from highwater.log_storage.compaction.cleaner_selection import (
    NO_TIMESTAMP,
    CleanableRange,
    Compaction,
    LogToClean,
    SegmentFacts,
    log_to_clean,
)
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX

NEVER_MS = 2**63 - 1  # max.compaction.lag.ms where it is not set

Key = TypeVar("Key", bound=Hashable)


def as_seen(key: Key, log: Log, wall_clock_ms: int) -> LogToClean[Key]:
    """Raises `CorruptBatchError`, `OSError`."""
    config = log.config
    return log_to_clean(
        key,
        [
            SegmentFacts(
                segment.base_offset,
                segment.size_bytes,
                # Read from files where they are not known yet: only where they count.
                segment.newest_ms if config.min_compaction_lag_ms else NO_TIMESTAMP,
                segment.first_timestamp if config.max_compaction_lag_ms < NEVER_MS else NO_TIMESTAMP,
            )
            for segment in log.segments
        ],
        Compaction(config.min_cleanable_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms),
        cleaned_to=log.cleaned_to,
        log_start_offset=log.log_start_offset,
        # What recovery may still cut is left alone, and nothing is dropped for a record that is not committed.
        stable_offset=min(log.high_watermark, log.recovery_point),
        wall_clock_ms=wall_clock_ms,
    )


class DueJob(NamedTuple):
    """A pass over a log as it was at one moment. `complete` may run in a thread: there may be many producers."""

    job: CleanJob  # without the producers
    present: Mapping[int, Segment]
    producers: ProducerStates  # a copy

    def complete(self) -> CleanJob:
        return replace(self.job, producers=_last_offsets(self.producers))


def due_job(log: Log, wall_clock_ms: int) -> DueJob | None:
    """The job that is due now; None where nothing is (any more): between the choice of a log and its pass retention or
    DeleteRecords may have taken what was chosen. Raises `CorruptBatchError`, `OSError`."""
    seen = as_seen(None, log, wall_clock_ms)
    if not seen.due:
        return None
    job, present = _job_without_producers(log, seen.range, wall_clock_ms)
    return DueJob(job, present, log.producers.copy())


def clean_job(log: Log, cleanable: CleanableRange, wall_clock_ms: int) -> tuple[CleanJob, Mapping[int, Segment]]:
    """A pass over the log, and its segments by their base offsets. `cleanable` is a range of the log as it is now, and
    not empty."""
    job, present = _job_without_producers(log, cleanable, wall_clock_ms)
    return replace(job, producers=_last_offsets(log.producers)), present


def _job_without_producers(
    log: Log, cleanable: CleanableRange, wall_clock_ms: int
) -> tuple[CleanJob, Mapping[int, Segment]]:
    first_dirty_offset, end_offset = cleanable
    assert first_dirty_offset < end_offset
    segments = [segment for segment in log.segments[:-1] if segment.base_offset < end_offset]
    bases = [segment.base_offset for segment in segments]
    job = CleanJob(
        directory=str(log.directory),
        segments=tuple(
            SegmentFile(segment.base_offset, following, segment.size_bytes)
            for segment, following in zip(segments, [*bases[1:], end_offset], strict=True)
        ),
        first_dirty_offset=first_dirty_offset,
        end_offset=end_offset,
        wall_clock_ms=wall_clock_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        index_max_bytes=log.config.index_max_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        contiguous=log.segment_list.contiguous,
    )
    return job, dict(zip(bases, segments, strict=True))


def _last_offsets(producers: ProducerStates) -> bytes:
    numbers = (number for who, state in producers.items() for number in (who, state.batches[-1].last_offset))
    return np.fromiter(numbers, dtype="<i8", count=2 * len(producers)).tobytes()


def swap_in(log: Log, cleaned: CleanedGroup, present: Mapping[int, Segment]) -> bool:
    """Puts a cleaned segment into the log; False where one that it replaces is not there any more. It may run in a
    thread beside appends and reads, not beside a flush or a truncation. Raises `LogError` (LOG_STORAGE_ERROR),
    `CorruptBatchError`, `OSError`."""
    segment = Segment(
        log.directory,
        cleaned.base_offsets[0],
        index_interval_bytes=log.config.index_interval_bytes,
        index_max_bytes=log.config.index_max_bytes,
        suffix=CLEANED_SUFFIX,
        end_offset=cleaned.end_offset,
    )
    assert segment.size_bytes == cleaned.size_bytes
    segment.seal()  # opens its indexes, before they are renamed
    if not log.replacement.replace([present[base_offset] for base_offset in cleaned.base_offsets], [segment]):
        return False
    producer_snapshots.remove_needless(log.directory, log.segments)
    return True
