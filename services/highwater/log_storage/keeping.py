"""What a log knows of its producers outlives their records, and a power loss, too: before retention, DeleteRecords or
compaction take records that tell the same, a snapshot behind them says it, on disk for good."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from highwater.log_storage import producer_snapshots
from highwater.log_storage.log_core import LogCore
from highwater.log_storage.producers import ProducerStates
from highwater.log_storage.segment import Segment
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

    def keep_producers_from(self, offset: int) -> None:
        """After they were taken over from a log that knew of more than its batches tell: a truncation to `offset` or
        above it does not forget them. Raises `OSError`."""
        first = max(bisect_right(self.segments, offset, key=attrgetter("base_offset")) - 1, 0)
        for below, kept in enumerate(self.segments[first:], first):
            self._keep(self.segments[:below], kept)

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
        states = self._states_below(going, offset)
        self.disk.using_reserve(
            lambda: producer_snapshots.write_durably(self.directory, offset, states, self._wall_offset_ms)
        )

    def _states_below(self, going: Sequence[Segment], offset: int) -> ProducerStates:
        """What the files say, and where they do not know a producer (a kill while a snapshot was pending, a torn or
        damaged one, the copy of a log that moved), what is in memory of its batches below the offset. Raises
        `OSError`."""
        present = self.producers.copy()
        now_ms = max((state.updated_ms for _, state in present.items()), default=0)
        states = ProducerStates()
        with suppress(CorruptBatchError):
            if going:
                states = producer_snapshots.restore(self.directory, going, offset, now_ms, self._wall_offset_ms)
        for producer_id, state in present.items():
            below = tuple(batch for batch in state.batches if batch.last_offset < offset)
            known = states.get(producer_id)
            if below and (known is None or known.batches[-1].last_offset < below[-1].last_offset):
                states.put(producer_id, replace(state, batches=below))
        return states
