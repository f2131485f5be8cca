"""The pauses that brokers ask for where a quota is exceeded."""

from __future__ import annotations

from time import monotonic


class Throttle:
    """The pause that one broker has asked for, of produces or of fetches: nothing is sent to it until `until_s` of the
    monotonic clock. It outlives the stream that it came by."""

    __slots__ = ("until_s",)

    def __init__(self) -> None:
        self.until_s = float("-inf")

    def answered(self, throttle_ms: int) -> None:
        if throttle_ms > 0:
            self.until_s = max(self.until_s, monotonic() + throttle_ms / 1000)
