"""The rule that controllers and brokers share where logs are damaged (RULES 7.6)."""

from __future__ import annotations

from collections.abc import Sequence


def fewest_sound(min_insync_replicas: int, replicas: Sequence[int]) -> int:
    """So many replicas have to hold everything committed beside one whose damaged log is to be cut. Where the minimum
    is all replicas there are, it cannot be kept."""
    return min(min_insync_replicas, len(replicas) - 1)
