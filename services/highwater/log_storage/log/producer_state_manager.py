"""The states of a log's producers, in memory and in snapshots.

It outlives their records, and a power loss, too: before retention, DeleteRecords or compaction take records that tell
the same, a snapshot behind them says it, on disk for good.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from highwater.log_storage.files.disk import is_unreadable
from highwater.log_storage.log.log_context import NO_OFFSET, LogContext
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.producers import pending_snapshots, producer_snapshots
from highwater.log_storage.producers.pending_snapshots import PendingSnapshots
from highwater.log_storage.producers.producer_states import ProducerLimits, ProducerState, ProducerStates
from highwater.log_storage.segment.segment import Segment
from highwater.records import CorruptBatchError
from highwater.telemetry.log import get_logger

_log = get_logger("log_storage.log")


class ProducerStateManager:
    """`states` are in memory, `pending` the snapshots that rolls have asked for and that are not on disk yet."""

    def __init__(self, context: LogContext, segments: SegmentList, states: ProducerStates, wall_offset_ms: int) -> None:
        """`wall_offset_ms`: from the time that is passed in as `now_ms` to ms since the epoch."""
        self._context = context
        self._segments = segments
        self.states = states
        self.pending = PendingSnapshots()
        self._wall_offset_ms = wall_offset_ms

    @property
    def limits(self) -> ProducerLimits:
        return self._context.config.producer_limits

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def write_pending(self) -> None:
        """Raises `OSError`."""
        self.pending.write(self._context.directory, self._wall_offset_ms)

    def write_snapshots(self) -> None:
        """Brings the pending snapshots to their files; in a thread, beside appends. One that cannot be written is tried
        again later: the log can do without, as long as no records go."""
        try:
            self._context.disk.using_reserve(self.write_pending)
        except OSError as error:
            self._context.disk.note(error)
            _log.warning("%s: a snapshot of the producers is not written: %s", self._context.directory, error)

    def write_last(self, log_end_offset: int) -> None:
        """Before the log is closed. Raises `OSError`."""
        self._context.disk.using_reserve(
            lambda: producer_snapshots.write_durably(
                self._context.directory, log_end_offset, self.states, self._wall_offset_ms
            )
        )

    def remove_above(self, offset: int, spared: int = NO_OFFSET) -> None:
        """Drops the snapshots of what is above, pending or written, but for the one at `spared`. Raises `OSError`."""
        self.pending.drop_above(offset)
        producer_snapshots.remove_above(self._context.directory, offset, spared)

    def remove_needless(self) -> None:
        """Raises `OSError`."""
        producer_snapshots.remove_needless(self._context.directory, self._segments.present)

    def restore(self, cut: int) -> None:
        """After the log has been cut there: those that wrote above are what they were below it; of the others all is
        known. Raises `CorruptBatchError`, `OSError`."""
        if self.states.outlives(cut):
            return
        self.write_snapshots()  # those below the cut
        outlive = [(who, state) for who, state in self.states.items() if state.batches[-1].last_offset < cut]
        now_ms = max(state.updated_ms for _, state in self.states.items())
        self.states = producer_snapshots.restore(
            self._context.directory, self._segments.present, cut, now_ms, self._wall_offset_ms, self.limits
        ).merged(outlive)

    # -- before records go --------------------------------------------------------------------------------------------

    def must_keep(self, offset: int) -> bool:
        """Tells whether `keep` has anything to do."""
        return len(self._going(offset)) > 1

    def keep(self, offset: int) -> None:
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

    def take_over(self, source: ProducerStateManager, high_watermark: int) -> None:
        """Takes over what a log knows of its producers that knew of more than its batches tell: no truncation to the
        high watermark or above it forgets them. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        self.states = source.states.copy()
        source.write_snapshots()
        self.pending.drop_above(NO_OFFSET)
        segments = self._segments.present
        for segment in segments:
            segment.producers_told = False
        first = max(bisect_right(segments, high_watermark, key=attrgetter("base_offset")) - 1, 0)
        for below, kept in enumerate(segments[first:], first):
            offset = kept.base_offset
            theirs = source._on_file(offset)
            try:
                self._write(offset, _later(self._states_below(segments[:below], offset), theirs.items()))
            except OSError as error:
                raise self._context.fail_unless_passing(error) from error
            kept.producers_told = kept.producers_kept = True

    def _on_file(self, offset: int) -> ProducerStates:
        """Reads the last snapshot that is not above the offset. Raises `LogError` (LOG_STORAGE_ERROR)."""
        directory, start_offset = self._context.directory, self._segments.present[0].base_offset
        try:
            _, states = producer_snapshots.latest(
                directory, start_offset, offset, _newest_ms(self.states), self._wall_offset_ms, limits=self.limits
            )
        except OSError as error:
            raise self._context.refusal(error) from error
        return states

    def _going(self, offset: int) -> Sequence[Segment]:
        """The segments below the one that holds the offset, and that one; nothing where they may go."""
        segments = self._segments.up_to(offset)
        return () if segments[-1].producers_kept or not len(self.states) else segments

    def _keep(self, going: Sequence[Segment], kept: Segment) -> None:
        """Raises `OSError`."""
        offset = kept.base_offset
        if (pending := self.pending.first()) is not None and pending <= offset:
            self._context.disk.using_reserve(self.write_pending)
        if kept.producers_told:
            with suppress(FileNotFoundError):
                producer_snapshots.sync(self._context.directory, offset)
                return
        self._write(offset, self._states_below(going, offset))

    def _write(self, offset: int, states: ProducerStates) -> None:
        """Raises `OSError`."""
        self._context.disk.using_reserve(
            lambda: producer_snapshots.write_durably(
                self._context.directory, offset, states, self._wall_offset_ms, pause=pending_snapshots.pause
            )
        )

    def _states_below(self, segments: Sequence[Segment], offset: int) -> ProducerStates:
        """Finds what the files say, and where they do not know a producer (a kill while a snapshot was pending, one
        that is torn or cannot be read, the copy of a log that moved), what is in memory of its batches below the
        offset. Raises `OSError`."""
        present = self.states.copy()
        states = ProducerStates(self.limits)
        try:
            if segments:
                states = producer_snapshots.restore(
                    self._context.directory, segments, offset, _newest_ms(present), self._wall_offset_ms, self.limits
                )
        except (CorruptBatchError, OSError) as error:
            if isinstance(error, OSError) and not is_unreadable(error):
                raise
        in_memory = (
            (producer_id, replace(state, batches=below))
            for producer_id, state in present.items()
            if (below := tuple(batch for batch in state.batches if batch.last_offset < offset))
        )
        return _later(states, in_memory)


def _later(states: ProducerStates, others: Iterable[tuple[int, ProducerState]]) -> ProducerStates:
    """`states`, with those of the others that know of later batches, or of more."""
    later = []
    for producer_id, other in others:
        known = states.get(producer_id)
        if known is None or _extent(known) < _extent(other):
            later.append((producer_id, other))
    return states.merged(later)


def _extent(state: ProducerState) -> tuple[int, int]:
    return state.batches[-1].last_offset, len(state.batches)


def _newest_ms(states: ProducerStates) -> int:
    return max((state.updated_ms for _, state in states.items()), default=0)
