"""Reads what the partitions of one response have, in their order, into the room that it has.

What is in a tail cache is read at once. What log-storage must be asked for is read side by side, a few partitions at a
time, each within its share of the room: a reader that catches up does not pay a round to the disk for each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.responses.fetch_parts import NO_PIECES, FetchedPart, FetchPart

READS_AT_ONCE = 8  # of one fetch

T = TypeVar("T")


class PartRead(NamedTuple):
    """One partition to be read."""

    hosted: HostedPartition
    part: FetchPart
    admitted: FetchedPart  # the answer before anything is read: it says how far this reader may read
    max_bytes: int  # but at least one batch, whole


Read = Callable[[Sequence[PartRead]], Awaitable[Sequence[tuple[FetchedPart, int]]]]  # with the bytes of each


class ResponseReads(Generic[T]):
    """`done` is called with whatever the caller gave with a partition, the answer about it, and its bytes; with None
    where there was no room left. RULES 4.8: a response's first batch comes whole, whatever the limits; what follows it
    has room, or is left out, and what stands behind that is not read. `batch_bytes` is what a batch has at most, but
    for topics that allow more: no more are read side by side than there is room for whole ones."""

    def __init__(
        self, read: Read, room_bytes: int, batch_bytes: int, done: Callable[[T, FetchedPart | None, int], None]
    ) -> None:
        self.left_bytes = room_bytes
        self._read = read
        self._batch_bytes = batch_bytes
        self._done = done
        self._has_batches = False
        self._side_by_side: list[tuple[T, PartRead]] = []

    async def add(self, what: T, hosted: HostedPartition, part: FetchPart, admitted: FetchedPart) -> None:
        """`admitted` holds now: nothing is awaited between this call and the beginning of its read, unless others stand
        before it that have been added before."""
        if self.left_bytes <= 0:
            self._done(what, None, 0)
            return
        added = self._side_by_side
        added.append((what, PartRead(hosted, part, admitted, part.max_bytes)))
        at_once = max(1, min(READS_AT_ONCE, self.left_bytes // self._batch_bytes))
        if len(added) >= at_once or (len(added) == 1 and hosted.is_cached(part.fetch_offset)):
            await self.finish()

    async def finish(self) -> None:
        """Reads those that were added and are not read yet."""
        added, self._side_by_side = self._side_by_side, []
        if not added:
            return
        left_bytes = self.left_bytes
        limits = [min(read.max_bytes, left_bytes) if read.max_bytes > 0 else left_bytes for _, read in added]
        if len(added) > 1:
            # Whatever its limit, each may come with a whole batch.
            made = shares(left_bytes, [max(limit, min(self._batch_bytes, left_bytes)) for limit in limits])
            limits = [min(limit, share) for limit, share in zip(limits, made, strict=True)]
        reads = [
            read if read.max_bytes == limit else read._replace(max_bytes=limit)
            for (_, read), limit in zip(added, limits, strict=True)
        ]
        is_full = False
        for (what, read), (found, size_bytes) in zip(added, await self._read(reads), strict=True):
            if size_bytes > self.left_bytes and self._has_batches:
                read.admitted.pieces = found.pieces = NO_PIECES
                self._done(what, None, 0)
                is_full = True
                continue
            self._has_batches |= size_bytes > 0
            self.left_bytes -= size_bytes
            self._done(what, found, size_bytes)
        if is_full:  # thousands may stand behind: none is read to find out whether its first batch is smaller
            self.left_bytes = 0


def shares(room_bytes: int, limits: Sequence[int]) -> list[int]:
    """Equal ones; what is above a partition's limit is divided among the others. Together at most `room_bytes`, but
    each at least 1, which stands for a first batch."""
    made = [0] * len(limits)
    left = room_bytes
    by_limit = sorted(range(len(limits)), key=limits.__getitem__)
    for taken, index in enumerate(by_limit):
        made[index] = max(1, min(limits[index], left // (len(limits) - taken)))
        left = max(0, left - made[index])
    return made
