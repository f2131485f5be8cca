"""A wait that says what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    missing: Callable[[], str],
    timeout_s: float,
    every_s: float = 0.1,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when `missing` says nothing. Raises `TimeoutError` with what it said last."""
    deadline = clock() + timeout_s
    while told := missing():
        if clock() >= deadline:
            raise TimeoutError(f"{told} after {timeout_s:g} s")
        sleep(every_s)
