"""The turns of the event loop: work that goes on and on in one lets others have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from heapq import merge
from time import monotonic
from typing import Any, TypeVar

TURN_S = 0.002
SORTED_AT_ONCE = 1_000

T = TypeVar("T")


class LoopTurn:
    """Of one task, which before each of its steps asks whether the turn is `over`, and then gives way. It says where it
    waits for anything else: the loop has had its turn then. (To find that out costs a round of the loop each time.)"""

    __slots__ = ("_clock_s", "_ends_s")

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._ends_s: float | None = None  # None: the next step begins one

    def over(self) -> bool:
        """Tells whether the steps of this turn have taken `TURN_S`; else another step begins."""
        if self._ends_s is not None:
            return self._clock_s() >= self._ends_s
        self._ends_s = self._clock_s() + TURN_S
        return False

    def waits(self) -> None:
        """The task waits for something that is not there yet."""
        self._ends_s = None

    async def give_way(self) -> None:
        """Gives everything else its turn; another step begins."""
        await asyncio.sleep(0)
        self._ends_s = self._clock_s() + TURN_S


async def by_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, in their order, for `async for` in place of `for` where there may be thousands, each with work that
    awaits nothing by itself."""
    turn = LoopTurn()
    for item in items:
        if turn.over():
            await turn.give_way()
        yield item


async def sorted_by_turns(items: Sequence[T], key: Callable[[T], Any] | None = None) -> AsyncIterator[T]:
    """As `by_turns`, in ascending order: to sort 100,000 names at once takes a fifth of a second."""
    by: Any = key  # None: they are compared themselves
    starts = range(0, len(items), SORTED_AT_ONCE)
    runs: list[list[T]] = [sorted(items[start : start + SORTED_AT_ONCE], key=by) async for start in by_turns(starts)]
    async for item in by_turns(merge(*runs, key=by)):
        yield item
