"""How far a group is behind, from what the cluster said."""

from __future__ import annotations

from highwater.cli.groups.lags import PartitionLag, behind, partition_lags
from highwater.client import CommittedOffset, GroupDescription, GroupMemberDescription, TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def committed(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 0)


def member(*assignment: TopicPartition) -> GroupMemberDescription:
    return GroupMemberDescription("m", "", "c", "h", "", 3, "stable", ("t",), "", assignment, (), assignment)


def test_partitions_that_are_committed_or_assigned() -> None:
    group = GroupDescription("g", "stable", members=(member(B, C),), offsets={A: committed(7), B: committed(10)})
    lags = partition_lags(group, {A: 10, B: 10}, {A: 1_000})
    assert lags == [
        PartitionLag(A, 7, 10, 1_000, ""),
        PartitionLag(B, 10, 10, None, "m"),
        PartitionLag(C, None, None, None, "m"),
    ]
    assert [one.lag for one in lags] == [3, 0, None]
    assert [one.seconds(3_500) for one in lags] == [2.5, 0.0, None]


def test_a_clock_behind_the_records_and_an_end_behind_the_commit() -> None:
    assert PartitionLag(A, 7, 10, 5_000, "").seconds(1_000) == 0.0
    assert PartitionLag(A, 12, 10, None, "").lag == 0


def test_only_what_has_something_behind_it_is_fetched() -> None:
    assert behind({A: 7, B: 10, C: 1}, {A: 10, B: 10}) == {A: 7}
