"""A queue in the order of turns: some of what waits may go away before its turn, at no cost. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

_SPARE = 64  # entries that are done and are kept, beside as many as there are others


class HasTurn(Protocol):
    turn: int  # lower ones come first
    arrival: int  # among equals; no two have the same
    done: bool  # it waits no more


W = TypeVar("W", bound=HasTurn)


class Turns(Generic[W]):
    """The first that waits still is found in O(log n). What is `done` is dropped when its turn has come, or when it is
    half of all."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, W]] = []
        self._done = 0

    def add(self, waiting: W) -> None:
        heappush(self._heap, (waiting.turn, waiting.arrival, waiting))

    def first(self) -> W | None:
        """None: nothing waits."""
        while self._heap:
            waiting = self._heap[0][-1]
            if not waiting.done:
                return waiting
            heappop(self._heap)
            self._done -= 1
        return None

    def drop_first(self) -> None:
        """After `first`, which found one."""
        _, _, dropped = heappop(self._heap)
        assert not dropped.done

    def left(self) -> None:
        """One of these is done, which was not the first to be served."""
        self._done += 1
        if self._done > _SPARE + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if not entry[-1].done]
            heapify(self._heap)
            self._done = 0
