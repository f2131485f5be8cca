"""A consumer group as its records have it. Nothing here changes but by `apply`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from highwater.groups.member import NEW, NO_SUBSCRIPTION, NOTHING, Member
from highwater.groups.records.keys import (
    CurrentAssignmentKey,
    GroupEpochKey,
    Key,
    MemberSubscriptionKey,
    OffsetCommitKey,
    PatternKey,
    TargetAssignmentKey,
    TargetEpochKey,
)
from highwater.groups.records.values import (
    CurrentAssignmentValue,
    GroupEpochValue,
    MemberState,
    MemberSubscriptionValue,
    OffsetCommitValue,
    PatternValue,
    TargetAssignmentValue,
    TargetEpochValue,
    Value,
)
from highwater.groups.requests import GroupState, NamedPartition, Partitions
from highwater.model.partition import PartitionKey


class Group:
    """A group that has an epoch has had members; one without has committed offsets alone.

    `owners` says who holds a partition, `target_owners` who is to hold it: both follow from the members' assignments.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.epoch_time_ms = 0  # when it was last raised: when members or their subscriptions last changed
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}  # static members: instance id to member id
        self.targets: dict[str, Partitions] = {}
        self.owners: dict[PartitionKey, str] = {}
        self.target_owners: dict[PartitionKey, str] = {}
        self.patterns: dict[str, frozenset[str]] = {}  # what each was last resolved to
        self.offsets: dict[NamedPartition, OffsetCommitValue] = {}
        self.offset_topics: Counter[str] = Counter()  # partitions with an offset, by topic
        self.topic_subscribers: Counter[str] = Counter()  # by name, patterns aside
        # The different sets of names that members subscribe to: of each one object, and the members that share it.
        self.subscriptions: Counter[frozenset[str]] = Counter()
        self.subscribed_names = 0  # of these sets together
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        self.pattern_subscribers: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()

    @property
    def is_void(self) -> bool:
        """Nothing is known of it any more."""
        return not (self.epoch or self.members or self.offsets or self.targets or self.patterns or self.target_epoch)

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.target_epoch < self.epoch:
            return GroupState.ASSIGNING
        for member in list(self.members.values()):  # asked by the thread that serves the metrics, too
            if member.current.state is not MemberState.STABLE or member.current.epoch != self.target_epoch:
                return GroupState.RECONCILING
        return GroupState.STABLE

    def assignor(self, default: str) -> str:
        """The assignor that most members name; the first by name where that is undecided."""
        return min(self.assignors, key=lambda name: (-self.assignors[name], name), default=default)

    def topics_of(self, subscription: MemberSubscriptionValue) -> frozenset[str]:
        if not subscription.pattern:
            return subscription.topics
        return subscription.topics | self.patterns.get(subscription.pattern, frozenset())

    def subscribed_topics(self) -> set[str]:
        """Names of topics, whether they exist or not."""
        return set(self.topic_subscribers).union(*(self.patterns.get(each, ()) for each in self.pattern_subscribers))

    def subscribes_to(self, topic: str) -> bool:
        return topic in self.topic_subscribers or any(
            topic in self.patterns.get(each, ()) for each in self.pattern_subscribers
        )

    def apply(self, key: Key, value: Value | None, timestamp_ms: int) -> None:
        """Takes a record. None is ever refused: a log that was compacted, or cut between two records, has sequences
        that no coordinator wrote."""
        match key, value:
            case OffsetCommitKey(_, topic, partition), OffsetCommitValue():
                place = NamedPartition(topic, partition)
                if place not in self.offsets:
                    self.offset_topics[topic] += 1
                self.offsets[place] = value
            case OffsetCommitKey(_, topic, partition), None:
                if self.offsets.pop(NamedPartition(topic, partition), None) is not None:
                    _count_down(self.offset_topics, topic)
            case CurrentAssignmentKey(_, member_id), CurrentAssignmentValue():
                self._set_current(member_id, value)
            case CurrentAssignmentKey(_, member_id), None:
                if member_id in self.members:
                    self._set_current(member_id, NEW)
            case TargetAssignmentKey(_, member_id), TargetAssignmentValue():
                self._set_target(member_id, value.partitions)
            case TargetAssignmentKey(_, member_id), None:
                self._set_target(member_id, NOTHING)
                self.targets.pop(member_id, None)
            case MemberSubscriptionKey(_, member_id), MemberSubscriptionValue():
                self._set_subscription(member_id, value)
            case MemberSubscriptionKey(_, member_id), None:
                self._remove_member(member_id)
            case GroupEpochKey(), GroupEpochValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                self.epoch_time_ms = timestamp_ms
            case GroupEpochKey(), None:
                self.epoch = self.metadata_hash = self.epoch_time_ms = 0
            case TargetEpochKey(), TargetEpochValue():
                self.target_epoch = value.epoch
            case TargetEpochKey(), None:
                self.target_epoch = 0
            case PatternKey(_, pattern), PatternValue():
                self.patterns[pattern] = value.topics
            case PatternKey(_, pattern), None:
                self.patterns.pop(pattern, None)
            case _:
                raise AssertionError(f"{value!r} is no value of {key!r}")

    def _set_current(self, member_id: str, current: CurrentAssignmentValue) -> None:
        before = self.members.get(member_id) or Member(member_id)
        after = replace(before, current=current)
        self.members[member_id] = after
        _pass_on(self.owners, member_id, before.held, after.held)

    def _set_target(self, member_id: str, target: Partitions) -> None:
        _pass_on(self.target_owners, member_id, self.targets.get(member_id, NOTHING), target)
        self.targets[member_id] = target

    def _set_subscription(self, member_id: str, subscription: MemberSubscriptionValue) -> None:
        before = self.members.get(member_id)
        subscription = replace(subscription, topics=self._sets.get(subscription.topics, subscription.topics))
        self._count(before.subscription if before else NO_SUBSCRIPTION, -1)
        self._count(subscription, 1)
        current = before.current if before else NEW
        self.members[member_id] = Member(member_id, subscription, current)
        if before and before.subscription.instance_id != subscription.instance_id:
            self._forget_instance(before)
        if subscription.instance_id:
            self.instances[subscription.instance_id] = member_id

    def _remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.subscription, -1)
            self._forget_instance(member)
            _pass_on(self.owners, member_id, member.held, NOTHING)

    def _forget_instance(self, member: Member) -> None:
        if self.instances.get(member.subscription.instance_id) == member.member_id:
            del self.instances[member.subscription.instance_id]

    def _count(self, subscription: MemberSubscriptionValue, by: int) -> None:
        self._count_set(subscription.topics, by)
        counters: tuple[tuple[Counter[str], Iterable[str]], ...] = (
            (self.topic_subscribers, subscription.topics),
            (self.pattern_subscribers, (subscription.pattern,)),
            (self.assignors, (subscription.assignor,)),
        )
        for counter, names in counters:
            for name in names:
                if name and by > 0:
                    counter[name] += 1
                elif name:
                    _count_down(counter, name)

    def _count_set(self, topics: frozenset[str], by: int) -> None:
        if not topics:
            return
        before = self.subscriptions[topics]
        self.subscriptions[topics] += by
        if not before:
            self._sets[topics] = topics
            self.subscribed_names += len(topics)
        elif not self.subscriptions[topics]:
            del self.subscriptions[topics], self._sets[topics]
            self.subscribed_names -= len(topics)


def _count_down(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


def _pass_on(owners: dict[PartitionKey, str], member_id: str, before: Partitions, after: Partitions) -> None:
    """The later record has the partition: one that another member got in between is not taken back from it."""
    for key in before - after:
        if owners.get(key) == member_id:
            del owners[key]
    for key in after - before:
        owners[key] = member_id
