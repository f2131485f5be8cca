"""The state of a log that log-storage tells in each of its answers."""

from __future__ import annotations

from typing import NamedTuple


class LogState(NamedTuple):
    """All of one moment (RULES 3.2)."""

    log_end_offset: int
    last_epoch: int  # of the last batch that the log has had, -1 where there was none
    log_start_offset: int
    high_watermark: int
