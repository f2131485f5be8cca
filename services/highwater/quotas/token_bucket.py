"""A token bucket with debt.

Taking never fails. What is taken beyond what is there is owed, and whoever took it is to pause until it is paid:
nothing has to wait in a queue, and one batch larger than a second's tokens gets through.
"""

from __future__ import annotations

BURST_S = 0.5  # tokens of so many seconds are saved up by whoever takes none


class TokenBucket:
    """`rate` tokens a second. `-tokens` is the debt; invariant: tokens <= rate * BURST_S."""

    __slots__ = ("_at_s", "_tokens", "rate")

    def __init__(self, rate: float, now_s: float) -> None:
        assert rate > 0
        self.rate = rate
        self._tokens = rate * BURST_S
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Takes so many. Returns the seconds until what is owed is paid; 0: nothing is owed."""
        self._refill(now_s)
        self._tokens -= amount
        return self._owed_s()

    def owed_s(self, now_s: float) -> float:
        """The same, without taking any."""
        self._refill(now_s)
        return self._owed_s()

    def change_rate(self, rate: float, now_s: float) -> None:
        """Takes another rate. The debt stays, and is paid at the new rate."""
        assert rate > 0
        self._refill(now_s)
        self.rate = rate
        self._tokens = min(self._tokens, rate * BURST_S)

    def is_full(self, now_s: float) -> bool:
        """Tells whether it is as a new one would be: nothing is lost with it."""
        self._refill(now_s)
        return self._tokens >= self.rate * BURST_S

    def _owed_s(self) -> float:
        return max(0.0, -self._tokens / self.rate)

    def _refill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._tokens = min(self._tokens + (now_s - self._at_s) * self.rate, self.rate * BURST_S)
            self._at_s = now_s
