"""Groups as `Admin` describes them: frozen values, and how answers become them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from highwater.client.exceptions import HighwaterError, error_for
from highwater.client.notebook import ShownAsTable
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import group_pb2

GroupState = Literal["empty", "assigning", "reconciling", "stable", "dead"]
MemberState = Literal["stable", "unrevoked", "unreleased", "unknown"]

_STATES: dict[int, GroupState] = {
    group_pb2.GROUP_STATE_EMPTY: "empty",
    group_pb2.GROUP_STATE_ASSIGNING: "assigning",
    group_pb2.GROUP_STATE_RECONCILING: "reconciling",
    group_pb2.GROUP_STATE_STABLE: "stable",
    group_pb2.GROUP_STATE_DEAD: "dead",
}
_NUMBERS = {state: group_pb2.GroupState.ValueType(number) for number, state in _STATES.items()}
_MEMBER_STATES: dict[int, MemberState] = {
    group_pb2.MEMBER_STATE_STABLE: "stable",
    group_pb2.MEMBER_STATE_UNREVOKED_PARTITIONS: "unrevoked",
    group_pb2.MEMBER_STATE_UNRELEASED_PARTITIONS: "unreleased",
}


@dataclass(frozen=True, slots=True)
class GroupListing(ShownAsTable):
    group: str
    state: GroupState
    members: int


@dataclass(frozen=True, slots=True)
class CommittedOffset(ShownAsTable):
    """A group's place in one partition."""

    offset: int  # of the next record to be read
    leader_epoch: int  # of the last record that was read; -1: not known
    metadata: str  # what the client wrote beside it
    commit_time_ms: int


@dataclass(frozen=True, slots=True)
class GroupMemberDescription(ShownAsTable):
    member_id: str
    instance_id: str  # empty: a dynamic member
    client_id: str
    client_host: str
    rack: str
    member_epoch: int  # -2: a static member that is away
    state: MemberState
    topics: tuple[str, ...]
    pattern: str
    assignment: tuple[TopicPartition, ...]
    revoking: tuple[TopicPartition, ...]  # to be given up, and not released yet
    target: tuple[TopicPartition, ...]  # what it is to have in the end


@dataclass(frozen=True, slots=True)
class GroupDescription(ShownAsTable):
    """`error` is None where there is such a group."""

    group: str
    state: GroupState
    error: HighwaterError | None = None
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[GroupMemberDescription, ...] = ()
    offsets: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)  # where they were asked for


def state_number(state: GroupState) -> group_pb2.GroupState.ValueType:
    return _NUMBERS[state]


def group_listing(group: group_pb2.ListedGroup) -> GroupListing:
    return GroupListing(group.group, _STATES.get(group.state, "dead"), group.members)


def committed_offset(committed: group_pb2.CommittedOffset) -> CommittedOffset:
    return CommittedOffset(committed.offset, committed.leader_epoch, committed.metadata, committed.commit_time_ms)


def group_description(group: group_pb2.GroupDescription) -> GroupDescription:
    code = from_proto(group.error)
    return GroupDescription(
        group.group,
        _STATES.get(group.state, "dead"),
        None if code is ErrorCode.NONE else error_for(code, f"group {group.group!r}: {group.error.message}"),
        group.group_epoch,
        group.assignment_epoch,
        group.assignor,
        tuple(map(_member, group.members)),
        {
            TopicPartition(each.partition.topic, each.partition.partition): committed_offset(each)
            for each in group.offsets
        },
    )


def _member(member: group_pb2.GroupMember) -> GroupMemberDescription:
    return GroupMemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rack,
        member.member_epoch,
        _MEMBER_STATES.get(member.state, "unknown"),
        tuple(member.topics),
        member.pattern,
        _partitions(member.assignment),
        _partitions(member.revoking),
        _partitions(member.target),
    )


def _partitions(topics: Iterable[group_pb2.TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions))
