"""What the groups of a seed are like."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

NEVER_MS = 1 << 40


@dataclass(slots=True)
class GroupSettings:
    offsets_partitions: int = 1
    groups: int = 1
    members: int = 3  # of each group, about
    static: float = 0.2  # the part of members with an instance id
    partitions: int = 3  # of the topic that only groups are interested in
    session_timeout_ms: int = 3000
    rebalance_timeout_ms: int = 6000
    retention_ms: int = 4000
    retention_check_ms: int = 500
    skew_ms: int = 0  # between the clocks of brokers
    churn_gap_ms: int = 800  # between two members that come, go, crash or stall
    work_gap_ms: int = 150  # between two commits of a member
    idle: float = 0.2  # the part of that in which it has nothing to commit
    give_up_ms: int = 0  # what a member takes to give partitions up, at the most
    compaction_gap_ms: int = 0  # between two passes over a broker's logs of the offsets topic; 0: there are none
    delete_retention_ms: int = NEVER_MS  # after which compaction drops tombstones
    deletion_gap_ms: int = 0  # between two times that a group is emptied and deleted; 0: it never is
    lost_deletions: float = 0.0  # the part of deletions in which the coordinator is killed
    removed_at_once: int = 2  # offsets, of those that go in steps
    known_within_ms: int = 10_000  # in which a broker hears of a topic
    metadata_lag_ms: int = 0  # in which a broker takes up what it is told of topics, at the most
    pending_bytes: int = 16 << 20  # of records that a shard lets wait to be committed


def draw(random: Random) -> GroupSettings:
    session_timeout_ms = random.choice((1500, 3000, 5000))
    return GroupSettings(
        offsets_partitions=random.choice((1, 1, 2)),
        groups=random.choice((1, 1, 2)),
        members=random.choice((2, 3, 4)),
        static=random.choice((0.0, 0.3)),
        partitions=random.choice((2, 3, 5)),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=random.choice((2 * session_timeout_ms, 2 * session_timeout_ms, 800)),
        retention_ms=random.choice((1500, 4000)),
        skew_ms=random.choice((0, 0, 300)),
        churn_gap_ms=random.choice((300, 800, 2000)),
        work_gap_ms=random.choice((60, 150, 400)),
        idle=random.choice((0.0, 0.5, 0.9)),
        give_up_ms=random.choice((0, 100, 1500)),
        compaction_gap_ms=random.choice((0, 50, 50, 400)),
        delete_retention_ms=random.choice((400, 1500, NEVER_MS)),
        deletion_gap_ms=random.choice((0, 1500, 4000)),
        lost_deletions=random.choice((0.0, 0.3)),
        removed_at_once=random.choice((1, 2, 500)),
        metadata_lag_ms=random.choice((0, 0, 800)),
        pending_bytes=random.choice((1000, 16 << 20, 16 << 20)),
    )
