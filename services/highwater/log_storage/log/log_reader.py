"""Reading batches by offset, and offsets by timestamp and leader epoch."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.errors import ErrorCode
from highwater.log_storage.errors import DamagedError, LogError
from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.files.disk import Disk
from highwater.log_storage.log.leader_epoch_file import LeaderEpochFile
from highwater.log_storage.log.log_context import LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.log.timestamp_lookup import FoundOffset, Search, find_offset, finished
from highwater.log_storage.segment.damage import KnownDamage
from highwater.log_storage.segment.segment import Segment
from highwater.model.leader_epochs import EpochEnd
from highwater.records import BatchHeader, CorruptBatchError


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The place where a read begins. `run` may be called in a thread."""

    disk: Disk
    segment: Segment
    file: Descriptor  # the segment's, which stays open for this
    position: int
    max_bytes: int
    max_offset: int

    def run(self) -> bytes:
        """Raises `LogError`: CORRUPT_MESSAGE (invariant 7), LOG_STORAGE_ERROR."""
        try:
            return self.segment.read(self.position, self.max_bytes, self.max_offset, self.file)
        except CorruptBatchError as error:
            raise DamagedError(self.segment.base_offset, f"{self.segment.path}: {error}") from None
        except OSError as error:
            raise self.disk.refusal(error, str(self.segment.path)) from error


class LogReader:
    """Changes nothing. Another thread may put other segments in the place of those that are read (`exchange`)."""

    def __init__(
        self,
        context: LogContext,
        segments: SegmentList,
        epochs: LeaderEpochFile,
        offsets: LogOffsets,
        damage: KnownDamage,
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._offsets = offsets
        self._damage = damage

    def read(self, offset: int, max_offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, at least one (RULES 4.8), up to `max_bytes`, from one
        segment and below `max_offset` (-1: the log end). Empty at or above the bound.

        Raises `LogError`: OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE (invariant 7), LOG_STORAGE_ERROR.
        """
        plan = self.plan_read(offset, max_offset, max_bytes)
        return b"" if plan is None else plan.run()

    def plan_read(self, offset: int, max_offset: int, max_bytes: int) -> ReadPlan | None:
        """`read` in two steps, of which the second may run in a thread. None: nothing to read."""
        self._context.check_online()
        log_start_offset, log_end_offset = self._offsets.log_start_offset, self._offsets.log_end_offset
        if not log_start_offset <= offset <= log_end_offset:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within {log_start_offset} and {log_end_offset}"
            )
        return self._plan(offset, self._bound(max_offset), max_bytes)

    def plan_copy(self, offset: int, max_bytes: int) -> ReadPlan | None:
        """As `plan_read` up to the log end, also below the log start, and from the first batch on where `offset` is not
        there any more."""
        self._context.check_online()
        return self._plan(offset, self._offsets.log_end_offset, max_bytes)

    def bytes_from(self, offset: int) -> int:
        """Tells how many bytes of batches the log has from that offset on. Raises `LogError` as `plan_read`."""
        self._context.check_online()
        segments = self._segments.starting_with(offset)
        plan = self._plan(offset, self._offsets.log_end_offset, 0)
        if plan is None:
            return 0
        after = segments[segments.index(plan.segment) + 1 :]
        return plan.segment.size_bytes - plan.position + sum(segment.size_bytes for segment in after)

    def place_of(self, offset: int) -> tuple[list[Segment], int]:
        """The segments from the one that holds `offset` on, and the position in the first from which a walk leads to
        it; 0 where a damaged batch may hide it. Raises `LogError` (LOG_STORAGE_ERROR)."""
        self._context.check_online()
        segments = self._segments.starting_with(offset)
        if segments[0] in self._damage:
            return segments, 0
        try:
            found = segments[0].position_of(offset)
        except (CorruptBatchError, OSError) as error:
            if segments[0].released:  # another thread has put another one in its place
                return self.place_of(offset)
            if isinstance(error, OSError):
                raise self._context.refusal(error) from error
            found = None
        return segments, 0 if found is None else found[0]

    def batch_start(self, offset: int) -> int:
        """The base offset of the batch that holds `offset`, or `offset` where it is in front of a batch; the log end
        where there is none. Raises `LogError` (LOG_STORAGE_ERROR)."""
        if offset <= self._segments.present[0].base_offset:
            return max(offset, 0)
        try:
            for segment in self._segments.starting_with(offset):
                found = segment.position_of(offset)
                if found is not None:
                    return min(found[1].base_offset, offset)
        except CorruptBatchError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self._context.directory}: {error}") from error
        except OSError as error:
            raise self._context.refusal(error) from error
        return self._offsets.log_end_offset

    def list_offset(self, timestamp: int, max_offset: int = -1) -> FoundOffset:
        """See `timestamp_lookup.find_offset`. Raises `LogError`: CORRUPT_MESSAGE, LOG_STORAGE_ERROR."""
        return finished(self.search_offset(timestamp, max_offset))

    def search_offset(self, timestamp: int, max_offset: int = -1) -> Search:
        """`list_offset` in steps, between which what is in a batch may be found out in a thread. What has the log for
        itself meanwhile ends the search: the caller closes it. Raises as `list_offset`; a `CorruptBatchError` that is
        thrown into it is damage."""
        self._context.check_online()
        bound = self._bound(max_offset)
        segments = self._segments.present.copy()
        try:
            found = yield from find_offset(
                segments, self._epochs.cache, self._offsets.log_start_offset, bound, timestamp
            )
        except (CorruptBatchError, OSError) as error:
            # Another thread has put others in their place, or the log was cut between two steps.
            if any(segment.released for segment in segments) or self._offsets.log_end_offset < bound:
                return (yield from self.search_offset(timestamp, max_offset))
            if isinstance(error, OSError):
                raise self._context.refusal(error) from error
            # In whichever segment: the sealed ones are scrubbed.
            active = self._segments.active
            raise DamagedError(active.base_offset, f"{self._context.directory}: {error}") from None
        return found

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """Raises `LogError` (LOG_STORAGE_ERROR)."""
        self._context.check_online()
        return self._epochs.cache.end_offset_for(leader_epoch, self._offsets.log_end_offset)

    def _bound(self, max_offset: int) -> int:
        log_end_offset = self._offsets.log_end_offset
        return log_end_offset if max_offset < 0 else min(max_offset, log_end_offset)

    def _plan(self, offset: int, bound: int, max_bytes: int) -> ReadPlan | None:
        if offset >= bound:
            return None
        segment = self._segments.active
        try:
            for segment in self._segments.starting_with(offset):
                found = segment.position_of(offset)
                if found is not None:
                    position, header = found
                    self._check_place(position, header, offset)
                    if header.base_offset >= bound:
                        return None
                    return ReadPlan(self._context.disk, segment, segment.opened_file(), position, max_bytes, bound)
        except (CorruptBatchError, OSError) as error:
            if segment.released:  # another thread has put another one in its place
                return self._plan(offset, bound, max_bytes)
            if isinstance(error, OSError):
                raise self._context.refusal(error) from error
            raise DamagedError(segment.base_offset, f"{segment.path}: {error}") from None
        return None

    def _check_place(self, position: int, header: BatchHeader, offset: int) -> None:
        """Base offsets are not under the CRC. Raises `CorruptBatchError`."""
        if header.last_offset >= self._offsets.log_end_offset:
            raise CorruptBatchError(position, f"offset {header.last_offset} is beyond the log end")
        if self._segments.contiguous and header.base_offset > max(offset, self._segments.present[0].base_offset):
            raise CorruptBatchError(position, f"offsets {offset} to {header.base_offset - 1} are missing")
