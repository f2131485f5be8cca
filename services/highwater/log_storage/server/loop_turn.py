"""The turns of the event loop: work that goes on and on in one lets others have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TURN_S = 0.002


class LoopTurn:
    """Of one task, which asks for each of its steps. Where it has waited for anything else meanwhile the loop has had
    its turn."""

    __slots__ = ("_clock_s", "_ends_s", "_loop")

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._loop = asyncio.get_running_loop()
        self._ends_s: float | None = None  # None: the loop has come round since the last step

    async def step(self) -> None:
        """Returns when another step may be taken: at once, unless those since the loop last came round have taken
        `TURN_S`."""
        if self._ends_s is not None and self._clock_s() >= self._ends_s:
            await asyncio.sleep(0)
        if self._ends_s is None:
            self._ends_s = self._clock_s() + TURN_S
            self._loop.call_soon(self._came_round)

    def _came_round(self) -> None:
        self._ends_s = None
