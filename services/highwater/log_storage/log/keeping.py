"""What a log knows of its producers outlives their records, and a power loss, too: before retention, DeleteRecords or
compaction take records that tell the same, a snapshot behind them says it, on disk for good."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from highwater.log_storage.files.disk import is_unreadable
from highwater.log_storage.log.log_core import NO_OFFSET, LogCore
from highwater.log_storage.producers import pending_snapshots, producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerState, ProducerStates
from highwater.log_storage.segment.segment import Segment
from highwater.records import CorruptBatchError


class LogKeeping(LogCore):
    def must_keep_producers(self, offset: int) -> bool:
        """Whether `keep_producers` has anything to do."""
        return len(self._going(offset)) > 1

    def prepare_log_start(self, offset: int) -> None:
        """`keep_producers`. Raises `LogError`: LOG_STORAGE_ERROR; STORAGE_FULL, to be tried again."""
        try:
            self.keep_producers(offset)
        except OSError as error:
            raise self._fail_unless_passing(error) from error

    def keep_producers(self, offset: int) -> None:
        """Before the segments below the one that holds `offset` go. May be called in a thread, beside appends and a
        rising log start, by whoever has the log's `maintenance`. Raises `OSError`: nothing may go then."""
        while len(segments := self._going(offset)) > 1:
            *going, kept = segments
            try:
                self._keep(going, kept)
            except FileNotFoundError:
                if not any(segment.released for segment in going):
                    raise
            else:
                kept.producers_kept = True

    def keep_producers_of(self, source: LogKeeping) -> None:
        """After they were taken over from a log that knew of more than its batches tell: no truncation to the high
        watermark or above it forgets them. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        source.write_snapshots()
        self.pending_snapshots.drop_above(NO_OFFSET)
        for segment in self.segments:
            segment.producers_told = False
        first = max(bisect_right(self.segments, self.high_watermark, key=attrgetter("base_offset")) - 1, 0)
        for below, kept in enumerate(self.segments[first:], first):
            offset = kept.base_offset
            theirs = source._producers_on_file(offset)
            try:
                self._write_snapshot(offset, _later(self._states_below(self.segments[:below], offset), theirs))
            except OSError as error:
                raise self._fail_unless_passing(error) from error
            kept.producers_told = kept.producers_kept = True

    def _producers_on_file(self, offset: int) -> ProducerStates:
        """What the last snapshot says that is not above the offset. Raises `LogError` (LOG_STORAGE_ERROR)."""
        start_offset, now_ms = self.segments[0].base_offset, _newest_ms(self.producers)
        try:
            _, states = producer_snapshots.latest(self.directory, start_offset, offset, now_ms, self._wall_offset_ms)
        except OSError as error:
            raise self._refusal(error) from error
        return states

    def _going(self, offset: int) -> Sequence[Segment]:
        """The segments below the one that holds the offset, and that one; nothing where they may go."""
        with self.structure:  # other threads take segments out
            segments = self.segments.copy()
        below = max(bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)
        return () if segments[below].producers_kept or not len(self.producers) else segments[: below + 1]

    def _keep(self, going: Sequence[Segment], kept: Segment) -> None:
        """Raises `OSError`."""
        offset = kept.base_offset
        if (pending := self.pending_snapshots.first()) is not None and pending <= offset:
            self.disk.using_reserve(lambda: self.pending_snapshots.write(self.directory, self._wall_offset_ms))
        if kept.producers_told:
            with suppress(FileNotFoundError):
                producer_snapshots.sync(self.directory, offset)
                return
        self._write_snapshot(offset, self._states_below(going, offset))

    def _write_snapshot(self, offset: int, states: ProducerStates) -> None:
        """Raises `OSError`."""
        self.disk.using_reserve(
            lambda: producer_snapshots.write_durably(
                self.directory, offset, states, self._wall_offset_ms, pause=pending_snapshots.pause
            )
        )

    def _states_below(self, segments: Sequence[Segment], offset: int) -> ProducerStates:
        """What the files say, and where they do not know a producer (a kill while a snapshot was pending, one that is
        torn or cannot be read, the copy of a log that moved), what is in memory of its batches below the offset. Raises
        `OSError`."""
        present = self.producers.copy()
        states = ProducerStates()
        try:
            if segments:
                states = producer_snapshots.restore(
                    self.directory, segments, offset, _newest_ms(present), self._wall_offset_ms
                )
        except (CorruptBatchError, OSError) as error:
            if isinstance(error, OSError) and not is_unreadable(error):
                raise
        in_memory = ProducerStates()
        for producer_id, state in present.items():
            if below := tuple(batch for batch in state.batches if batch.last_offset < offset):
                in_memory.put(producer_id, replace(state, batches=below))
        return _later(states, in_memory)


def _later(states: ProducerStates, others: ProducerStates) -> ProducerStates:
    """`states`, with those of the others that know of later batches, or of more."""
    for producer_id, other in others.items():
        known = states.get(producer_id)
        if known is None or _extent(known) < _extent(other):
            states.put(producer_id, other)
    return states


def _extent(state: ProducerState) -> tuple[int, int]:
    return state.batches[-1].last_offset, len(state.batches)


def _newest_ms(states: ProducerStates) -> int:
    return max((state.updated_ms for _, state in states.items()), default=0)
