"""What a log knows of its producers outlives their records, and a power loss, too: before retention, DeleteRecords or
compaction take records that tell the same, the snapshot behind them is on disk for good."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from highwater.log_storage import producer_snapshots
from highwater.log_storage.log_core import LogCore
from highwater.log_storage.segment import Segment
from highwater.records import CorruptBatchError


class LogKeeping(LogCore):
    _kept_before: Segment | None = None  # the snapshot at its beginning is on disk for good

    def keep_producers(self, offset: int) -> None:
        """Before records below `offset`, where a segment begins or in one, go. Nothing where no segment can go, or
        nobody has to be kept. May be called in a thread beside appends. Raises `OSError`."""
        kept = self._first_kept(offset)
        if kept is None:
            return
        at = kept.base_offset
        if (pending := self.pending_snapshots.first()) is not None and pending <= at:
            self.write_snapshots()
        if at not in producer_snapshots.offsets(self.directory):
            at = self._snapshot_anew(at)  # it was pending when the process was killed
        self._make_durable(kept, at)

    def sync_snapshot(self, log_start_offset: int) -> None:
        """What `keep_producers` would wait for the disk for, if the log started there; to be called in a thread before,
        beside whatever happens to the log. Raises `LogError`: LOG_STORAGE_ERROR, STORAGE_FULL."""
        kept = self._first_kept(log_start_offset)
        if kept is None or self.failure or self.disk.failure:
            return
        self.write_snapshots()
        try:
            self._make_durable(kept, kept.base_offset)
        except OSError as error:
            raise self._fail_unless_passing(error) from error

    def _first_kept(self, offset: int) -> Segment | None:
        """The segment that holds the offset; None where all is known of producers without the ones before it."""
        with self.structure:  # other threads take segments out
            segments = self.segments.copy()
        kept = segments[max(bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)]
        known = kept is segments[0] or kept is self._kept_before or not len(self.producers)
        return None if known else kept

    def _snapshot_anew(self, offset: int) -> int:
        """From the snapshot before it and the batches behind that one; where it is of. Raises `OSError`."""
        going = [segment for segment in self.segments.copy() if segment.base_offset < offset]
        producers = self.producers.copy()
        now_ms = max((state.updated_ms for _, state in producers.items()), default=0)
        try:
            states = producer_snapshots.restore(self.directory, going, offset, now_ms, self._wall_offset_ms)
        except CorruptBatchError:
            offset, states = self.log_end_offset, producers  # of what is going nobody can tell more
        self.pending_snapshots.add(offset, states)
        self.write_snapshots()
        return offset

    def _make_durable(self, kept: Segment, offset: int) -> None:
        if producer_snapshots.make_durable(self.directory, offset):
            self._kept_before = kept
