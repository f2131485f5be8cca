"""The two clocks of log-storage, both in ms: what is passed on as `now_ms`, and the time since the epoch."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
