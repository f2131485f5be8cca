"""Sizes of what is measured of groups."""

from __future__ import annotations

from dataclasses import dataclass

SESSION_TIMEOUT_MS = 6_000
"""Of `group_failover`, on both sides: the least that Kafka's brokers allow a member to ask for."""
HEARTBEAT_INTERVAL_MS = 2_000
SETTLE_TIMEOUT_S = 60.0
"""Of each wait: for shares, reads, connections."""


@dataclass(frozen=True)
class GroupSizes:
    members: int = 20
    partitions: int = 100
    rounds: int = 3
    """Of `group_rebalance` and `group_join_gap`, at most: no other is begun after `round_time_s`."""
    round_time_s: float = 10.0
    feed_period_s: float = 0.025
    """Between two records of one partition that is watched."""
    gap_members: int = 4
    gap_partitions: int = 12
    gap_period_s: float = 0.04
    watch_s: float = 1.0
    """Before a member joins, and after all have their new shares."""
    commits: int = 500
    consume_tables: int = 10  # of 200,000 rows
    consume_pairs: int = 5
    consume_time_s: float = 15.0
    """No other pair is begun after that."""
    idle_groups: int = 10_000
    idle_members: int = 2_000
    idle_settle_s: float = 1.0
    idle_window_s: float = 6.0
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
