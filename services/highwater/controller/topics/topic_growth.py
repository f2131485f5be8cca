"""The growth of topics: may one get more partitions, and who hosts them? Pure.

Partitions are only ever added: taking one away would take its records with it, and keys would change their partition
without any of their earlier records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from highwater.controller.topics.assignment import assign_replicas, continuation
from highwater.controller.topics.topic_admin import MAX_PARTITIONS, Refusal, brokers_away
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import TopicAssignment


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The partitions that a client asked for: the topic with `total` partitions. `assignment` names the replicas of
    every partition that is added, preferred leader first; empty: the controller chooses."""

    topic: str
    total: int
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def plan_growth(new: NewPartitions, current: TopicAssignment, brokers: Sequence[int]) -> TopicAssignment | Refusal:
    """The grown topic's assignment, or why it may not grow so. `brokers` are live and not shutting down, ascending.

    Those that are added have as many replicas as the topic's first one; they continue its round of the brokers, so
    that the topic spreads as one that was made with `total` partitions does.
    """
    present = len(current.replicas)
    if not present < new.total <= MAX_PARTITIONS:
        reason = (
            f"must be at most {MAX_PARTITIONS}"
            if new.total > MAX_PARTITIONS
            else f"it has {present}: partitions can only be added"
        )
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"topic {new.topic!r}: {new.total} partitions, {reason}")
    factor = len(current.replicas[0])
    added = _checked_assignment(new, present, factor, brokers) if new.assignment else None
    if isinstance(added, Refusal):
        return added
    if added is None:
        if factor > len(brokers):  # RULES 9.1; there were as many once
            return brokers_away(new.topic, factor, len(brokers))
        start, shift = continuation(brokers, current.replicas)
        added = assign_replicas(
            brokers, new.total - present, factor, start_index=start, shift=shift, first_partition=present
        )
    return TopicAssignment(current.topic, current.topic_id, current.replicas + added)


def _checked_assignment(
    new: NewPartitions, present: int, factor: int, brokers: Sequence[int]
) -> tuple[tuple[int, ...], ...] | Refusal:
    if sorted(new.assignment) != list(range(present, new.total)):
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {new.topic!r}: the assignment must name partitions {present} to {new.total - 1}, each once",
        )
    added = tuple(replicas for _, replicas in sorted(new.assignment.items()))
    live = set(brokers)
    for number, replicas in enumerate(added, start=present):
        if len(replicas) != factor:
            return Refusal(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {new.topic!r}, partition {number}: {len(replicas)} replicas, but the topic's replication "
                f"factor is {factor}",
            )
        if len(set(replicas)) != len(replicas) or not live.issuperset(replicas):
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"topic {new.topic!r}, partition {number}: replicas {list(replicas)} must be distinct live brokers "
                f"(live: {list(brokers)})",
            )
    return added
