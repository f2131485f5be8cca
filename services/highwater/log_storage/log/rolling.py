"""Writing batches to the active segment, and beginning the next one where it is full."""

from __future__ import annotations

from hashlib import blake2b

from highwater.log_storage.log.append_validation import NewBatch
from highwater.log_storage.log.log_core import LogCore
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.segment.offset_index import MAX_RELATIVE_OFFSET
from highwater.log_storage.segment.segment import Segment
from highwater.records import CorruptBatchError, ReadableBuffer


class LogRolling(LogCore):
    _appended_since: tuple[Segment, int] | None = None  # the active segment, and when this process first met it

    def _write(self, batches: list[NewBatch], buffers: list[list[ReadableBuffer]], now_ms: int) -> None:
        """Writes the batches, rolling where a segment is full: all of them, or none and a `LogError`."""
        self.disk.check_room()
        active, size = self.segments[-1], self.segments[-1].size_bytes
        try:
            start, next_offset = 0, self.log_end_offset
            for batch in batches:
                if batch.base_offset > next_offset:
                    self.note_gaps()
                next_offset = batch.last_offset + 1
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
            raise self.disk.refusal(error, f"{self.directory}: the append failed and left nothing behind") from error
        except CorruptBatchError as error:
            raise self.fail(error) from error

    def _undo(self, active: Segment, size_bytes: int) -> None:
        """Back to the last good position, or offline: the log end in memory is never ahead of the file."""
        try:
            rolled = self.segments[-1] is not active
            with self.structure:
                while self.segments[-1] is not active:
                    self.segments.pop().remove()
            self.pending_snapshots.drop_above(self.log_end_offset)
            if rolled:
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
        if self._appended_since is None or self._appended_since[0] is not segment:
            self._appended_since = (segment, now_ms)
        limit = self.config.segment_bytes
        if segment.size_bytes and (
            segment.size_bytes + first.header.size_bytes > limit
            or self._is_old(segment, first.header.max_timestamp, now_ms - self._appended_since[1])
            or segment.full
            or not segment.takes(first.last_offset)
        ):
            producers = self.producers.copy()
            for batch in batches[:start]:
                producers.update(batch.header, batch.base_offset, now_ms)
            # A follower of a compacted log may have no batch there. So a segment that is missing shows as such.
            contiguous = first.last_offset - segment.end_offset <= MAX_RELATIVE_OFFSET
            segment = self._roll(segment.end_offset if contiguous else first.base_offset, producers)
            self._appended_since = (segment, now_ms)
        size = segment.size_bytes + first.header.size_bytes
        end = start + 1
        while end < len(batches):
            size += batches[end].header.size_bytes
            if size > limit or not segment.takes(batches[end].last_offset):
                break
            end += 1
        return end

    def _is_old(self, segment: Segment, timestamp: int, met_for_ms: int) -> bool:
        """Whether a batch with this timestamp is too much younger than the segment's first one. Where that has none,
        whether the segment has been appended to for so long, by the clock."""
        roll_after_ms = self.config.roll_after_ms
        if self.config.roll_jitter_ms:
            # The segments of many logs that were begun together are not to be rolled together. What a segment's share
            # of the jitter is follows from its name, so that it stays the same.
            name = f"{self.directory.name}/{segment.base_offset}"
            share = int.from_bytes(blake2b(name.encode(), digest_size=4).digest()) / 2**32
            roll_after_ms -= int(share * min(self.config.roll_jitter_ms, roll_after_ms))
        age_ms = timestamp - segment.first_timestamp if segment.first_timestamp >= 0 else met_for_ms
        return age_ms > roll_after_ms

    def roll(self, base_offset: int, producers: ProducerStates) -> Segment:
        """Begins a new segment at `base_offset`, below which `producers` is what is known of them: its snapshot is
        written when this returns. Raises `OSError`, `CorruptBatchError`."""
        segment = self._roll(base_offset, producers.copy())
        self.pending_snapshots.write(self.directory, self._wall_offset_ms)
        return segment

    def _roll(self, base_offset: int, producers: ProducerStates) -> Segment:
        """The same; the snapshot of `producers`, which nobody changes any more, is pending."""
        self.segments[-1].seal()
        if self.pending_snapshots.full:  # they come faster than they are written
            self.pending_snapshots.write(self.directory, self._wall_offset_ms)
        segment = self._new_segment(base_offset)
        self.pending_snapshots.add(base_offset, producers)
        segment.producers_told = True
        with self.structure:
            self.segments.append(segment)
        return segment
