"""The time of coordinators."""

from __future__ import annotations

import time
from collections.abc import Callable

SET_MS = 10_000  # by less a clock is corrected, by more it was set


class CoordinatorClock:
    """Milliseconds since 1970. It does not jump, as sessions and deadlines are reckoned by it, and does not stay behind
    for ever where the machine's clock is set: offsets that are committed are dated by it, and expire by another
    broker's."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_s = wall_s
        self._monotonic_ns = monotonic_ns
        self._began_ms = 0
        self._began_ms = self._behind_ms()

    def now_ms(self) -> int:
        return self._began_ms + self._monotonic_ns() // 1_000_000

    def was_set(self) -> bool:
        """Tells whether the machine's clock was set since, and follows it then: what was reckoned by the time before
        is to be begun anew."""
        behind_ms = self._behind_ms()
        if abs(behind_ms) < SET_MS:
            return False
        self._began_ms += behind_ms
        return True

    def _behind_ms(self) -> int:
        return int(self._wall_s() * 1000) - self.now_ms()
