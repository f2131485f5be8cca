"""Committed offsets: keeping, telling, removing and expiring them (RULES 11.6, 11.10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from highwater.errors import ErrorCode
from highwater.groups.config import GroupConfig
from highwater.groups.group import Group
from highwater.groups.records.keys import GroupEpochKey, OffsetCommitKey, PatternKey, TargetEpochKey
from highwater.groups.records.values import OffsetCommitValue
from highwater.groups.requests import (
    AlterOffsets,
    CommitAnswer,
    CommitOffsets,
    DeleteAnswer,
    DeleteGroup,
    DeleteOffsets,
    FetchAnswer,
    FetchedOffset,
    FetchOffsets,
    NamedPartition,
    OffsetToCommit,
    Refusal,
)
from highwater.groups.sessions import Sessions, Timer, TimerKey, Timers
from highwater.groups.state import ShardState
from highwater.groups.topics import TopicImage
from highwater.groups.validity import check_count, check_offset, check_offsets
from highwater.model.partition import PartitionKey

REMOVED_AT_ONCE = 500  # offsets: a tombstone for each takes a hundredth of a millisecond
REMOVED_BYTES = 1 << 20  # of the group's id in these tombstones: it may have 32 KiB


class Offsets:
    def __init__(
        self, state: ShardState, sessions: Sessions, timers: Timers, image: TopicImage, config: GroupConfig
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._timers = timers
        self._image = image
        self._config = config

    def commit(self, request: CommitOffsets, now_ms: int) -> CommitAnswer:
        group = self._state.groups.get(request.group)
        if request.member_id or request.member_epoch >= 0:
            refusal = self._check_member(group, request.group, request.member_id, request.member_epoch)
        elif group is not None and group.members:
            refusal = Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {request.group!r} has members: a commit of nobody's is for a group without",
            )
        else:
            refusal = None
        refusal = refusal or check_offsets(request.group, request.offsets)
        if refusal is not None:
            return CommitAnswer(refusal)
        return self._keep(request.group, request.member_id, request.offsets, now_ms)

    def alter(self, request: AlterOffsets, now_ms: int) -> CommitAnswer:
        group = self._state.groups.get(request.group)
        if group is not None and group.members:
            return CommitAnswer(_not_empty(group))
        refusal = check_offsets(request.group, request.offsets)
        if refusal is not None:
            return CommitAnswer(refusal)
        return self._keep(request.group, "", request.offsets, now_ms)

    def _keep(self, group_id: str, member_id: str, offsets: tuple[OffsetToCommit, ...], now_ms: int) -> CommitAnswer:
        errors: list[Refusal | None] = []
        for offset in offsets:
            refusal = check_offset(offset, self._image, self._config.offset_metadata_max_bytes)
            topic = self._image.named(offset.topic)
            if refusal is None and topic is not None:
                refusal = self._check_owner(group_id, member_id, PartitionKey(topic.topic_id, offset.partition))
                refusal = refusal or self._check_kept(group_id, offset, topic.topic_id)
                if refusal is None:
                    value = OffsetCommitValue(
                        offset.offset, offset.leader_epoch, offset.metadata, now_ms, topic_id=topic.topic_id
                    )
                    self._state.emit(OffsetCommitKey(group_id, offset.topic, offset.partition), value, now_ms)
            errors.append(refusal)
        if group_id in self._state.groups:
            self.watch(group_id, now_ms + self._config.offsets_retention_ms)
        return CommitAnswer(errors=tuple(errors))

    def _check_owner(self, group_id: str, member_id: str, key: PartitionKey) -> Refusal | None:
        """A member's late commit must not put back what another owner has committed, though that one may have left."""
        group = self._state.groups.get(group_id)
        owner = group.owners.get(key, "") if group and member_id else member_id
        if owner == member_id:
            return None
        whose = f"member {owner!r}'s" if owner else "no member's"
        return Refusal(ErrorCode.STALE_MEMBER_EPOCH, f"partition {key} is {whose} now")

    def _check_kept(self, group_id: str, offset: OffsetToCommit, topic_id: bytes) -> Refusal | None:
        """An offset that the coordinator before has taken of a topic of the name that was never heard of here may be of
        the newer one: the broker has heard of that once `remove_unknown` has had its turn (RULES 11.11)."""
        group = self._state.groups.get(group_id)
        kept = group.offsets.get(NamedPartition(offset.topic, offset.partition)) if group else None
        if kept is None or not kept.topic_id or kept.topic_id == topic_id:
            return None
        if self._image.has_gone(offset.topic, kept.topic_id):
            return None
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"an offset of {offset.topic}-{offset.partition} was committed of a topic with another id, which this"
            " broker has not heard of: try again, in a minute it is known which of the two there is",
        )

    def _check_member(self, group: Group | None, group_id: str, member_id: str, epoch: int) -> Refusal | None:
        """The member's epoch, or the one before it as long as the member may not have heard of the present one."""
        member = group.members.get(member_id) if group else None
        if member is None:
            return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id!r} has no member {member_id!r}")
        current = member.current
        if epoch == current.epoch and epoch > 0:
            return None
        session = self._sessions.get(group_id, member_id)
        unheard = session is None or not session.acknowledged
        if current.epoch > 0 and epoch == current.previous_epoch and unheard:
            return None
        return Refusal(
            ErrorCode.STALE_MEMBER_EPOCH,
            f"member {member_id!r} is at epoch {current.epoch}, not {epoch}: try with that",
        )

    def fetch(self, request: FetchOffsets) -> FetchAnswer:
        group = self._state.groups.get(request.group)
        if request.member_id or request.member_epoch >= 0:
            refusal = self._check_member(group, request.group, request.member_id, request.member_epoch)
            if refusal is not None:
                return FetchAnswer(refusal)
        offsets = group.offsets if group else {}
        if request.partitions is None:
            return FetchAnswer(kept=dict(offsets))
        return FetchAnswer(
            offsets=tuple(fetched_offset(each, offsets.get(each), self._image) for each in request.partitions)
        )

    def delete(self, request: DeleteOffsets, now_ms: int) -> DeleteAnswer:
        if (refusal := check_count(request.group, len(request.partitions))) is not None:
            return DeleteAnswer(refusal)
        group = self._state.groups.get(request.group)
        if group is None:
            return DeleteAnswer(_no_group(request.group))
        errors: list[Refusal | None] = []
        for partition in request.partitions:
            subscribed = group.members and group.subscribes_to(partition.topic)
            if subscribed:
                errors.append(
                    Refusal(
                        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                        f"members of group {request.group!r} subscribe to {partition.topic!r}: stop them first",
                    )
                )
                continue
            errors.append(None)
            if partition in group.offsets:
                self._state.emit(OffsetCommitKey(request.group, *partition), None, now_ms)
        return DeleteAnswer(errors=tuple(errors))

    def check_deletion(self, request: DeleteGroup) -> Refusal | None:
        group = self._state.groups.get(request.group)
        if group is None or group.is_void:
            return _no_group(request.group)
        return _not_empty(group) if group.members else None

    def delete_group(self, group_id: str, now_ms: int) -> Iterator[None]:
        """Of a group without members, which is given none between two steps."""
        group = self._state.groups[group_id]
        yield from self._remove_each(group, list(group.offsets), now_ms)
        self._remove(group, now_ms)

    def _remove(self, group: Group, now_ms: int) -> None:
        """Tombstones for all that the log may have of it, its offsets aside. The group's epoch goes last: a log that is
        cut before it has a group that is empty, and is removed when that is due."""
        for pattern in list(group.patterns):
            self._state.emit(PatternKey(group.group_id, pattern), None, now_ms)
        if group.epoch:
            self._state.emit(TargetEpochKey(group.group_id), None, now_ms)
            self._state.emit(GroupEpochKey(group.group_id), None, now_ms)
        self._timers.cancel(TimerKey(Timer.OFFSETS, group.group_id))

    def remove_gone(self, group: Group, topics: Set[str], now_ms: int) -> Iterator[None]:
        """Removes the offsets of topics of these names that have gone, some at each step. Those of one that is not
        known here yet stay: the coordinator before this one has taken them."""
        gone = [
            each
            for each, value in group.offsets.items()
            if each.topic in topics and self._image.has_gone(each.topic, value.topic_id)
        ]
        return self._remove_each(group, gone, now_ms)

    def remove_unknown(self, group: Group, now_ms: int) -> Iterator[None]:
        """Removes the offsets of topics that are not there, some at each step."""
        unknown = [each for each, value in group.offsets.items() if not self._image.has(each.topic, value.topic_id)]
        return self._remove_each(group, unknown, now_ms)

    def _remove_each(self, group: Group, partitions: Sequence[NamedPartition], now_ms: int) -> Iterator[None]:
        """One that is committed between two steps is of another topic of that name."""
        values = [group.offsets[each] for each in partitions]
        at_once = _removed_at_once(group.group_id)
        for number, (partition, value) in enumerate(zip(partitions, values, strict=True), 1):
            if group.offsets.get(partition) is value:
                self._state.emit(OffsetCommitKey(group.group_id, *partition), None, now_ms)
            if number % at_once == 0:
                yield

    # Expiry

    def watch(self, group_id: str, at_ms: int) -> None:
        """Looks at the group's offsets then, if no look is due before."""
        key = TimerKey(Timer.OFFSETS, group_id)
        due_ms = self._timers.get(key)
        if due_ms is None or at_ms < due_ms:
            self._timers.set(key, at_ms)

    def first_expiry_ms(self, group: Group, now_ms: int) -> int | None:
        """The earliest time at which an offset of the group may expire, or the group itself; None: never, as it is."""
        if not group.offsets:
            return None if group.members else now_ms
        subscribed = group.subscribed_topics() if group.members else frozenset[str]()
        return min(self._expiry_ms(group, each, subscribed, now_ms) for each in group.offsets)

    def _expiry_ms(
        self, group: Group, partition: NamedPartition, subscribed: set[str] | frozenset[str], now_ms: int
    ) -> int:
        """The retention counts from the commit, and from the last change of members or subscriptions: a group that is
        empty for a moment, or that subscribes to something else for one, loses nothing (RULES 11.10)."""
        value = group.offsets[partition]
        if partition.topic in subscribed:
            return now_ms + self._config.offsets_retention_ms
        if value.expire_time_ms != -1:
            return value.expire_time_ms
        return max(value.commit_time_ms, group.epoch_time_ms) + self._config.offsets_retention_ms

    def expire(self, group_id: str, now_ms: int) -> Iterator[None]:
        """Removes what has expired, some at each step, and a group of which nothing is left. Between two steps it may
        be given members and offsets; where the caller goes no further, the rest has its turn at the next look."""
        group = self._state.groups.get(group_id)
        if group is None:
            return
        timer = TimerKey(Timer.OFFSETS, group_id)
        next_look_ms = now_ms + self._config.retention_check_interval_ms
        self._timers.set(timer, next_look_ms)
        due_ms = now_ms + self._config.offsets_retention_ms  # what is committed meanwhile does not expire before
        partitions = list(group.offsets)
        at_once = _removed_at_once(group_id)
        for start in range(0, len(partitions), at_once):
            subscribed = group.subscribed_topics() if group.members else frozenset[str]()
            for partition in partitions[start : start + at_once]:
                if partition not in group.offsets:
                    continue
                expiry_ms = self._expiry_ms(group, partition, subscribed, now_ms)
                if expiry_ms <= now_ms:
                    self._state.emit(OffsetCommitKey(group_id, *partition), None, now_ms)
                else:
                    due_ms = min(due_ms, expiry_ms)
            yield
        group = self._state.groups.get(group_id)
        if group is None:
            self._timers.cancel(timer)
        elif not group.members and not group.offsets:
            self._remove(group, now_ms)
        else:
            self._timers.set(timer, max(due_ms, next_look_ms))


def fetched_offset(partition: NamedPartition, kept: OffsetCommitValue | None, image: TopicImage) -> FetchedOffset:
    """An offset of a topic that was deleted says nothing of another one of its name. One that is not known here may
    be the newer of the two: it is told with its id, and whoever asks knows which one it reads."""
    if kept is not None and kept.topic_id and image.has_gone(partition.topic, kept.topic_id):
        return FetchedOffset(partition, None)
    return FetchedOffset(partition, kept)


def _removed_at_once(group_id: str) -> int:
    return min(REMOVED_AT_ONCE, max(REMOVED_BYTES // max(len(group_id.encode()), 1), 1))


def _no_group(group_id: str) -> Refusal:
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _not_empty(group: Group) -> Refusal:
    return Refusal(
        ErrorCode.NON_EMPTY_GROUP, f"group {group.group_id!r} has {len(group.members)} members: stop them first"
    )
