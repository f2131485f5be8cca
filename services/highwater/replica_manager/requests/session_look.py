"""One look of an incremental session at the partitions that have moved: its findings, and the room they are read into.

Which partitions are looked at, and in which order, is the session's own.
"""

from __future__ import annotations

from collections.abc import Callable

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.requests.session_roles import Place
from highwater.replica_manager.responses.fetch_parts import FetchedPart
from highwater.replica_manager.responses.response_reads import Read, ResponseReads
from highwater.replica_manager.responses.response_room import ResponseRoom


class Found:
    """The findings of one look. `is_current` tells whether a place still stands: one that is named anew while it is
    read is for the next answer."""

    def __init__(self, is_current: Callable[[Place], bool]) -> None:
        self.parts: list[tuple[Place, FetchedPart]] = []  # with batches, an error or a divergence
        self.unread: dict[PartitionKey, None] = {}  # there is more to read than the answer has room for
        self.complete = False  # the answer is due, whatever it has
        self.starved = False  # there is something to read, and no room for it in the budget of all responses
        self.full = False  # it has less room than it wants, or there is more to read than it has room for
        self.total_bytes = 0
        self._is_current = is_current

    def keys(self) -> dict[PartitionKey, None]:
        return {**dict.fromkeys(part.key for _, part in self.parts), **self.unread}

    def read(self, place: Place, part: FetchedPart | None, size_bytes: int) -> None:
        """None: there was no room left for it."""
        self.full |= part is None
        if not self._is_current(place):
            return
        self.total_bytes += size_bytes
        if part is None or (not size_bytes and part.error is ErrorCode.NONE):
            self.unread[place.part.key] = None
        else:
            self.complete |= part.error is not ErrorCode.NONE
            self.parts.append((place, part))


class Look:
    """`limit_bytes` is the most that the answer has, `batch_bytes` what a batch has at most. The findings do not refer
    to the look: they are megabytes, and go with the answer, not when the collector comes."""

    def __init__(self, found: Found, read: Read, room: ResponseRoom, *, limit_bytes: int, batch_bytes: int) -> None:
        self.found = found
        self._read = read
        self._room = room
        self._limit_bytes = limit_bytes
        self._batch_bytes = batch_bytes
        self._reads: ResponseReads[Place] | None = None

    async def read(
        self, place: Place, hosted: HostedPartition, part: FetchedPart, wanted_bytes: Callable[[], int]
    ) -> bool:
        """Tells whether there was room for it. `wanted_bytes` is asked the first time: how much all have that may
        follow."""
        if self._reads is None and not self.found.starved:
            self._take_room(wanted_bytes())
        if self._reads is not None and self._reads.left_bytes > 0:
            await self._reads.add(place, hosted, place.part, part)
            return True
        self.found.unread[place.part.key] = None
        self.found.full |= self._reads is not None
        return False

    def _take_room(self, wanted_bytes: int) -> None:
        granted = self._room.take(wanted_bytes)
        self.found.starved = not granted
        if granted:
            self.found.full = granted < wanted_bytes
            room_bytes = min(self._limit_bytes, granted)
            self._reads = ResponseReads(self._read, room_bytes, self._batch_bytes, self.found.read)

    async def finish_reads(self) -> None:
        """Reads what was admitted, before anything else happens."""
        if self._reads is not None:
            await self._reads.finish()

    def end(self, min_bytes: int) -> None:
        """A grant that nothing was read for goes back. Min bytes, or no room for more, make the answer due."""
        found = self.found
        self._room.settle(found.total_bytes)
        if not found.starved:
            enough = found.total_bytes >= min(max(min_bytes, 0), self._limit_bytes)
            found.complete |= enough or (found.full and found.total_bytes > 0)
