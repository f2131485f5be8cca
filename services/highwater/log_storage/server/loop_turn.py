"""The turns of the event loop: work that goes on and on in one lets others have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TURN_S = 0.002


class LoopTurn:
    """Of one task, which before each of its steps asks whether the turn is `over`, and then gives way. Where it has
    waited for anything else meanwhile the loop has had its turn."""

    __slots__ = ("_clock_s", "_ends_s", "_loop")

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._loop = asyncio.get_running_loop()
        self._ends_s: float | None = None  # None: the loop has come round since the last step

    def over(self) -> bool:
        """Tells whether the steps since the loop last came round have taken `TURN_S`; else another step begins."""
        if self._ends_s is not None:
            return self._clock_s() >= self._ends_s
        self._begin()
        return False

    async def give_way(self) -> None:
        """Gives everything else its turn; another step begins."""
        await asyncio.sleep(0)
        self._begin()

    def _begin(self) -> None:
        self._ends_s = self._clock_s() + TURN_S
        self._loop.call_soon(self._came_round)

    def _came_round(self) -> None:
        self._ends_s = None
