"""Python's garbage collector in a service: a full collection walks over every container there is, and nothing else of
the process runs meanwhile. What thousands of partitions or groups need is hundreds of thousands of containers; the
event loop stood for 0.1 to 0.5 s, again and again, though hardly anything of that is ever garbage.

So what a long collection has left is frozen: later ones walk over what has come since. What is frozen still goes when
nothing refers to it any more; only as part of a cycle it waits for the next collection of everything. There is one a
day, and one when what is frozen has grown by half and by `ROOM` since the last of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LONG_S = 0.01  # of a processor
DAY_S = 24 * 3600.0
ROOM = 500_000
"""Objects. Those of 9,000 replicas are fewer: a broker that creates them or takes them over meanwhile collects nothing
of what it had before. As garbage they are 50 MB."""
_FULL = 2


class CalmCollector:
    """`clock_s` tells when a day is over, and `cpu_s` how long a collection was: the processor's time of the calling
    thread, which no other work on the machine makes longer."""

    def __init__(
        self, *, clock_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock_s = clock_s
        self._cpu_s = cpu_s
        self._begun_s = 0.0
        self._everything_at_s = 0.0
        self._thawed = False  # the next one is of everything
        self._left = 0  # objects, by the last one of everything

    def start(self) -> None:
        """Freezes what has been imported, and sees to it from here on."""
        gc.collect()
        gc.freeze()
        self._left = gc.get_freeze_count()
        self._everything_at_s = self._clock_s() + DAY_S
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        gc.callbacks.remove(self._collecting)
        gc.unfreeze()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._begun_s = self._cpu_s()
        elif self._clock_s() >= self._everything_at_s:
            self._everything_at_s += DAY_S
            self._thaw()
        elif self._cpu_s() - self._begun_s >= LONG_S:
            self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        frozen = gc.get_freeze_count()
        if self._thawed:
            self._thawed, self._left = False, frozen
        elif frozen > 1.5 * self._left + ROOM:
            self._thaw()

    def _thaw(self) -> None:
        gc.unfreeze()
        self._thawed = True
