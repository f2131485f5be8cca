"""Selects the segments that a log lets go of by age and size. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

UNLIMITED = -1


class Aged(NamedTuple):
    """The facts of a segment that retention needs."""

    end_offset: int  # where the next segment begins; of the active one: the log end
    size_bytes: int
    newest_ms: int  # its largest timestamp (ms since the epoch); where no batch has one, when the file was last written


class Limits(NamedTuple):
    """`retention.ms` and `retention.bytes`, each `UNLIMITED` where it does not count."""

    retention_ms: int
    retention_bytes: int


def expired_segments(
    segments: Iterable[Aged],
    size_bytes: int,
    limits: Limits,
    *,
    log_start_offset: int,
    high_watermark: int,
    wall_clock_ms: int,
) -> int:
    """Tells how many segments go, counted from the oldest on, of `size_bytes` in all. `segments` is not asked for more
    than the first one that stays. A segment goes that ends at or below the log start, or is older than `retention_ms`,
    or without which the log still has `retention_bytes`. The first one that stays, reaches above the high watermark, or
    is empty ends it, so that what goes is a prefix of what is committed.

    All of them may go: the caller then begins an active segment first."""
    count = 0
    for segment in segments:
        if not segment.size_bytes or segment.end_offset > high_watermark:
            break
        size_bytes -= segment.size_bytes
        below_log_start = segment.end_offset <= log_start_offset
        too_old = UNLIMITED < limits.retention_ms < wall_clock_ms - segment.newest_ms
        too_much = UNLIMITED < limits.retention_bytes <= size_bytes
        if not (below_log_start or too_old or too_much):
            break
        count += 1
    return count
