"""Times of the words of a member: bounded, however often it speaks. Pure."""

from __future__ import annotations

from collections import deque

_STEPS = 256  # of the time that is kept


class WordTimes:
    """Keeps the times of the last `kept_ms`, at most one for each 256th part of it; and one that is older."""

    def __init__(self, now_ms: float, kept_ms: float) -> None:
        self.last_ms = now_ms
        self._kept_ms = kept_ms
        self._times_ms: deque[float] = deque([now_ms])

    def said(self, now_ms: float) -> None:
        self.last_ms = now_ms
        if now_ms >= self._times_ms[-1] + self._kept_ms / _STEPS:
            self._times_ms.append(now_ms)
        while len(self._times_ms) > 1 and self._times_ms[1] <= now_ms - self._kept_ms:
            self._times_ms.popleft()

    def before(self, until_ms: float) -> float:
        """The time of the last word up to `until_ms`, or somewhat earlier; the first of all where none is so old."""
        return max((said for said in self._times_ms if said <= until_ms), default=self._times_ms[0])
