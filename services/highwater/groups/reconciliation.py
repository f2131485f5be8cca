"""Brings the members of a group to its target assignment, and tells them (RULES 11.3, 11.4)."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.groups.assignors import ASSIGNORS, Subscriber
from highwater.groups.config import GroupConfig
from highwater.groups.group import Group
from highwater.groups.member import NOTHING, Member, next_assignment
from highwater.groups.patterns import matching, within_bound
from highwater.groups.records.keys import (
    CurrentAssignmentKey,
    GroupEpochKey,
    PatternKey,
    TargetAssignmentKey,
    TargetEpochKey,
)
from highwater.groups.records.values import (
    GroupEpochValue,
    MemberState,
    PatternValue,
    TargetAssignmentValue,
    TargetEpochValue,
)
from highwater.groups.requests import Partitions, Push, SessionAnswer
from highwater.groups.sessions import Sessions
from highwater.groups.state import ShardState
from highwater.groups.topics import Topic, TopicImage
from highwater.model.topic_name import is_internal_topic


class Reconciliation:
    """`pushes` are what members are to be told of what was decided since they were last taken."""

    def __init__(self, state: ShardState, sessions: Sessions, image: TopicImage, config: GroupConfig) -> None:
        self._state = state
        self._sessions = sessions
        self._image = image
        self._config = config
        self._unchecked: set[str] = set()  # loaded groups whose topics have not been compared with the image yet
        self._pushes: dict[str, Push] = {}

    def take_pushes(self) -> dict[str, Push]:
        """By member id: a step concerns one group."""
        taken, self._pushes = self._pushes, {}
        return taken

    def push(self, push: Push) -> None:
        self._pushes[push.member_id] = push

    def loaded(self, group_id: str) -> None:
        self._unchecked.add(group_id)

    def catch_up(self, group: Group, now_ms: int) -> bool:
        """Once for each group that was loaded: whether topics changed, or an assignment was not finished, while nobody
        coordinated it. Whether members were given another target."""
        if group.group_id not in self._unchecked:
            return False
        self._unchecked.remove(group.group_id)
        if not group.members:
            return False
        self._resolve(group, self._image.names(), now_ms, again=True)
        return self._changed_topics(group, now_ms)

    def topics_changed(self, group: Group, names: Iterable[str], now_ms: int) -> bool:
        """Topics of those names came, grew, moved or went. Whether members were given another target."""
        if group.group_id in self._unchecked:
            return self.catch_up(group, now_ms)
        if not group.members:
            return False
        self._resolve(group, names, now_ms)
        return self._changed_topics(group, now_ms)

    def _changed_topics(self, group: Group, now_ms: int) -> bool:
        same = group.metadata_hash == self._image.hash_of(group.subscribed_topics())
        if same and group.target_epoch == group.epoch:
            return False
        self.raise_epoch(group, now_ms)
        return True

    def raise_epoch(self, group: Group, now_ms: int) -> None:
        """Members, subscriptions or topics have changed: a new group epoch, and the target assignment for it."""
        for pattern in [each for each in group.patterns if each not in group.pattern_subscribers]:
            self._state.emit(PatternKey(group.group_id, pattern), None, now_ms)
        self._resolve(group, (), now_ms, again=group.group_id in self._unchecked)
        self._unchecked.discard(group.group_id)
        metadata_hash = self._image.hash_of(group.subscribed_topics())
        self._state.emit(GroupEpochKey(group.group_id), GroupEpochValue(group.epoch + 1, metadata_hash), now_ms)
        topics: dict[str, Topic] = {}
        for name in group.subscribed_topics():
            topic = self._image.named(name)
            if topic is not None:
                topics[name] = topic
        assign = ASSIGNORS[group.assignor(self._config.assignor)]
        targets = assign(self._subscribers(group, topics), {topic.topic_id: topic for topic in topics.values()})
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                self._state.emit(TargetAssignmentKey(group.group_id, member_id), TargetAssignmentValue(target), now_ms)
        self._state.emit(TargetEpochKey(group.group_id), TargetEpochValue(group.epoch), now_ms)

    def _resolve(self, group: Group, names: Iterable[str], now_ms: int, again: bool = False) -> None:
        """Matches patterns with the topics of those names; one that is new, or all of them `again`, with all topics."""
        named = set(names)
        there = {name for name in named if self._image.named(name) is not None and not is_internal_topic(name)}
        for pattern in sorted(group.pattern_subscribers):
            before = group.patterns.get(pattern)
            if before is None or again:
                after = self._image.matching(pattern)
            else:
                after = (before - named) | matching(pattern, there) if named else before
            after = within_bound(after, before or frozenset())
            if after != before:
                value = PatternValue(after, self._image.version, now_ms)
                self._state.emit(PatternKey(group.group_id, pattern), value, now_ms)

    def _subscribers(self, group: Group, topics: dict[str, Topic]) -> list[Subscriber]:
        topic_ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}  # most members subscribe to the same
        found = []
        for member_id, member in group.members.items():
            subscription = member.subscription
            same = (subscription.topics, subscription.pattern)
            if same not in topic_ids:
                names = group.topics_of(subscription)
                topic_ids[same] = frozenset(topics[name].topic_id for name in names if name in topics)
            target = group.targets.get(member_id, NOTHING)
            found.append(Subscriber(member_id, topic_ids[same], target, subscription.instance_id, subscription.rack))
        return found

    def reconcile_all(self, group: Group, now_ms: int) -> None:
        for member in list(group.members.values()):
            self.reconcile(group, member.member_id, None, now_ms)

    def reconcile(self, group: Group, member_id: str, owned: Partitions | None, now_ms: int) -> None:
        """Moves a member on, as far as it has acknowledged where it is; then those that wait for what it released."""
        member = group.members[member_id]
        session = self._sessions.get(group.group_id, member_id)
        if session is None or not session.acknowledged:
            return
        target = group.targets.get(member_id, NOTHING)
        current = next_assignment(member, target, group.target_epoch, group.owners, owned)
        if current == member.current:
            return
        self._state.emit(CurrentAssignmentKey(group.group_id, member_id), current, now_ms)
        self._sessions.relieve(group.group_id, member_id)  # what was awaited of it has come
        self.tell(group, member_id, now_ms)
        self.released(group, member.held - group.members[member_id].held, now_ms)

    def released(self, group: Group, partitions: Partitions, now_ms: int) -> None:
        """Hands partitions that nobody has any more to those who wait for them."""
        waiting = {group.target_owners[key] for key in partitions if key in group.target_owners}
        for member_id in sorted(waiting):
            if member_id in group.members:
                self.reconcile(group, member_id, None, now_ms)

    def tell(self, group: Group, member_id: str, now_ms: int) -> None:
        """Sends a member its whole assignment, which it is to acknowledge within its rebalance timeout; within that it
        also has to give up what it has to."""
        session = self._sessions.get(group.group_id, member_id)
        assert session is not None
        member = group.members[member_id]
        number = self._sessions.sent(session)
        answer = SessionAnswer(member.current.epoch, member.current.assigned, number)
        self.push(Push(group.group_id, member_id, answer))
        self._sessions.await_member(
            group.group_id, member_id, now_ms + max(member.subscription.rebalance_timeout_ms, 1)
        )

    def acknowledged(self, group: Group, member: Member) -> None:
        if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._sessions.relieve(group.group_id, member.member_id)
