"""One partition's log: its segments, offsets, epochs and producers. Driven by one thread at a time; only a `Flush`
may run beside appends.

Offsets: log start ≤ high watermark ≤ log end, and recovery point ≤ log end: batches below the recovery point have been
fsynced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage import appending, checkpoints, producer_snapshots
from highwater.log_storage.appending import GivenBatch, NewBatch
from highwater.log_storage.config import LogConfig
from highwater.log_storage.durable import fsync_directory
from highwater.log_storage.epochs import EpochEnd, EpochEntry, LeaderEpochCache
from highwater.log_storage.errors import LogError
from highwater.log_storage.lookups import FoundOffset, find_offset
from highwater.log_storage.producers import ProducerStates
from highwater.log_storage.retention import UNLIMITED, Aged, Limits, expired_segments
from highwater.log_storage.segment import Segment
from highwater.records import (
    STAMP_BYTES,
    BatchHeader,
    CorruptBatchError,
    ReadableBuffer,
    stamp,
    with_log_append_time,
)

NO_OFFSET = -1
NO_TIME = -1
_NO_BOUND = 2**63 - 1


class LogState(NamedTuple):
    log_end_offset: int
    last_epoch: int  # of the last batch that the log has had, -1 where there was none
    log_start_offset: int
    high_watermark: int


class Appended(NamedTuple):
    """The answer to an append. With duplicates in front of new batches the range goes from the first duplicate's old
    base offset to the last new offset; `duplicate` is true only where nothing was written."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Where a read begins. `run` may be called in a thread."""

    directory: Path
    segment: Segment
    position: int
    max_bytes: int
    max_offset: int

    def run(self) -> bytes:
        """Raises `LogError`: CORRUPT_MESSAGE (invariant 7), LOG_STORAGE_ERROR."""
        try:
            return self.segment.read(self.position, self.max_bytes, self.max_offset)
        except CorruptBatchError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, f"{self.segment.path}: {error}") from None
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.segment.path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Flush:
    """What `begin_flush` found to be written. `run` may be called in a thread; then `finish_flush`."""

    directory: Path
    segments: Sequence[Segment]
    epochs: Sequence[EpochEntry]
    log_end_offset: int

    def run(self) -> None:
        """Raises `OSError`; what is on disk is then not known."""
        for segment in self.segments:
            segment.flush()
        checkpoints.write_epochs(self.directory / checkpoints.LEADER_EPOCHS, self.epochs)
        fsync_directory(self.directory)


class Log:
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
        wall_offset_ms: int = 0,
    ) -> None:
        """Takes over what `recovery.open_log` has found; `segments` has at least one. `wall_offset_ms`: from the time
        that is passed in as `now_ms` to ms since the epoch."""
        assert segments
        self.directory = directory
        self.config = config
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.log_end_offset = segments[-1].end_offset
        self.log_start_offset = log_start_offset
        self.high_watermark = max(log_start_offset, min(high_watermark, self.log_end_offset))  # RULES 4.6
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.synced_offset = self.recovery_point  # batches below it are on disk, their indexes perhaps not
        self.failure: str | None = None  # why the log is offline
        self.removable: list[Path] = []  # renamed to `.deleted`, to be removed
        self._last_epoch = epochs.last_epoch_below(self.log_end_offset)
        self._wall_offset_ms = wall_offset_ms

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LogState:
        return LogState(self.log_end_offset, self._last_epoch, self.log_start_offset, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def last_epoch(self) -> int:
        return self._last_epoch

    def check_online(self) -> None:
        if self.failure is not None:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {self.failure}")

    def fail(self, error: Exception | str) -> LogError:
        """Takes the log offline: what is on disk is not known to be what is in memory."""
        self.failure = self.failure or str(error)
        return LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {self.failure}")

    def become_leader(self, leader_epoch: int) -> None:
        """Records (epoch, log end offset) even where the log is empty (RULES 3.2)."""
        self.check_online()
        try:
            self.epochs.assign(leader_epoch, self.log_end_offset)
        except ValueError as error:
            raise LogError(ErrorCode.STALE_FENCE, str(error)) from None

    def become_follower(self) -> None:
        """Drops the epochs that have written nothing (RULES 4.3)."""
        self.check_online()
        self.epochs.truncate_from_end(self.log_end_offset)

    def raise_high_watermark(self, offset: int) -> None:
        """To `min(offset, log end)` at most, never down (RULES 4.6)."""
        self.high_watermark = max(self.high_watermark, min(offset, self.log_end_offset))

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_as_leader(
        self, records: bytes, leader_epoch: int, expected_offset: int, now_ms: int, wall_clock_ms: int = NO_TIME
    ) -> Appended:
        """Assigns offsets and leader epoch and writes. An append is taken or refused as a whole; `number_batches`
        says what happens to duplicates in it. `now_ms` is for the expiry of producers, `wall_clock_ms` for
        LogAppendTime.

        Raises `LogError`: OFFSET_MISMATCH, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD, what RULES 6.1 says of
        sequences, LOG_STORAGE_ERROR.
        """
        self.check_online()
        self._check_expected(expected_offset)
        batches = appending.read_given(records)
        for batch in batches:
            appending.check_produced(batch.header, self.config)
        append_time = NO_TIME
        if self.config.log_append_time and batches:
            append_time = wall_clock_ms
            records, batches = _with_append_time(records, batches, append_time)
        numbered = appending.number_batches(batches, self.log_end_offset, self.producers, now_ms)
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
        self._write(numbered.new, buffers, now_ms)
        self._note_epoch(leader_epoch, numbered.new[0].base_offset)
        if numbered.producers is not None:
            self.producers = numbered.producers
        else:
            self.producers.update(numbered.new[0].header, numbered.new[0].base_offset, now_ms)
        self.log_end_offset = numbered.new[-1].last_offset + 1
        base = numbered.duplicates[0].base_offset if numbered.duplicates else numbered.new[0].base_offset
        return Appended(base, self.log_end_offset - 1, False, append_time)

    def append_as_follower(
        self,
        records: bytes,
        fenced_epoch: int,
        expected_offset: int,
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> Appended:
        """Writes a leader's batches as they are, then takes its high watermark and log start (RULES 4.6).

        Raises `LogError`: OFFSET_MISMATCH, CORRUPT_MESSAGE, LOG_STORAGE_ERROR.
        """
        self.check_online()
        self._check_expected(expected_offset)
        appended = Appended(NO_OFFSET, NO_OFFSET, False, NO_TIME)
        if records:
            given = appending.read_given(records)
            first_offset = self._first_offset(given)
            batches = appending.check_replicated(given, first_offset, self._last_epoch, fenced_epoch)
            if first_offset < self.log_end_offset:
                self._replace_segments(first_offset)
            view = memoryview(records)
            buffers: list[list[ReadableBuffer]] = [
                [view[batch.position : batch.position + batch.header.size_bytes]] for batch in batches
            ]
            self._write(batches, buffers, now_ms)
            for batch in batches:
                self._note_epoch(batch.header.partition_leader_epoch, max(batch.base_offset, self.log_start_offset))
                self.producers.update(batch.header, batch.base_offset, now_ms)  # RULES 6.2
            appended = Appended(self.log_end_offset, batches[-1].last_offset, False, NO_TIME)
            self.log_end_offset = batches[-1].last_offset + 1
        self.raise_high_watermark(leader_high_watermark)
        if leader_log_start_offset > self.log_start_offset:
            self._raise_log_start(min(leader_log_start_offset, self.high_watermark))
        return appended

    def _first_offset(self, given: Sequence[appending.GivenBatch]) -> int:
        """Where a follower's batches have to begin: at the log end. Only where the leader's log starts inside a batch
        (after DeleteRecords) and so does this one, still without a batch, does the first one begin below it."""
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

    def _note_epoch(self, leader_epoch: int, base_offset: int) -> None:
        if leader_epoch != self._last_epoch:
            self.epochs.assign(leader_epoch, base_offset)
            self._last_epoch = leader_epoch

    def _write(self, batches: list[NewBatch], buffers: list[list[ReadableBuffer]], now_ms: int) -> None:
        """Writes the batches, rolling where a segment is full: all of them, or none and a `LogError`."""
        active, size = self.segments[-1], self.segments[-1].size_bytes
        try:
            start = 0
            while start < len(batches):
                end = self._roll_if_full(batches, start, now_ms)
                run = batches[start:end]
                total = sum(batch.header.size_bytes for batch in run)
                pieces = buffers[start] if len(run) == 1 else [piece for some in buffers[start:end] for piece in some]
                segment = self.segments[-1]
                position = segment.append(pieces, total)
                for batch in run:
                    segment.note(position, batch.header.size_bytes, batch.last_offset, batch.header.max_timestamp)
                    position += batch.header.size_bytes
                start = end
        except OSError as error:
            self._undo(active, size)
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: the append failed and left nothing behind: {error}"
            ) from error
        except CorruptBatchError as error:
            raise self.fail(error) from error

    def _undo(self, active: Segment, size_bytes: int) -> None:
        """Back to the last good position, or offline: the log end in memory is never ahead of the file."""
        try:
            while self.segments[-1] is not active:
                self.segments.pop().remove()
            producer_snapshots.remove_above(self.directory, self.log_end_offset)
            if active.size_bytes > size_bytes:
                active.truncate(size_bytes, self.log_end_offset)
            else:
                active.undo(size_bytes)
        except (OSError, CorruptBatchError) as error:
            raise self.fail(error) from error

    def _roll_if_full(self, batches: list[NewBatch], start: int, now_ms: int) -> int:
        """Rolls if the active segment cannot take the batch at `start`; how far the batches fit the segment then."""
        first = batches[start]
        segment = self.segments[-1]
        limit = self.config.segment_bytes
        old = (
            segment.first_timestamp >= 0 and first.header.max_timestamp - segment.first_timestamp > self.config.roll_ms
        )
        if segment.size_bytes and (
            segment.size_bytes + first.header.size_bytes > limit
            or old
            or segment.full
            or not segment.takes(first.last_offset)
        ):
            producers = self.producers
            if start:
                producers = producers.copy()
                for batch in batches[:start]:
                    producers.update(batch.header, batch.base_offset, now_ms)
            segment = self.roll(first.base_offset, producers)
        size = segment.size_bytes + first.header.size_bytes
        end = start + 1
        while end < len(batches):
            size += batches[end].header.size_bytes
            if size > limit or not segment.takes(batches[end].last_offset):
                break
            end += 1
        return end

    def roll(self, base_offset: int, producers: ProducerStates) -> Segment:
        """Begins a new segment at `base_offset`, below which `producers` is what is known of them. Raises `OSError`,
        `CorruptBatchError`."""
        self.segments[-1].seal()
        producer_snapshots.write(self.directory, base_offset, producers, self._wall_offset_ms)
        segment = self._new_segment(base_offset)
        self.segments.append(segment)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        return new_segment(self.directory, base_offset, self.config)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, at least one (RULES 4.8), up to `max_bytes`, from one
        segment and below `max_offset` (-1: the log end). Empty at or above the bound.

        Raises `LogError`: OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE (invariant 7), LOG_STORAGE_ERROR.
        """
        plan = self.plan_read(offset, max_offset, max_bytes)
        return b"" if plan is None else plan.run()

    def plan_read(self, offset: int, max_offset: int, max_bytes: int) -> ReadPlan | None:
        """`read` in two steps, of which the second may run in a thread. None: nothing to read."""
        self.check_online()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} and {self.log_end_offset}",
            )
        bound = self.log_end_offset if max_offset < 0 else min(max_offset, self.log_end_offset)
        if offset >= bound:
            return None
        try:
            for segment in self.segments[self._segment_number(offset) :]:
                found = segment.position_of(offset)
                if found is not None:
                    position, header = found
                    if header.base_offset >= bound:
                        return None
                    return ReadPlan(self.directory, segment, position, max_bytes, bound)
        except CorruptBatchError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, f"{self.directory}: {error}") from None
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: {error}") from error
        return None

    def list_offset(self, timestamp: int, max_offset: int = -1) -> FoundOffset:
        """See `lookups.find_offset`. Raises `LogError`: CORRUPT_MESSAGE, LOG_STORAGE_ERROR."""
        self.check_online()
        bound = self.log_end_offset if max_offset < 0 else min(max_offset, self.log_end_offset)
        try:
            return find_offset(self.segments, self.epochs, self.log_start_offset, bound, timestamp)
        except CorruptBatchError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, f"{self.directory}: {error}") from None
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: {error}") from error

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        self.check_online()
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def headers(self) -> Iterator[BatchHeader]:
        """Every batch of the log, oldest first. Raises `CorruptBatchError`, `OSError`."""
        for segment in self.segments:
            for _, header in segment.headers(0):
                yield header

    def _segment_number(self, offset: int) -> int:
        return max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)

    # -- cutting ------------------------------------------------------------------------------------------------------

    def cut_for(self, offset: int, unclean_epoch: int) -> int:
        """Where truncation to `offset` really cuts: at the start of the batch that holds it, or at the log end.

        Raises `LogError`: TRUNCATION_BELOW_HIGH_WATERMARK unless `unclean_epoch` is above the last epoch (RULES 4.4).
        """
        self.check_online()
        cut = self.log_end_offset
        if offset < self.log_end_offset:
            cut = self._batch_start(offset)
        self._check_cut(cut, unclean_epoch)
        return cut

    def check_restart_at(self, offset: int, unclean_epoch: int) -> None:
        """Whether TruncateFullyAndStartAt may happen: the same bound (RULES 4.4)."""
        self.check_online()
        if offset < 0:
            raise LogError(ErrorCode.INVALID_REQUEST, f"a log cannot start at offset {offset}")
        self._check_cut(offset, unclean_epoch)

    def _check_cut(self, cut: int, unclean_epoch: int) -> None:
        if cut < self.high_watermark and unclean_epoch <= self._last_epoch:
            raise LogError(
                ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK,
                f"{self.directory}: truncation to {cut} would drop offsets below the high watermark "
                f"{self.high_watermark}, and the last unclean epoch {unclean_epoch} is not above the log's last epoch "
                f"{self._last_epoch}",
            )

    def _batch_start(self, offset: int) -> int:
        if offset <= self.segments[0].base_offset:
            return max(offset, 0)
        try:
            for segment in self.segments[self._segment_number(offset) :]:
                found = segment.position_of(offset)
                if found is not None:
                    return min(found[1].base_offset, offset)
        except (CorruptBatchError, OSError) as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: {error}") from error
        return self.log_end_offset

    def truncate_to(self, cut: int) -> None:
        """Drops every batch at or above `cut`, as `cut_for` gave it, and the epochs that then have written nothing
        (RULES 4.3). The checkpoints must not promise more than `cut` any more. Raises `LogError`
        (LOG_STORAGE_ERROR)."""
        if cut < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(cut)
            return
        try:
            if cut < self.log_end_offset:
                self._drop_batches(cut)
            self.epochs.truncate_from_end(cut)
        except (OSError, CorruptBatchError) as error:
            raise self.fail(error) from error

    def _drop_batches(self, cut: int) -> None:
        producer_snapshots.remove_above(self.directory, cut)
        # Newest first, so that a crash on the way leaves a prefix.
        while len(self.segments) > 1 and self.segments[-1].base_offset >= cut:
            self.segments.pop().remove()
        last = self.segments[-1]
        found = last.position_of(cut)
        if found is not None:
            last.truncate(found[0], cut)
        elif last.end_offset > cut:
            raise CorruptBatchError(last.size_bytes, f"no batch at offset {cut}")
        self._set_end(cut)
        self.epochs.truncate_from_end(cut)
        self._last_epoch = self.epochs.last_epoch_below(cut)
        self.log_start_offset = min(self.log_start_offset, cut)
        if not self.producers.outlives(cut):
            self._restore_producers(cut)

    def _restore_producers(self, cut: int) -> None:
        """Those that wrote above the cut are what they were below it; of the others all is known."""
        outlive = [(who, state) for who, state in self.producers.items() if state.batches[-1].last_offset < cut]
        now_ms = max(state.updated_ms for _, state in self.producers.items())
        self.producers = producer_snapshots.restore(self.directory, self.segments, cut, now_ms, self._wall_offset_ms)
        for who, state in outlive:
            self.producers.put(who, state)

    def promise_at_most(self, cut: int) -> bool:
        """Lowers recovery point and high watermark before a cut, so that the checkpoints can be written first: after a
        crash they must not speak for what was dropped. Whether they have to be written."""
        changed = cut < self.recovery_point or cut < self.high_watermark
        self.recovery_point = min(self.recovery_point, cut)
        self.synced_offset = min(self.synced_offset, cut)
        self.high_watermark = min(self.high_watermark, cut)
        self.log_start_offset = min(self.log_start_offset, cut)
        return changed

    def _set_end(self, offset: int) -> None:
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.synced_offset = min(self.synced_offset, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log starts and ends at `offset`. Raises `LogError` (LOG_STORAGE_ERROR)."""
        self._replace_segments(offset)
        self.epochs.clear()
        self.producers.clear()
        self._last_epoch = self.epochs.latest_epoch
        self.log_start_offset = self.high_watermark = offset
        self._set_end(offset)
        self.recovery_point = self.synced_offset = offset

    def _replace_segments(self, base_offset: int) -> None:
        try:
            producer_snapshots.remove_above(self.directory, NO_OFFSET)
            while self.segments:
                self.segments[-1].remove()
                self.segments.pop()
            self.segments.append(self._new_segment(base_offset))
        except OSError as error:
            raise self.fail(error) from error

    def raise_log_start(self, offset: int) -> None:
        """Raises the log start and lets go of the segments below it. Lower than the present one: no effect.

        Raises `LogError`: OFFSET_OUT_OF_RANGE above the high watermark, LOG_STORAGE_ERROR.
        """
        self.check_online()
        if offset > self.high_watermark:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start {offset} would be above the high watermark {self.high_watermark}",
            )
        if offset > self.log_start_offset:
            self._raise_log_start(offset)

    def _raise_log_start(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)
        self.release_segments()

    def expired(self, wall_clock_ms: int) -> int:
        """How many segments, from the oldest on, retention lets go (`retention.expired_segments`). Raises `LogError`
        (LOG_STORAGE_ERROR)."""
        self.check_online()
        limits = Limits(UNLIMITED, UNLIMITED)
        if self.config.deletes:
            limits = Limits(self.config.retention_ms, self.config.retention_bytes)
        ends = [*(segment.base_offset for segment in self.segments[1:]), self.log_end_offset]
        try:
            aged = [
                Aged(end, segment.size_bytes, segment.newest_ms)
                for segment, end in zip(self.segments, ends, strict=True)
            ]
        except OSError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: {error}") from error
        return expired_segments(
            aged,
            limits,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            wall_clock_ms=wall_clock_ms,
        )

    def start_behind(self, count: int) -> None:
        """The log starts behind its `count` oldest segments, which `release_segments` then lets go of: once the log
        start is on disk. Where all of them go, an active one is begun. Producers outlive their records. Raises
        `LogError` (LOG_STORAGE_ERROR)."""
        assert 0 < count <= len(self.segments)
        if count == len(self.segments):
            try:
                self.roll(self.log_end_offset, self.producers)
                fsync_directory(self.directory)
            except (OSError, CorruptBatchError) as error:
                raise self.fail(error) from error
        self.log_start_offset = max(self.log_start_offset, self.segments[count].base_offset)
        assert self.log_start_offset <= self.high_watermark  # what is not committed is never let go

    def release_segments(self) -> None:
        """Lets go of the segments below the log start: out of the log, then renamed to `.deleted`. Who reads one still
        has its file open. Raises `LogError` (LOG_STORAGE_ERROR)."""
        # Where no batch is left, the epoch of the last one stays, not only a later one that has written nothing yet.
        self.epochs.truncate_from_start(min(self.log_start_offset, self.log_end_offset - 1))
        released = False
        try:
            if len(self.segments) > 1 and self.segments[1].base_offset <= self.log_start_offset:
                # Of an epoch whose batches all go, only the file will know.
                checkpoints.write_epochs(self.directory / checkpoints.LEADER_EPOCHS, self.epochs.entries)
            while len(self.segments) > 1 and self.segments[1].base_offset <= self.log_start_offset:
                self.removable += self.segments.pop(0).mark_deleted()
                released = True
            if released:
                producer_snapshots.remove_needless(self.directory, self.segments)
        except OSError as error:
            raise self.fail(error) from error

    # -- durability ---------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush:
        first = self._segment_number(self.recovery_point)
        return Flush(self.directory, self.segments[first:], self.epochs.entries, self.log_end_offset)

    def finish_flush(self, flush: Flush) -> None:
        """After `flush.run`; the log must not have been truncated in between."""
        self.recovery_point = max(self.recovery_point, flush.log_end_offset)
        self.synced_offset = max(self.synced_offset, flush.log_end_offset)

    def flush(self) -> None:
        """Raises `LogError` (LOG_STORAGE_ERROR): the log is offline then."""
        self.check_online()
        flush = self.begin_flush()
        try:
            flush.run()
        except OSError as error:
            raise self.fail(error) from error
        self.finish_flush(flush)

    @property
    def must_sync(self) -> bool:
        """Whether an append has to wait for the disk (`flush.messages`)."""
        return self.log_end_offset - self.synced_offset >= self.config.flush_messages

    def begin_sync(self) -> tuple[Sequence[Segment], int]:
        """The segments to `sync_batches`, and the log end that `finish_sync` may then be told of."""
        return self.segments[self._segment_number(self.synced_offset) :], self.log_end_offset

    def finish_sync(self, log_end_offset: int) -> None:
        self.synced_offset = max(self.synced_offset, log_end_offset)

    def close(self) -> None:
        """Ends the indexes and writes everything to disk. Raises `LogError` (LOG_STORAGE_ERROR)."""
        try:
            self.segments[-1].seal()
            producer_snapshots.write(
                self.directory, self.log_end_offset, self.producers, self._wall_offset_ms, durable=True
            )
        except (OSError, CorruptBatchError) as error:
            raise self.fail(error) from error
        self.flush()

    def remove_deleted(self) -> None:
        """Removes the files that were renamed to `.deleted`."""
        paths, self.removable = self.removable, []
        for path in paths:
            path.unlink(missing_ok=True)


def new_segment(directory: Path, base_offset: int, config: LogConfig) -> Segment:
    """Makes an empty segment. Raises `OSError`."""
    return Segment(
        directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        index_max_bytes=config.index_max_bytes,
        create=True,
    )


def _with_append_time(records: bytes, batches: list[GivenBatch], timestamp_ms: int) -> tuple[bytes, list[GivenBatch]]:
    stamped = b"".join(
        with_log_append_time(records[position : position + header.size_bytes], timestamp_ms)
        for position, header in batches
    )
    return stamped, appending.read_given(stamped)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
