"""The time to wait after so many bytes, so that a rate is not exceeded. Pure."""

from __future__ import annotations


class Throttle:
    """Bytes are paid for after they have been moved; what was not used is not saved up."""

    __slots__ = ("_bytes_per_second", "_paid_until_s")

    def __init__(self, bytes_per_second: float) -> None:
        assert bytes_per_second > 0
        self._bytes_per_second = bytes_per_second
        self._paid_until_s = 0.0

    def delay_s(self, moved_bytes: int, now_s: float) -> float:
        """Tells how long to wait now that `moved_bytes` more have been moved."""
        self._paid_until_s = max(self._paid_until_s, now_s) + moved_bytes / self._bytes_per_second
        return self._paid_until_s - now_s
