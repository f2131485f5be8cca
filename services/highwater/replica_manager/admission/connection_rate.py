"""The rate at which one connection may make unary calls: lower while the broker has no time to spare."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

BUSY_BELOW = 0.6
"""Of the event loop's time is idle. Calls cost the rest of the broker as much again, and the machine's other brokers
where they are followers: a loop that has half of its time left may well have used up the processors."""
LOOK_S = 0.25  # between two looks, at least
WINDOW_S = 1.0  # of the share, at least: of a shorter one a batch or two may take most, and each would halve the rate
FALL = 0.5  # with each look at a busy loop
RECOVERY_S = 20.0  # from nothing to the whole rate: it hovers close above where the loop is busy


class ConnectionRate:
    """Calls a second: `most`, and while the loop is busy down to `least`, of which the fastest connections alone take
    note. Falls by a factor and rises by steps, as TCP's window does. `idle_s`: what the loop has waited so far, in
    seconds; None where that is not known, then it is `most`. Looks when it is asked, and so costs an idle broker
    nothing."""

    def __init__(self, most: float, least: float, idle_s: Callable[[], float | None]) -> None:
        self._most = most
        self._least = min(least, most)
        self._idle_s = idle_s
        self._rate = most
        self._looks: deque[tuple[float, float]] = deque()  # when, and what the loop had waited by then; the last ones

    def at(self, now_s: float) -> float:
        if not self._looks:
            self._look(now_s)
        elif (elapsed_s := now_s - self._looks[-1][0]) >= LOOK_S:
            self._look(now_s)
            self._adapt(elapsed_s)
        return self._rate

    def _look(self, now_s: float) -> None:
        idle_s = self._idle_s()
        # Where it is not known every moment was idle.
        self._looks.append((now_s, now_s if idle_s is None else idle_s))
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= WINDOW_S:
            self._looks.popleft()

    def _adapt(self, elapsed_s: float) -> None:
        (from_s, waited_s), (now_s, idle_s) = self._looks[0], self._looks[-1]
        if idle_s - waited_s < BUSY_BELOW * (now_s - from_s):
            self._rate = max(self._least, self._rate * FALL)
        else:
            self._rate = min(self._most, self._rate + self._most * elapsed_s / RECOVERY_S)
