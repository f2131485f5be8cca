"""The batches that a leader appended last, so that caught-up followers and consumers are served without log-storage.

A cache belongs to one (leader epoch, log-storage incarnation) and takes a batch only after log-storage has answered for
it (RULES 5.5). Its batches continue one another; the last one ends where the next will start. All caches of a broker
share one budget of bytes; what was appended first is dropped first, whichever partition's it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

Piece = bytes | bytearray | memoryview

_COMPACT_AT = 64  # dropped slots at the front of a cache's list before it is cut


class TailBatch(NamedTuple):
    """One batch as it is sent: its pieces joined are its bytes (`records.stamp`'s first piece and the rest)."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    size_bytes: int  # of all pieces
    pieces: tuple[Piece, ...]


_DROPPED = TailBatch(0, 0, 0, 0, ())


class TailRead(NamedTuple):
    """Whole batches, from the one that holds the offset asked for."""

    pieces: list[Piece]
    size_bytes: int
    next_offset: int  # where to read on; the offset asked for where there is nothing


class TailCacheBudget:
    """Bytes of all caches together. They are those of the pieces: a piece that is a view of a larger message keeps all
    of that in memory while it is cached."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._caches_by_age: OrderedDict[int, TailCache] = OrderedDict()  # one entry a batch, oldest first
        self._next_number = 0

    def take(self, cache: TailCache, size_bytes: int) -> int:
        """For a cache: makes room, then books a batch that it is about to add at its end. The booking's number."""
        self._make_room(size_bytes)
        number = self._next_number
        self._next_number += 1
        self._caches_by_age[number] = cache
        self.used_bytes += size_bytes
        return number

    def resize(self, max_bytes: int) -> None:
        """Takes another size: what is too much goes, the oldest first."""
        self.max_bytes = max_bytes
        self._make_room(0)

    def _make_room(self, size_bytes: int) -> None:
        while self.used_bytes + size_bytes > self.max_bytes:
            _, oldest = self._caches_by_age.popitem(last=False)
            self.used_bytes -= oldest.drop_oldest()

    def give_back(self, number: int, size_bytes: int) -> None:
        """For a cache: it has dropped that batch by itself."""
        del self._caches_by_age[number]
        self.used_bytes -= size_bytes


class TailCache:
    """Invariant: the cached batches cover exactly [first offset, next offset) without a gap; both are equal where it is
    empty."""

    def __init__(self, budget: TailCacheBudget) -> None:
        self._budget = budget
        self._owner: tuple[int, str] | None = None  # (leader epoch, incarnation); None: takes nothing
        self._next_offset = 0
        # Batches in order with their base offsets and their numbers in the budget; those before `_head` are dropped.
        self._batches: list[TailBatch] = []
        self._base_offsets: list[int] = []
        self._numbers: list[int] = []
        self._head = 0

    @property
    def first_offset(self) -> int:
        """Of the oldest cached batch."""
        return self._base_offsets[self._head] if self._head < len(self._batches) else self._next_offset

    @property
    def next_offset(self) -> int:
        """The start of the next batch: the log end offset as this cache knows it."""
        return self._next_offset

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self._batches[self._head :])

    def __len__(self) -> int:
        return len(self._batches) - self._head

    def bind(self, leader_epoch: int, incarnation: str, log_end_offset: int) -> None:
        """Leadership started (RULES 5.5): empty, and the next batch starts at `log_end_offset`."""
        self.unbind()
        self._owner = (leader_epoch, incarnation)
        self._next_offset = log_end_offset

    def unbind(self) -> None:
        """Leadership or log-storage's incarnation ended: empty, and takes nothing."""
        self._empty(self._next_offset)
        self._owner = None

    def append(self, leader_epoch: int, incarnation: str, batches: Sequence[TailBatch]) -> None:
        """Batches that log-storage has answered for, in order (one append's, several may be). Another owner's are
        ignored. Where they do not continue what is here, what is here is dropped: a gap is never served."""
        if self._owner != (leader_epoch, incarnation):
            return
        for batch in batches:
            assert batch.base_offset < batch.next_offset, batch
            if batch.next_offset <= self._next_offset:
                continue  # a duplicate's old offsets
            if batch.size_bytes > self._budget.max_bytes:
                self._empty(batch.next_offset)
                continue
            if batch.base_offset != self._next_offset:
                self._empty(batch.base_offset)
            self._numbers.append(self._budget.take(self, batch.size_bytes))
            self._batches.append(batch)
            self._base_offsets.append(batch.base_offset)
            self._next_offset = batch.next_offset

    def pass_over(self, leader_epoch: int, incarnation: str, next_offset: int) -> None:
        """log-storage has appended up to there what this cache does not know as it was written: it begins anew."""
        if self._owner == (leader_epoch, incarnation) and next_offset > self._next_offset:
            self._empty(next_offset)

    def covers(self, offset: int) -> bool:
        """Tells whether `read` from there has an answer."""
        return self._owner is not None and self.first_offset <= offset <= self._next_offset

    def read(self, offset: int, max_bytes: int, bound: int) -> TailRead | None:
        """Batches from the one that holds `offset`, up to `max_bytes` but the first one whole whatever its size
        (RULES 4.8), and only such as end at or below `bound` (the high watermark for a consumer, the log end for a
        replica). None: log-storage must be asked."""
        if not self.covers(offset):
            return None
        if offset == self._next_offset:
            return TailRead([], 0, offset)
        index = bisect_right(self._base_offsets, offset, self._head) - 1
        pieces: list[Piece] = []
        size_bytes = 0
        next_offset = offset
        for position in range(index, len(self._batches)):
            batch = self._batches[position]
            if batch.next_offset > bound or (pieces and size_bytes + batch.size_bytes > max_bytes):
                break
            pieces += batch.pieces
            size_bytes += batch.size_bytes
            next_offset = batch.next_offset
        return TailRead(pieces, size_bytes, next_offset)

    def drop_oldest(self) -> int:
        """For the budget, which has taken the oldest batch's bytes back: how many they were."""
        size_bytes = self._batches[self._head].size_bytes
        self._batches[self._head] = _DROPPED  # its bytes go at once
        self._head += 1
        if self._head >= _COMPACT_AT and 2 * self._head >= len(self._batches):
            del self._batches[: self._head], self._base_offsets[: self._head], self._numbers[: self._head]
            self._head = 0
        return size_bytes

    def _empty(self, next_offset: int) -> None:
        for index in range(self._head, len(self._batches)):
            self._budget.give_back(self._numbers[index], self._batches[index].size_bytes)
        self._batches.clear()
        self._base_offsets.clear()
        self._numbers.clear()
        self._head = 0
        self._next_offset = next_offset
