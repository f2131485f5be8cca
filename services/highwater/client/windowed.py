"""The mean and the maximum of what was measured lately."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

WINDOW_S = 30.0


class Windowed:
    """Of the last `WINDOW_S` to twice that: of the window that goes on and the one before it. 0.0 where there was
    nothing."""

    __slots__ = ("_before", "_began_s", "_clock_s", "_count", "_max", "_sum")

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._sum, self._count, self._max = 0.0, 0, 0.0
        self._before = (0.0, 0, 0.0)

    def note(self, value: float) -> None:
        self._turn()
        self._sum += value
        self._count += 1
        self._max = max(self._max, value)

    @property
    def mean(self) -> float:
        self._turn()
        count = self._count + self._before[1]
        return (self._sum + self._before[0]) / count if count else 0.0

    @property
    def maximum(self) -> float:
        self._turn()
        return max(self._max, self._before[2])

    def _turn(self) -> None:
        passed_s = self._clock_s() - self._began_s
        if passed_s >= WINDOW_S:
            self._before = (self._sum, self._count, self._max) if passed_s < 2 * WINDOW_S else (0.0, 0, 0.0)
            self._sum, self._count, self._max = 0.0, 0, 0.0
            self._began_s += passed_s
