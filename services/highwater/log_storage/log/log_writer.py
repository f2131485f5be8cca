"""Writing batches to the active segment, and beginning the next one where it is full."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.append_validation import NewBatch
from highwater.log_storage.log.log_context import LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.producer_state_manager import ProducerStateManager
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.segment.offset_index import MAX_RELATIVE_OFFSET
from highwater.log_storage.segment.roll_allowance import ROLLS_AN_APPEND, RollAllowance
from highwater.log_storage.segment.segment import MAX_SEGMENT_BYTES, Segment
from highwater.log_storage.segment.unsynced_segments import unsynced_segments
from highwater.records import CorruptBatchError, ReadableBuffer


class _Roll(NamedTuple):
    segment: Segment  # that was begun
    start: int  # the batch of the append with which it begins
    bytes_since_snapshot: int  # that had been appended by then


class LogWriter:
    """Moves no offset and no producer state: the log does, once all batches of an append are written."""

    def __init__(
        self, context: LogContext, segments: SegmentList, producer_state: ProducerStateManager, offsets: LogOffsets
    ) -> None:
        self._context = context
        self._segments = segments
        self._producer_state = producer_state
        self._offsets = offsets
        self._appended_since: tuple[Segment, int] | None = None  # the active one, and when this process first met it
        self._allowance = RollAllowance()
        self._bytes_since_snapshot = 0

    def write(
        self, batches: list[NewBatch], buffers: list[list[ReadableBuffer]], now_ms: int, *, followed: bool = False
    ) -> None:
        """Writes the batches, rolling where a segment is full: all of them, or none and a `LogError`. `followed`: a
        leader has them already, so they may begin as many segments as they have to."""
        context, segments = self._context, self._segments
        context.disk.check_room()
        active = segments.active
        size = active.size_bytes
        try:
            start, next_offset = 0, self._offsets.log_end_offset
            rolls: list[_Roll] = []
            for batch in batches:
                if batch.base_offset > next_offset:
                    segments.note_gaps()
                next_offset = batch.last_offset + 1
            while start < len(batches):
                end = self._roll_if_due(batches, start, now_ms, rolls, followed)
                run = batches[start:end]
                total = sum(batch.header.size_bytes for batch in run)
                pieces = buffers[start] if len(run) == 1 else [piece for some in buffers[start:end] for piece in some]
                segment = segments.active
                position = segment.append(pieces, total)
                for batch in run:
                    segment.note(position, batch.header.size_bytes, batch.last_offset, batch.header.max_timestamp)
                    position += batch.header.size_bytes
                self._bytes_since_snapshot += total
                start = end
            if rolls:  # the last step: what is undone has no snapshot
                self._ask_for_snapshot(batches, rolls[-1], now_ms)
        except OSError as error:
            self._undo(active, size)
            what = f"{context.directory}: the append failed and left nothing behind"
            raise context.disk.refusal(error, what) from error
        except LogError:
            self._undo(active, size)
            raise
        except CorruptBatchError as error:
            raise context.fail(error) from error

    def _undo(self, active: Segment, size_bytes: int) -> None:
        """Back to the last good position, or offline: the log end in memory is never ahead of the file."""
        log_end_offset = self._offsets.log_end_offset
        try:
            self._segments.undo_rolls(active)
            if active.size_bytes > size_bytes:
                active.truncate(size_bytes, log_end_offset)
            else:
                active.undo(size_bytes)
        except (OSError, CorruptBatchError) as error:
            raise self._context.fail(error) from error

    def _roll_if_due(self, batches: list[NewBatch], start: int, now_ms: int, rolls: list[_Roll], followed: bool) -> int:
        """Rolls if the active segment is not to take the batch at `start`, and adds that to `rolls`, those of this
        append; how far the batches fit the segment then."""
        first = batches[start]
        segment = self._segments.active
        if self._appended_since is None or self._appended_since[0] is not segment:
            self._appended_since = (segment, now_ms)
        limit = self._context.config.segment_bytes
        if segment.size_bytes and (
            segment.size_bytes + first.header.size_bytes > limit
            or self._is_old(segment, first.header.max_timestamp, now_ms - self._appended_since[1])
            or segment.full
            or not segment.takes(first.last_offset)
        ):
            must = not _fits(segment, first)
            if self._may_roll(now_ms, must and followed, rolls):
                # A follower of a compacted log may have no batch there. So a segment that is missing shows as such.
                contiguous = first.last_offset - segment.end_offset <= MAX_RELATIVE_OFFSET
                segment = self._begin(segment.end_offset if contiguous else first.base_offset)
                self._appended_since = (segment, now_ms)
                rolls.append(_Roll(segment, start, self._bytes_since_snapshot))
            elif must:
                raise LogError(
                    ErrorCode.OVERLOADED,
                    f"the batch at offset {first.base_offset} has to begin a segment, and the log has begun too many "
                    f"of late, or {unsynced_segments.limit} wait for the disk: retry after a pause",
                )
            else:
                limit = MAX_SEGMENT_BYTES
        size = segment.size_bytes + first.header.size_bytes
        end = start + 1
        while end < len(batches):
            size += batches[end].header.size_bytes
            if size > limit or not segment.takes(batches[end].last_offset):
                break
            end += 1
        return end

    def _may_roll(self, now_ms: int, unrefused: bool, rolls: list[_Roll]) -> bool:
        """Tells whether another segment may be begun; `unrefused` is bounded by nothing but what the process may have
        open."""
        if not unsynced_segments.room:
            return False
        return unrefused or (len(rolls) < ROLLS_AN_APPEND and self._allowance.take(now_ms))

    def _is_old(self, segment: Segment, timestamp: int, met_for_ms: int) -> bool:
        """Tells whether a batch with this timestamp is too much younger than the segment's first one. Where that has
        none, whether the segment has been appended to for so long, by the clock."""
        config = self._context.config
        roll_after_ms = config.roll_after_ms
        if config.roll_jitter_ms:
            # The segments of many logs that were begun together are not to be rolled together. What a segment's share
            # of the jitter is follows from its name, so that it stays the same.
            name = f"{self._context.directory.name}/{segment.base_offset}"
            share = int.from_bytes(blake2b(name.encode(), digest_size=4).digest()) / 2**32
            roll_after_ms -= int(share * min(config.roll_jitter_ms, roll_after_ms))
        age_ms = timestamp - segment.first_timestamp if segment.first_timestamp >= 0 else met_for_ms
        return age_ms > roll_after_ms

    def roll(self, base_offset: int) -> None:
        """Begins a new segment at `base_offset`; the snapshot of the producers as they are now is written when this
        returns. Raises `OSError`, `CorruptBatchError`."""
        segment = self._begin(base_offset)
        self._add_snapshot(segment, self._producer_state.states.copy())
        self._producer_state.write_pending()

    def _begin(self, base_offset: int) -> Segment:
        ended = self._segments.active
        ended.seal()
        segment = self._segments.create(base_offset)
        self._segments.append(segment)
        if ended.end_offset <= self._offsets.synced_offset:
            ended.mark_sealed()
        else:
            unsynced_segments.add(ended)
        return segment

    def _ask_for_snapshot(self, batches: list[NewBatch], last: _Roll, now_ms: int) -> None:
        """One for all rolls of an append, at the last of them; none where it would be larger than what has been
        appended since the last one, which a start then reads instead. Raises `OSError`."""
        states = self._producer_state.states
        if last.bytes_since_snapshot < producer_snapshots.ENTRY_BYTES * len(states):
            return
        if self._producer_state.pending.full:  # they come faster than they are written
            self._producer_state.write_pending()
        producers = states.copy()
        for batch in batches[: last.start]:
            producers.update(batch.header, batch.base_offset, now_ms)
        self._add_snapshot(last.segment, producers)
        self._bytes_since_snapshot -= last.bytes_since_snapshot

    def _add_snapshot(self, segment: Segment, producers: ProducerStates) -> None:
        """Has the snapshot of `producers`, which nobody changes any more, written at the segment's beginning."""
        self._producer_state.pending.add(segment.base_offset, producers)
        segment.producers_told = True


def _fits(segment: Segment, batch: NewBatch) -> bool:
    return segment.size_bytes + batch.header.size_bytes <= MAX_SEGMENT_BYTES and segment.takes(batch.last_offset)
