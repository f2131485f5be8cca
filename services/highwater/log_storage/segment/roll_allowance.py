"""The allowance that a log has to begin segments that it could do without. Pure.

A roll costs three files, a descriptor until the next flush, three syncs then, and perhaps a snapshot of the producers:
what an append of some bytes can ask for has to be bounded. What finds no allowance stays in the present segment, which
grows beyond `segment.bytes`, or older than `segment.ms`; the next append that may roll does so.
"""

from __future__ import annotations

ROLLS_AN_APPEND = 8
ROLLS_A_SECOND = 10
ROLLS_AT_ONCE = 100  # after a pause


class RollAllowance:
    """Of one log. `ROLLS_AT_ONCE`, which come back at `ROLLS_A_SECOND`."""

    __slots__ = ("_filled_ms", "_left")

    def __init__(self) -> None:
        self._left: float = ROLLS_AT_ONCE
        self._filled_ms: int | None = None

    def take(self, now_ms: int) -> bool:
        """Tells whether the log may roll, and counts that."""
        if self._filled_ms is None:
            self._filled_ms = now_ms
        elif now_ms > self._filled_ms:
            self._left = min(ROLLS_AT_ONCE, self._left + (now_ms - self._filled_ms) * ROLLS_A_SECOND / 1000)
            self._filled_ms = now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True
