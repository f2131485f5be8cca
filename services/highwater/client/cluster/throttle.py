"""The pauses that brokers ask for where a quota is exceeded: obeyed, and counted."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple


class ThrottleTime(NamedTuple):
    """The pauses that brokers have asked a client for, over all their answers; 0: none."""

    answers: int
    average_ms: float
    max_ms: int


class ThrottleTimes:
    """Of one client, over all brokers."""

    def __init__(self) -> None:
        self._answers = self._total_ms = self._max_ms = 0

    def add(self, throttle_ms: int) -> None:
        """Counts an answer."""
        self._answers += 1
        if throttle_ms:
            self._total_ms += throttle_ms
            self._max_ms = max(self._max_ms, throttle_ms)

    @property
    def value(self) -> ThrottleTime:
        return ThrottleTime(self._answers, self._total_ms / max(self._answers, 1), self._max_ms)


class Throttle:
    """The pause that one broker has asked for, of produces or of fetches: nothing is sent to it until `until_s` of the
    monotonic clock. It outlives the stream that it came by."""

    __slots__ = ("_times", "until_s")

    def __init__(self, times: ThrottleTimes) -> None:
        self._times = times
        self.until_s = float("-inf")

    def answered(self, throttle_ms: int) -> None:
        self._times.add(throttle_ms)
        if throttle_ms > 0:
            self.until_s = max(self.until_s, monotonic() + throttle_ms / 1000)
