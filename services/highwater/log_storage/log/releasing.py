"""Letting go of a log's oldest segments: by age, by size, by a raised log start."""

from __future__ import annotations

from highwater.atomic_file import fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.keeping import LogKeeping
from highwater.log_storage.log.retention import UNLIMITED, Aged, Limits, expired_segments
from highwater.log_storage.log.rolling import LogRolling
from highwater.log_storage.producers import producer_snapshots
from highwater.records import CorruptBatchError


class LogReleasing(LogKeeping, LogRolling):
    def raise_log_start(self, offset: int) -> None:
        """Raises the log start and lets go of the segments below it. Lower than the present one: no effect.

        Raises `LogError`: OFFSET_OUT_OF_RANGE above the high watermark, LOG_STORAGE_ERROR; STORAGE_FULL, with the log
        start where it was."""
        self.check_online()
        if offset > self.high_watermark:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start {offset} would be above the high watermark {self.high_watermark}",
            )
        if offset > self.log_start_offset:
            self._raise_log_start(offset)

    def reach_log_start(self, offset: int) -> None:
        """Raises the log start to what is due of `offset`, once that is in the checkpoint. Raises `LogError`
        (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        offset = min(offset, self.log_start_due)
        if offset > self.log_start_offset:
            self._raise_log_start(offset)

    def _raise_log_start(self, offset: int) -> None:
        self.prepare_log_start(offset)
        self.log_start_offset = max(self.log_start_offset, offset)
        self.release_segments()

    def expired(self, wall_clock_ms: int) -> int:
        """How many segments, from the oldest on, retention lets go (`retention.expired_segments`). Raises `LogError`
        (LOG_STORAGE_ERROR)."""
        self.check_online()
        limits = Limits(UNLIMITED, UNLIMITED)
        if self.config.deletes:
            limits = Limits(self.config.retention_ms, self.config.retention_bytes)
        segments = self.segments.copy()
        ends = [*(segment.base_offset for segment in segments[1:]), self.log_end_offset]
        try:
            return expired_segments(
                # Read from files where it is not known yet: only of those that may go.
                (Aged(end, segment.size_bytes, segment.newest_ms) for segment, end in zip(segments, ends, strict=True)),
                sum(segment.size_bytes for segment in segments),
                limits,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                wall_clock_ms=wall_clock_ms,
            )
        except CorruptBatchError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: {error}") from error
        except OSError as error:
            raise self._refusal(error) from error

    def behind(self, count: int) -> int:
        """The offset behind its `count` oldest segments."""
        with self.structure:
            segments = self.segments.copy()
        return segments[count].base_offset if count < len(segments) else self.log_end_offset

    def start_behind(self, count: int) -> None:
        """The log starts behind its `count` oldest segments, which `release_segments` then lets go of: once the log
        start is on disk. Where all of them go, an active one is begun. Producers outlive their records. Raises
        `LogError`: LOG_STORAGE_ERROR; STORAGE_FULL, with the log start where it was."""
        assert 0 < count <= len(self.segments)
        start = self.behind(count)
        self._file_epochs(start)
        if count == len(self.segments):
            try:
                self.roll(self.log_end_offset, self.producers)
                fsync_directory(self.directory)
            except (OSError, CorruptBatchError) as error:
                raise self._fail_unless_passing(error) from error
        self.prepare_log_start(start)
        self.log_start_offset = max(self.log_start_offset, start)
        assert self.log_start_offset <= self.high_watermark  # what is not committed is never let go

    def _file_epochs(self, log_start_offset: int) -> None:
        """Before the log starts there: a crash may take all batches behind it that were not flushed, and then only the
        file knows of which epoch the last one was. Raises `LogError` (LOG_STORAGE_ERROR)."""
        if self.epochs.last_epoch_below(log_start_offset) in self._filed_epochs:
            return
        try:
            self.disk.using_reserve(self.write_epochs)
        except OSError as error:
            raise self._fail_unless_passing(error) from error

    def release_segments(self) -> None:
        """Lets go of the segments below the log start: out of the log, then renamed to `.deleted`. Who reads one still
        has its file open. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        self._file_epochs(self.log_start_offset)
        self.prepare_log_start(self.log_start_offset)
        # The epoch of the batch before the log start stays: it is the log's last one where no other batch is left.
        self.epochs.truncate_from_start(self.log_start_offset - 1)
        released = False
        try:
            while True:
                with self.structure:  # cleaned segments may be about to replace these
                    if len(self.segments) < 2 or self.segments[1].base_offset > self.log_start_offset:
                        break
                    segment = self.segments.pop(0)
                    being_renamed = self.let_go_meanwhile is not None
                    if self.let_go_meanwhile is not None:
                        self.let_go_meanwhile.append(segment)
                if not being_renamed:
                    self.removable += segment.mark_deleted()
                released = True
            if released:
                producer_snapshots.remove_needless(self.directory, self.segments)
        except OSError as error:
            raise self._fail_unless_passing(error) from error
