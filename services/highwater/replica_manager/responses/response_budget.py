"""A budget for the bytes of all fetch responses of a replica-manager that their readers have not taken yet. Pure.

Bytes are taken before batches are read, at most as many are read, and they are given back when gRPC has taken the
response. Replicas have a share of their own, so consumers that read slowly never cost the cluster its replication.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

REPLICAS_PART = 4  # their share is one in so many of all bytes
MAX_WAITS = 10_000


class Grant:
    """Bytes taken for one response."""

    __slots__ = ("_share", "size_bytes")

    def __init__(self, share: ResponseShare, size_bytes: int) -> None:
        self._share = share
        self.size_bytes = size_bytes

    def settle(self, size_bytes: int) -> None:
        """The response has so many bytes: fewer than were taken, or more, where its first batch is that large."""
        before, self.size_bytes = self.size_bytes, size_bytes
        self._share.changed(size_bytes - before)

    def release(self) -> None:
        """The response is written, or there is none. Once or many times."""
        if self.size_bytes:
            self.settle(0)


class RoomWait:
    """A response that waits for bytes. Opaque to callers, who hand it to `cancel`."""

    __slots__ = ("done", "granted", "turn", "wanted_bytes")

    def __init__(self, wanted_bytes: int, granted: Callable[[Grant], None], turn: int) -> None:
        self.wanted_bytes = wanted_bytes
        self.granted = granted
        self.turn = turn  # lower ones come first
        self.done = False


class ResponseShare:
    """The bytes of one kind of readers. No response takes more than about half of what is free, so that a few that are
    not read leave something to the others, and none less than `least_bytes`, if it wants so many: what a batch may have
    that comes whole.

    `waits`: where there is less than that, a response waits, in the order of turns. Else it gets it all the same.
    `waited` is told of each wait that has ended whether it was granted."""

    def __init__(
        self, max_bytes: int, *, least_bytes: int, waits: bool, waited: Callable[[bool], object] = lambda _: None
    ) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._least_bytes = _least(least_bytes, max_bytes)
        self.waited = waited
        self._waits = waits
        self._turns = count()
        self._waiting: list[tuple[int, int, RoomWait]] = []  # a heap, by turn and arrival
        self._live = 0  # of those that wait; the others are cancelled

    def __len__(self) -> int:
        """Responses that wait."""
        return self._live

    def resize(self, max_bytes: int, least_bytes: int) -> None:
        """Takes another size. What is held beyond it is given back in its own time."""
        self.max_bytes = max_bytes
        self._least_bytes = _least(least_bytes, max_bytes)
        self._serve()

    def take(self, wanted_bytes: int) -> Grant | None:
        """None: there is nothing left, or others wait for it already."""
        return None if self._live else self._grant(wanted_bytes)

    def wait(self, wanted_bytes: int, granted: Callable[[Grant], None], turn: int | None = None) -> RoomWait | None:
        """`granted` is called once there is room, unless it is cancelled before. `turn`: of a wait before this one that
        was in vain; else it is the last. None: too many wait."""
        if self._live >= MAX_WAITS:
            return None
        arrival = next(self._turns)
        waiting = RoomWait(wanted_bytes, granted, arrival if turn is None else turn)
        heappush(self._waiting, (waiting.turn, arrival, waiting))
        self._live += 1
        self._serve()
        return waiting

    def cancel(self, waiting: RoomWait) -> None:
        if waiting.done:
            return
        self._end(waiting)
        if len(self._waiting) > 64 + 2 * self._live:
            self._waiting = [each for each in self._waiting if not each[-1].done]
            heapify(self._waiting)
        self._serve()  # the next one may want less

    def changed(self, by_bytes: int) -> None:
        """For a grant, whose size is another."""
        self.held_bytes += by_bytes
        assert self.held_bytes >= 0
        if by_bytes < 0:
            self._serve()

    def _grant(self, wanted_bytes: int) -> Grant | None:
        free_bytes = max(self.max_bytes - self.held_bytes, 0)
        least_bytes = min(wanted_bytes, self._least_bytes)
        if self._waits and free_bytes < least_bytes:
            return None
        half_bytes = free_bytes // 2
        if wanted_bytes > half_bytes and half_bytes:
            half_bytes = 1 << half_bytes.bit_length() - 1  # equal to others', which may read the same
        size_bytes = min(wanted_bytes, max(half_bytes, least_bytes))
        self.held_bytes += size_bytes
        return Grant(self, size_bytes)

    def _serve(self) -> None:
        while self._waiting:
            *_, first = self._waiting[0]
            grant = None if first.done else self._grant(first.wanted_bytes)
            if grant is None and not first.done:
                return
            heappop(self._waiting)  # before it hears of that, as it may give the bytes back at once
            if grant is not None:
                self._end(first)
                first.granted(grant)

    def _end(self, waiting: RoomWait) -> None:
        waiting.done = True
        self._live -= 1


class ResponseBudget:
    """Replicas, of which there are as many as brokers have fetchers, never wait: where their share is used up each gets
    room for one batch still."""

    def __init__(self, max_bytes: int, *, message_max_bytes: int, waited: Callable[[bool], object]) -> None:
        replicas_bytes = max_bytes // REPLICAS_PART
        self.replicas = ResponseShare(replicas_bytes, least_bytes=message_max_bytes, waits=False)
        self.consumers = ResponseShare(
            max_bytes - replicas_bytes, least_bytes=message_max_bytes, waits=True, waited=waited
        )

    def resize(self, max_bytes: int, message_max_bytes: int) -> None:
        """Takes another size, and that of the largest batch."""
        replicas_bytes = max_bytes // REPLICAS_PART
        self.replicas.resize(replicas_bytes, message_max_bytes)
        self.consumers.resize(max_bytes - replicas_bytes, message_max_bytes)


def _least(least_bytes: int, max_bytes: int) -> int:
    return max(1, min(least_bytes, max_bytes // 2))
