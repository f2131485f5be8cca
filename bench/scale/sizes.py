"""Sizes of what is measured, and how idle partitions are divided into topics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

BROKERS = 3
TOPIC_PARTITIONS = 100
REPLICATION_FACTOR = 3
DEFAULT_PARTITIONS: Mapping[str, int] = {
    "scale_latency": 3_000,
    "scale_create": 9_000,
    "scale_idle": 9_000,
    "scale_failover": 9_000,
    "scale_restart": 9_000,
    "scale_controller": 9_000,
    "scale_stopped": 9_000,
    "scale_starved": 9_000,
    "scale_produce": 1_000,
    "scale_clients": 500,
    "scale_round": 3_000,
}
"""Of each figure. Each is measured beside so many, or over them; `scale_clients` has a partition for each producer."""


WHOLE_TIMEOUT_S = 300.0
"""Until all replicas of partitions that were made, or of a broker that was started again, are in sync."""


@dataclass(frozen=True)
class Sizes:
    partitions: Mapping[str, int] = field(default_factory=lambda: DEFAULT_PARTITIONS)
    window_s: float = 30.0
    """How long what idles is looked at, and many clients work."""
    settle_s: float = 10.0
    """After the last partition is made, before anything is measured beside it."""
    bent_rounds: int = 1
    """How often a cluster is kept from its work; the longest that it took to get up counts."""

    @classmethod
    def of(cls, partitions: int | None, window_s: float, bent_rounds: int = 1) -> Sizes:
        """`partitions` for every figure; None: each at its own."""
        sizes = DEFAULT_PARTITIONS if partitions is None else dict.fromkeys(DEFAULT_PARTITIONS, partitions)
        return cls(sizes, window_s, bent_rounds=bent_rounds)


def new_topics(have: int, want: int) -> list[tuple[str, int]]:
    """Names and partitions of the topics that are to be made where idle topics hold `have` partitions and are to hold
    `want`: of 100 each, the last of what is left."""
    return [(f"idle-{first:06d}", min(TOPIC_PARTITIONS, want - first)) for first in range(have, want, TOPIC_PARTITIONS)]


def growth(taken: Sequence[float]) -> tuple[float, float]:
    """The first and the last of a row of times, each a median of up to three of a third of them at most: one creation
    alone may meet a pause of the machine."""
    edge = max(1, min(3, len(taken) // 3))
    return median(taken[:edge]), median(taken[-edge:])
