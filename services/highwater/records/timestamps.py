"""Timestamps: ms since 1970, or -1 for none. Pure.

A producer may write times up to `MAX_TIMESTAMP_MS`, a day before the last that Python, Arrow and Spark can all show, in
whatever time zone. Logs may hold others all the same: a batch's header says nothing of the rows between its first and
its latest, and older brokers took what came. Readers show such a time as the nearest that can be shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NO_TIMESTAMP = -1
MAX_TIMESTAMP_MS = 253_402_214_399_999  # 9999-12-30T23:59:59.999Z
MIN_SHOWN_TIMESTAMP_MS = -62_135_510_400_000  # 0001-01-02T00:00:00.000Z


def writable(timestamp_ms: int) -> bool:
    """Tells whether a producer may write it, as far as the format goes; a topic may allow less."""
    return NO_TIMESTAMP <= timestamp_ms <= MAX_TIMESTAMP_MS


def shown(timestamps_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same array where all can be shown as a date; else a copy with the nearest that can."""
    if not len(timestamps_ms) or (
        timestamps_ms.min() >= MIN_SHOWN_TIMESTAMP_MS and timestamps_ms.max() <= MAX_TIMESTAMP_MS
    ):
        return timestamps_ms
    return timestamps_ms.clip(MIN_SHOWN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
