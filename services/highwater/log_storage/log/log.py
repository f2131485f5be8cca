"""One partition's log. Driven by one thread at a time; only a `Flush`, and what makes segments that are to replace
others (`SegmentReplacement`), may run beside appends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from highwater.atomic_file import fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files.disk import Disk
from highwater.log_storage.log import append_validation
from highwater.log_storage.log.append_validation import GivenBatch
from highwater.log_storage.log.flusher import Flusher
from highwater.log_storage.log.leader_epoch_file import LeaderEpochFile
from highwater.log_storage.log.log_context import NO_OFFSET, NO_TIME, LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.log_reader import LogReader
from highwater.log_storage.log.log_start import LogStart
from highwater.log_storage.log.log_writer import LogWriter
from highwater.log_storage.log.producer_state_manager import ProducerStateManager
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.log.segment_replacement import SegmentReplacement
from highwater.log_storage.log.truncation import Truncation
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.segment.damage import KnownDamage
from highwater.log_storage.segment.segment import Segment
from highwater.model.leader_epochs import LeaderEpochCache
from highwater.model.log_state import LogState
from highwater.records import (
    STAMP_BYTES,
    CorruptBatchError,
    ReadableBuffer,
    stamp,
    with_log_append_time,
)


class Appended(NamedTuple):
    """The answer to an append. With duplicates in front of new batches the range goes from the first duplicate's old
    base offset to the last new offset; `duplicate` is true only where nothing was written."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


class Log:
    """A log: what it holds, and what leaders and followers do with it: taking over, and appending.

    State, each with an invariant of its own: `context` (where it is, whether it is online), `offsets`, `segment_list`,
    `leader_epochs`, `producer_state`, `damage` (as scrubbing, and reads that failed, have found it). What is done with
    that state: `writer`, `reader`, `flusher`, `truncation`, `log_start`, `replacement`.
    """

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        *,
        segments: list[Segment],
        epochs: LeaderEpochCache,
        producers: ProducerStates,
        log_start_offset: int,
        high_watermark: int,
        recovery_point: int,
        cleaned_to: int | None = None,
        wall_offset_ms: int = 0,
        gaps: bool = False,
        disk: Disk | None = None,
    ) -> None:
        """Takes over what `recovery.open_log` has found; `segments` has at least one. `wall_offset_ms`: from the time
        that is passed in as `now_ms` to ms since the epoch."""
        self.context = LogContext(directory, config, disk)
        self.segment_list = SegmentList(self.context, segments, gaps=gaps)
        self.offsets = LogOffsets(
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            log_end_offset=segments[-1].end_offset,
            recovery_point=recovery_point,
            cleaned_to=cleaned_to,
        )
        self.leader_epochs = LeaderEpochFile(self.context, epochs, self.offsets.log_end_offset)
        self.producer_state = ProducerStateManager(self.context, self.segment_list, producers, wall_offset_ms)
        self.damage = KnownDamage()
        self.reader = LogReader(self.context, self.segment_list, self.leader_epochs, self.offsets, self.damage)
        self.writer = LogWriter(self.context, self.segment_list, self.producer_state, self.offsets)
        self.flusher = Flusher(self.context, self.segment_list, self.leader_epochs, self.offsets)
        self.truncation = Truncation(
            self.context,
            self.segment_list,
            self.leader_epochs,
            self.producer_state,
            self.offsets,
            self.damage,
            self.reader,
        )
        self.log_start = LogStart(
            self.context,
            self.segment_list,
            self.leader_epochs,
            self.producer_state,
            self.offsets,
            self.writer,
            self.flusher,
        )
        self.replacement = SegmentReplacement(self.context, self.segment_list, self.producer_state, self.offsets)
        self._awaits_no_sync = False

    # -- what it is now -----------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return self.context.directory

    @property
    def config(self) -> LogConfig:
        return self.context.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.context.config = config

    @property
    def disk(self) -> Disk:
        return self.context.disk

    @property
    def failure(self) -> str | None:
        """The reason why the log is offline; None where only its disk may be."""
        return self.context.failure

    @property
    def segments(self) -> list[Segment]:
        """The present ones, oldest first. Another thread may put another list in its place."""
        return self.segment_list.present

    @property
    def epochs(self) -> LeaderEpochCache:
        return self.leader_epochs.cache

    @property
    def last_epoch(self) -> int:
        return self.leader_epochs.last_epoch

    @property
    def producers(self) -> ProducerStates:
        return self.producer_state.states

    @property
    def log_start_offset(self) -> int:
        return self.offsets.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.offsets.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.offsets.log_end_offset

    @property
    def recovery_point(self) -> int:
        return self.offsets.recovery_point

    @property
    def synced_offset(self) -> int:
        return self.offsets.synced_offset

    @property
    def cleaned_to(self) -> int | None:
        return self.offsets.cleaned_to

    @property
    def high_watermark_to_checkpoint(self) -> int:
        return self.offsets.high_watermark_to_checkpoint(self.config.flush_messages)

    @property
    def state(self) -> LogState:
        offsets = self.offsets
        return LogState(
            offsets.log_end_offset, self.leader_epochs.last_epoch, offsets.log_start_offset, offsets.high_watermark
        )

    @property
    def size_bytes(self) -> int:
        return self.segment_list.size_bytes

    # -- leaders and followers ----------------------------------------------------------------------------------------

    def become_leader(self, leader_epoch: int) -> None:
        """Records (epoch, log end offset) even where the log is empty (RULES 3.2)."""
        self.context.check_online()
        try:
            self.epochs.assign(leader_epoch, self.log_end_offset)
        except ValueError as error:
            raise LogError(ErrorCode.STALE_FENCE, str(error)) from None

    def become_follower(self) -> None:
        """Drops the epochs that have written nothing (RULES 4.3)."""
        self.context.check_online()
        self.epochs.truncate_from_end(self.log_end_offset)

    def append_as_leader(
        self, records: bytes, leader_epoch: int, expected_offset: int, now_ms: int, wall_clock_ms: int = NO_TIME
    ) -> Appended:
        """Assigns offsets and leader epoch and writes. An append is taken or refused as a whole; `number_batches`
        says what happens to duplicates in it. `now_ms` is for the expiry of producers, `wall_clock_ms` for
        LogAppendTime.

        Raises `LogError`: OFFSET_MISMATCH, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_REQUEST (too
        many batches), what RULES 6.1 says of sequences, LOG_STORAGE_ERROR.
        """
        config, offsets, states = self.context.config, self.offsets, self.producer_state.states
        self.context.check_online()
        self._check_expected(expected_offset)
        batches = append_validation.read_given(records, append_validation.BATCHES_AN_APPEND)
        for batch in batches:
            append_validation.check_produced(batch.header, config)
        append_time = NO_TIME
        if config.log_append_time and batches:
            append_time = wall_clock_ms
            records, batches = _with_append_time(records, batches, append_time)
        numbered = append_validation.number_batches(batches, offsets.log_end_offset, states, now_ms)
        if not numbered.new:
            if not numbered.duplicates:
                return Appended(NO_OFFSET, NO_OFFSET, False, append_time)
            base, last = numbered.duplicates[0].base_offset, numbered.duplicates[-1].last_offset
            return Appended(base, last, True, append_time)
        view = memoryview(records)
        buffers: list[list[ReadableBuffer]] = [
            [
                stamp(batch.header, batch.base_offset, leader_epoch),
                view[batch.position + STAMP_BYTES : batch.position + batch.header.size_bytes],
            ]
            for batch in numbered.new
        ]
        self.writer.write(numbered.new, buffers, now_ms)
        self.leader_epochs.note(leader_epoch, numbered.new[0].base_offset)
        if numbered.producers is not None:
            states.take(numbered.producers)
        else:
            states.update(numbered.new[0].header, numbered.new[0].base_offset, now_ms)
        offsets.log_end_offset = numbered.new[-1].last_offset + 1
        base = numbered.duplicates[0].base_offset if numbered.duplicates else numbered.new[0].base_offset
        return Appended(base, offsets.log_end_offset - 1, False, append_time)

    def append_as_follower(
        self,
        records: bytes,
        fenced_epoch: int,
        expected_offset: int,
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> Appended:
        """Writes a leader's batches as they are, then takes its high watermark (RULES 4.6). Its log start is due then
        (`log_start_due`): once it is on disk, `LogStart.reach` follows.

        Raises `LogError`: OFFSET_MISMATCH, CORRUPT_MESSAGE, LOG_STORAGE_ERROR.
        """
        offsets = self.offsets
        self.context.check_online()
        self._check_expected(expected_offset)
        appended = Appended(NO_OFFSET, NO_OFFSET, False, NO_TIME)
        if records:
            given = append_validation.read_given(records)
            first_offset = self._first_offset(given)
            batches = append_validation.check_replicated(given, first_offset, self.last_epoch, fenced_epoch)
            if first_offset < offsets.log_end_offset:
                self.truncation.restart_segments_at(first_offset)
            view = memoryview(records)
            buffers: list[list[ReadableBuffer]] = [
                [view[batch.position : batch.position + batch.header.size_bytes]] for batch in batches
            ]
            self.writer.write(batches, buffers, now_ms, followed=True)
            for batch in batches:
                start = max(batch.base_offset, offsets.log_start_offset)
                self.leader_epochs.note(batch.header.partition_leader_epoch, start)
                self.producers.update(batch.header, batch.base_offset, now_ms)  # RULES 6.2
            appended = Appended(offsets.log_end_offset, batches[-1].last_offset, False, NO_TIME)
            offsets.log_end_offset = batches[-1].last_offset + 1
        offsets.raise_high_watermark(leader_high_watermark)
        offsets.raise_due_log_start(leader_log_start_offset)
        return appended

    def _first_offset(self, given: Sequence[GivenBatch]) -> int:
        """The offset at which a follower's batches have to begin: at the log end. Only where the leader's log starts
        inside a batch (after DeleteRecords) and so does this one, still without a batch, does the first one begin below
        it."""
        if given and len(self.segments) == 1 and not self.segments[0].size_bytes:
            header = given[0].header
            if header.base_offset < self.log_start_offset == self.log_end_offset <= header.last_offset:
                return header.base_offset
        return self.log_end_offset

    def _check_expected(self, expected_offset: int) -> None:
        if expected_offset != self.log_end_offset:  # RULES 3.4
            raise LogError(
                ErrorCode.OFFSET_MISMATCH,
                f"the append expects offset {expected_offset}, the log ends at {self.log_end_offset}",
            )

    def read(self, offset: int, max_offset: int, max_bytes: int) -> bytes:
        """See `LogReader.read`."""
        return self.reader.read(offset, max_offset, max_bytes)

    # -- its end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the indexes and writes everything to disk. Raises `LogError` (LOG_STORAGE_ERROR)."""
        self.producer_state.write_snapshots()
        try:
            self.segment_list.active.seal()
            self.producer_state.write_last(self.log_end_offset)
        except (OSError, CorruptBatchError) as error:
            raise self.context.fail(error) from error
        self.flush()

    def await_no_sync(self) -> None:
        """Of a log that is offline: its sealed segments will not be synced, and others may wait for the disk in their
        place. What of them was not written out is in doubt anyway."""
        if not self._awaits_no_sync:
            self._awaits_no_sync = True
            for segment in self.segments[:-1]:
                segment.mark_sealed()

    def flush(self) -> None:
        """See `Flusher.flush`."""
        self.flusher.flush()

    def remove_deleted(self) -> None:
        """Removes the files that were renamed to `.deleted`. Raises `OSError`."""
        for path in self.segment_list.take_removable():
            path.unlink(missing_ok=True)

    def move_to(self, directory: Path) -> None:
        """Renames the log's directory, within one file system: how a `-future` log takes its place. Nothing else may
        happen to the log meanwhile. Raises `LogError` (LOG_STORAGE_ERROR)."""
        try:
            os.rename(self.directory, directory)
            fsync_directory(directory.parent)
        except OSError as error:
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR, f"cannot rename {self.directory} to {directory}: {error}"
            ) from error
        self.segment_list.move_to(directory)


def _with_append_time(records: bytes, batches: list[GivenBatch], timestamp_ms: int) -> tuple[bytes, list[GivenBatch]]:
    stamped = b"".join(
        with_log_append_time(records[position : position + header.size_bytes], timestamp_ms)
        for position, header in batches
    )
    return stamped, append_validation.read_given(stamped)
