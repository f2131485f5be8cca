"""The keys of the records of `__consumer_offsets`: int16 kind, then the fields in the old form (int16 lengths).

| kind | record | fields |
|---|---|---|
| 0, 1 | offset commit | group, topic, partition (int32) |
| 2 | classic group | group |
| 3 | consumer group: its epoch | group |
| 4 | consumer group: its topics (Kafka 4.0 and before) | group |
| 5 | consumer group: a member's subscription | group, member id |
| 6 | consumer group: the epoch of its target assignment | group |
| 7 | consumer group: a member's target assignment | group, member id |
| 8 | consumer group: a member's current assignment | group, member id |
| 16 | consumer group: a pattern and the topics it matches | group, pattern |

Kinds 2 and 4, and those that are not in the table (share groups, streams groups), are skipped.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class OffsetCommitKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupEpochKey(NamedTuple):
    """Kafka's ConsumerGroupMetadataKey."""

    group: str


class MemberSubscriptionKey(NamedTuple):
    """Kafka's ConsumerGroupMemberMetadataKey."""

    group: str
    member_id: str


class TargetEpochKey(NamedTuple):
    """Kafka's ConsumerGroupTargetAssignmentMetadataKey."""

    group: str


class TargetAssignmentKey(NamedTuple):
    """Kafka's ConsumerGroupTargetAssignmentMemberKey."""

    group: str
    member_id: str


class CurrentAssignmentKey(NamedTuple):
    """Kafka's ConsumerGroupCurrentMemberAssignmentKey."""

    group: str
    member_id: str


class PatternKey(NamedTuple):
    """Kafka's ConsumerGroupRegularExpressionKey."""

    group: str
    pattern: str


Key: TypeAlias = (
    OffsetCommitKey
    | GroupEpochKey
    | MemberSubscriptionKey
    | TargetEpochKey
    | TargetAssignmentKey
    | CurrentAssignmentKey
    | PatternKey
)
