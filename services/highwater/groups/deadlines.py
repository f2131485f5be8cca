"""Deadlines of many things, of which each is moved often and passes seldom."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K")


class Deadlines(Generic[K]):
    """Moving a deadline later costs a write to a dictionary: the heap keeps the earlier time, and the thing is put back
    when that comes up. So a sign of life costs nothing, and a look at what is due costs what is due."""

    def __init__(self) -> None:
        self._at_ms: dict[K, int] = {}
        self._queued: dict[K, int] = {}  # the earliest time under which it stands in the heap
        self._heap: list[tuple[int, int, K]] = []
        self._made = 0  # keeps things of one time in order, and keys from being compared

    def __len__(self) -> int:
        return len(self._at_ms)

    def set(self, key: K, at_ms: int) -> None:
        self._at_ms[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._queue(key, at_ms)

    def cancel(self, key: K) -> None:
        self._at_ms.pop(key, None)
        if len(self._heap) > 64 + 2 * len(self._at_ms):
            self._queued = {key: at_ms for key, at_ms in self._queued.items() if key in self._at_ms}
            self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def get(self, key: K) -> int | None:
        return self._at_ms.get(key)

    def next_ms(self) -> int | None:
        """The time to look again; nothing is due before."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """One thing of which the deadline has passed, which has none any more; None when there is no other."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued, _, key = heappop(self._heap)
            if self._queued.get(key) != queued:
                continue  # it was put in again under an earlier time, and that entry has been met
            del self._queued[key]
            at_ms = self._at_ms.get(key)
            if at_ms is None:
                continue
            if at_ms <= now_ms:
                del self._at_ms[key]
                return key
            self._queue(key, at_ms)
        return None

    def _queue(self, key: K, at_ms: int) -> None:
        self._made += 1
        self._queued[key] = at_ms
        heappush(self._heap, (at_ms, self._made, key))
