"""Raising a log's start and letting go of its oldest segments: by age, by size, by DeleteRecords, after a leader."""

from __future__ import annotations

from highwater.atomic_file import fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.flusher import Flusher
from highwater.log_storage.log.leader_epoch_file import LeaderEpochFile
from highwater.log_storage.log.log_context import LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.log_writer import LogWriter
from highwater.log_storage.log.producer_state_manager import ProducerStateManager
from highwater.log_storage.log.retention import UNLIMITED, Aged, Limits, expired_segments
from highwater.log_storage.log.segment_list import SegmentList
from highwater.records import CorruptBatchError


class LogStart:
    """Nothing goes before what it tells of epochs and producers is on disk elsewhere; and the log starts nowhere before
    the batches below that are on disk: a loss of power would take them, and what they alone tell of producers
    (RULES 5.8)."""

    def __init__(
        self,
        context: LogContext,
        segments: SegmentList,
        epochs: LeaderEpochFile,
        producer_state: ProducerStateManager,
        offsets: LogOffsets,
        writer: LogWriter,
        flusher: Flusher,
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._producer_state = producer_state
        self._offsets = offsets
        self._writer = writer
        self._flusher = flusher

    def raise_to(self, offset: int) -> None:
        """Raises the log start and lets go of the segments below it. Lower than the present one: no effect.

        Raises `LogError`: OFFSET_OUT_OF_RANGE above the high watermark, LOG_STORAGE_ERROR; STORAGE_FULL, with the log
        start where it was."""
        self._context.check_online()
        if offset > self._offsets.high_watermark:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start {offset} would be above the high watermark {self._offsets.high_watermark}",
            )
        if offset > self._offsets.log_start_offset:
            self._raise_to(offset)

    def reach(self, offset: int) -> None:
        """Raises the log start to what is due of `offset`, once that is in the checkpoint. Raises `LogError`
        (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        offset = min(offset, self._offsets.log_start_due)
        if offset > self._offsets.log_start_offset:
            self._raise_to(offset)

    def _raise_to(self, offset: int) -> None:
        self._sync_below(offset)
        self.prepare(offset)
        self._offsets.log_start_offset = max(self._offsets.log_start_offset, offset)
        self.release_segments()

    def _sync_below(self, offset: int) -> None:
        if self.must_sync(offset):
            self._flusher.sync()

    def must_sync(self, offset: int) -> bool:
        """Tells whether batches have to come to disk before the log starts there."""
        return offset > max(self._offsets.log_start_offset, self._offsets.synced_offset)

    def must_prepare(self, offset: int) -> bool:
        """Tells whether anything has to come to disk before the log starts there."""
        return self.must_sync(offset) or self._producer_state.must_keep(offset)

    def prepare(self, offset: int) -> None:
        """Before the log starts there: keeps what it knows of its producers. May be called in a thread, as
        `ProducerStateManager.keep`. Raises `LogError`: LOG_STORAGE_ERROR; STORAGE_FULL, to be tried again."""
        try:
            self._producer_state.keep(offset)
        except OSError as error:
            raise self._context.fail_unless_passing(error) from error

    def expired(self, wall_clock_ms: int) -> int:
        """Tells how many segments, from the oldest on, retention lets go (`retention.expired_segments`). Raises
        `LogError` (LOG_STORAGE_ERROR)."""
        self._context.check_online()
        config, offsets = self._context.config, self._offsets
        limits = Limits(config.retention_ms, config.retention_bytes) if config.deletes else Limits(UNLIMITED, UNLIMITED)
        segments = self._segments.present.copy()
        ends = [*(segment.base_offset for segment in segments[1:]), offsets.log_end_offset]
        try:
            return expired_segments(
                # Read from files where it is not known yet: only of those that may go.
                (Aged(end, segment.size_bytes, segment.newest_ms) for segment, end in zip(segments, ends, strict=True)),
                sum(segment.size_bytes for segment in segments),
                limits,
                log_start_offset=offsets.log_start_offset,
                high_watermark=offsets.high_watermark,
                wall_clock_ms=wall_clock_ms,
            )
        except CorruptBatchError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self._context.directory}: {error}") from error
        except OSError as error:
            raise self._context.refusal(error) from error

    def behind(self, count: int) -> int:
        """The offset behind the log's `count` oldest segments."""
        with self._segments.changing:
            segments = self._segments.present.copy()
        return segments[count].base_offset if count < len(segments) else self._offsets.log_end_offset

    def move_behind(self, count: int) -> None:
        """The log starts behind its `count` oldest segments, which `release_segments` then lets go of: once the log
        start is on disk. Where all of them go, an active one is begun. Producers outlive their records. Raises
        `LogError`: LOG_STORAGE_ERROR; STORAGE_FULL, with the log start where it was."""
        assert 0 < count <= len(self._segments.present)
        start = self.behind(count)
        self._epochs.write_before_start(start)
        if count == len(self._segments.present):
            try:
                self._writer.roll(self._offsets.log_end_offset)
                fsync_directory(self._context.directory)
            except (OSError, CorruptBatchError) as error:
                raise self._context.fail_unless_passing(error) from error
        self._sync_below(start)
        self.prepare(start)
        self._offsets.log_start_offset = max(self._offsets.log_start_offset, start)
        # What is not committed is never let go.
        assert self._offsets.log_start_offset <= self._offsets.high_watermark

    def release_segments(self) -> None:
        """Lets go of the segments below the log start. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        log_start_offset = self._offsets.log_start_offset
        self._epochs.write_before_start(log_start_offset)
        self.prepare(log_start_offset)
        # The epoch of the batch before the log start stays: it is the log's last one where no other batch is left.
        self._epochs.cache.truncate_from_start(log_start_offset - 1)
        try:
            if self._segments.release_below(log_start_offset):
                self._producer_state.remove_needless()
        except OSError as error:
            raise self._context.fail_unless_passing(error) from error
