"""How much of each kind of work both sides do."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = 6
TOPIC_CONFIG = {"min.insync.replicas": "2"}
TABLE_ROWS = 200_000
LATENCY_RATE = 200  # records a second
LATENCY_RECORDS = 2_000
LATENCY_WARM_UP = 200
FAILOVER_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Work:
    tables: int = 30  # of 200,000 rows
    sends: int = 1_000_000
    failovers: int = 3
    rounds: int = 1


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(len(ordered) * percent / 100))]
