"""The messages of `GroupCoordinator` to and from the values of `highwater.groups`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias

from google.protobuf.message import Message

from highwater.errors import ErrorCode
from highwater.groups import requests as req
from highwater.groups.config import GroupConfig
from highwater.groups.offsets import fetched_offset
from highwater.groups.records.values import MemberState, OffsetCommitValue
from highwater.groups.topics import TopicImage
from highwater.groups.validity import MOST_TOPICS
from highwater.model.partition import TOPIC_ID_BYTES, PartitionKey
from highwater.rpc.errors import to_proto
from highwater.rpc.process.loop_turn import by_turns, sorted_by_turns
from highwater.rpc.requests.request_limits import MAX_GROUPS, too_large
from highwater.v1 import common_pb2, group_pb2

MOST_OWNED = 50_000  # partitions of one member
FRAME_BYTES = 6  # of a message in a repeated field, beside its own: the field's number and the length

Sees: TypeAlias = Callable[[str], bool]
"""Tells whether the caller may DESCRIBE the topic of that name."""

_STATES = {
    req.GroupState.EMPTY: group_pb2.GROUP_STATE_EMPTY,
    req.GroupState.ASSIGNING: group_pb2.GROUP_STATE_ASSIGNING,
    req.GroupState.RECONCILING: group_pb2.GROUP_STATE_RECONCILING,
    req.GroupState.STABLE: group_pb2.GROUP_STATE_STABLE,
    req.GroupState.DEAD: group_pb2.GROUP_STATE_DEAD,
}
_FROM_STATES: dict[int, req.GroupState] = {number: state for state, number in _STATES.items()}
_MEMBER_STATES = {
    MemberState.STABLE: group_pb2.MEMBER_STATE_STABLE,
    MemberState.UNREVOKED_PARTITIONS: group_pb2.MEMBER_STATE_UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS: group_pb2.MEMBER_STATE_UNRELEASED_PARTITIONS,
}


def error_of(refusal: req.Refusal | None) -> common_pb2.Error | None:
    return None if refusal is None else to_proto(refusal.code, refusal.message)


def states_of(numbers: Iterable[int]) -> frozenset[req.GroupState]:
    """Those that this version knows."""
    return frozenset(_FROM_STATES[number] for number in numbers if number in _FROM_STATES)


# Sessions


def subscription(message: group_pb2.Subscription) -> req.Subscription:
    return req.Subscription(
        frozenset(message.topics),
        message.pattern,
        message.assignor,
        message.rebalance_timeout_ms,
        message.rack,
        message.client_id,
    )


def partitions(message: group_pb2.PartitionList) -> req.Partitions:
    return frozenset(PartitionKey(topic.topic_id, number) for topic in message.topics for number in topic.partitions)


def everything(topic: str) -> bool:
    return True


def topic_partitions(
    keys: Iterable[PartitionKey], image: TopicImage, sees: Sees = everything
) -> Iterator[group_pb2.TopicPartitions]:
    """With the names of the topics as they are now; empty where one was deleted."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in keys:
        by_topic.setdefault(topic_id, []).append(number)
    for topic_id, numbers in sorted(by_topic.items()):
        if not (name := image.name_of(topic_id)) or sees(name):
            yield group_pb2.TopicPartitions(topic_id=topic_id, topic=name, partitions=sorted(numbers))


def session_response(answer: req.SessionAnswer, config: GroupConfig, image: TopicImage) -> group_pb2.SessionResponse:
    response = group_pb2.SessionResponse(
        error=error_of(answer.error),
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        session_timeout_ms=config.session_timeout_ms,
        assignment_number=answer.assignment_number,
    )
    if answer.assignment is not None:
        response.assignment.SetInParent()
        response.assignment.topics.extend(topic_partitions(answer.assignment, image))
    return response


def leave_out(topics: Any, unseen: Collection[str]) -> None:
    """Takes out of a message's repeated `TopicPartitions` the topics of these names."""
    if not unseen:
        return
    seen = [each for each in topics if each.topic not in unseen]
    del topics[:]
    topics.extend(seen)


# Offsets


async def offsets_to_commit(offsets: Iterable[group_pb2.CommittedOffset]) -> tuple[req.OffsetToCommit, ...]:
    """Of thousands; others have their turn in between."""
    made = []
    async for each in by_turns(offsets):
        partition = each.partition
        made.append(
            req.OffsetToCommit(
                partition.topic, partition.partition, each.offset, each.leader_epoch, each.metadata, each.topic_id
            )
        )
    return tuple(made)


async def named_partitions(wanted: Iterable[common_pb2.TopicPartition]) -> tuple[req.NamedPartition, ...]:
    """Of thousands; others have their turn in between."""
    return tuple([req.NamedPartition(each.topic, each.partition) async for each in by_turns(wanted)])


def committed(offset: group_pb2.CommittedOffset, refusal: req.Refusal | None) -> group_pb2.CommittedOffset:
    """The answer about one offset of CommitOffsets or AlterOffsets."""
    result = group_pb2.CommittedOffset()
    result.MergeFrom(offset)
    result.ClearField("error")
    if refusal is not None:
        result.error.CopyFrom(to_proto(refusal.code, refusal.message))
    return result


async def all_fetched(
    kept: Mapping[req.NamedPartition, OffsetCommitValue], image: TopicImage, sees: Sees
) -> AsyncIterator[group_pb2.CommittedOffset]:
    """Those that are kept, by topic and partition, of the topics that the caller `sees`."""
    async for partition in sorted_by_turns(list(kept)):
        if sees(partition.topic):
            yield fetched(fetched_offset(partition, kept[partition], image))


def fetched(offset: req.FetchedOffset) -> group_pb2.CommittedOffset:
    (topic, number), value = offset.partition, offset.committed
    partition = common_pb2.TopicPartition(topic=topic, partition=number)
    if value is None:
        return group_pb2.CommittedOffset(partition=partition, offset=-1, leader_epoch=-1, commit_time_ms=-1)
    return group_pb2.CommittedOffset(
        partition=partition,
        topic_id=value.topic_id or b"",
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_time_ms=value.commit_time_ms,
    )


# Groups


def listed(group: req.ListedGroup) -> group_pb2.ListedGroup:
    return group_pb2.ListedGroup(group=group.group, state=_STATES[group.state], members=group.members)


async def describe(
    described: group_pb2.GroupDescription,
    group: str,
    answer: req.Answer | req.Refusal,
    image: TopicImage,
    sees: Sees,
    most_bytes: int,
) -> int:
    """Fills it in, without the topics that the caller does not see, up to so many bytes. Returns how many are left;
    below 0: it would have more, or has an error that does."""
    described.group = group
    if isinstance(answer, req.Refusal):
        described.error.CopyFrom(to_proto(answer.code, answer.message))
        return most_bytes - described.ByteSize() - FRAME_BYTES
    assert isinstance(answer, req.GroupDescription), answer
    described.state = _STATES[answer.state]
    if answer.error is not None:
        described.error.CopyFrom(to_proto(answer.error.code, answer.error.message))
        return most_bytes - described.ByteSize() - FRAME_BYTES
    described.group_epoch = answer.epoch
    described.assignment_epoch = answer.assignment_epoch
    described.assignor = answer.assignor
    left = most_bytes - described.ByteSize() - FRAME_BYTES
    left = await filled(described.members, _members(answer.members, image, sees), left)
    return await filled(described.offsets, all_fetched(answer.kept, image, sees), left) if left >= 0 else left


async def _seen_of_members(members: Sequence[req.DescribedMember], image: TopicImage, sees: Sees) -> Set[str]:
    """Those that the caller sees, of all topics that members name or have and that have a name now. Of one that has its
    name a turn later nobody was asked."""
    names: set[str] = set()
    async for member in by_turns(members):
        names |= member.topics
        for keys in (member.assigned, member.revoking, member.target):
            names.update(image.name_of(topic_id) for topic_id in {key.topic_id for key in keys})
    return {name async for name in by_turns(names) if name and sees(name)}


async def filled(field: Any, messages: AsyncIterator[Message], most_bytes: int) -> int:
    """Appends the messages to a repeated field, up to so many bytes. Returns how many are left; below 0: there are more
    messages."""
    async for message in messages:
        most_bytes -= message.ByteSize() + FRAME_BYTES
        if most_bytes < 0:
            break
        field.append(message)
    return most_bytes


async def _members(
    members: Sequence[req.DescribedMember], image: TopicImage, sees: Sees
) -> AsyncIterator[group_pb2.GroupMember]:
    if sees is not everything:
        sees = (await _seen_of_members(members, image, sees)).__contains__
    async for each in by_turns(members):
        message = _member(each, sees)
        for field, keys in (
            (message.assignment, each.assigned),
            (message.revoking, each.revoking),
            (message.target, each.target),
        ):
            async for topic in by_turns(topic_partitions(keys, image, sees)):
                field.append(topic)
        yield message


def _member(member: req.DescribedMember, sees: Sees) -> group_pb2.GroupMember:
    """Without its partitions, of which it may have 100,000."""
    return group_pb2.GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rack=member.rack,
        member_epoch=member.epoch,
        state=_MEMBER_STATES[member.state],
        topics=sorted(filter(sees, member.topics)),
        pattern=member.pattern,
    )


# What is refused before a shard is asked


def groups_of(
    request: group_pb2.FindCoordinatorRequest | group_pb2.DescribeGroupsRequest | group_pb2.DeleteGroupsRequest,
) -> tuple[Sequence[str], req.Refusal | None]:
    """The groups that are to be answered for, and what refuses them all: their answer has no error but each group's.
    Of too many, as many as a request may have."""
    refusal = too_large(request)
    if not refusal:
        return request.groups, None
    return request.groups[:MAX_GROUPS], req.Refusal(ErrorCode.INVALID_REQUEST, refusal)


def bad_word(request: group_pb2.SessionRequest) -> str:
    """The sentence that refuses it, before anything is made of what it names; empty: nothing speaks against it."""
    if (count := len(request.subscription.topics)) > MOST_TOPICS:
        return f"a subscription to {count} topics: {MOST_TOPICS} are the most"
    owned = request.owned.topics
    if (count := sum(len(topic.partitions) for topic in owned)) > MOST_OWNED or len(owned) > MOST_OWNED:
        return (
            f"{max(count, len(owned))} partitions that a member owns: {MOST_OWNED} are the most, share them with others"
        )
    for topic in owned:
        if len(topic.topic_id) != TOPIC_ID_BYTES:
            return f"there is no topic of id {topic.topic_id[:64].hex()!r}"
        if min(topic.partitions, default=0) < 0:
            return f"there is no partition {min(topic.partitions)}"
    return ""
