"""Long work in short steps: the event loop has its turn in between."""

from __future__ import annotations

import asyncio
import time

STEP_S = 0.01


class Pace:
    """`await pace.breathe()` between two steps gives the loop its turn once the work has taken `STEP_S`."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def breathe(self) -> None:
        if time.perf_counter() - self._began_s >= STEP_S:
            await asyncio.sleep(0)
            self._began_s = time.perf_counter()
