"""The groups of one shard, and where to find them. What is in here changes by records alone."""

from __future__ import annotations

from highwater.groups.group import Group
from highwater.groups.records import Record, decode, encode
from highwater.groups.records.keys import GroupEpochKey, Key, MemberSubscriptionKey, OffsetCommitKey
from highwater.groups.records.values import Value


class ShardState:
    """`emit` makes a record and takes it as `replay` takes one from the log: there is no other way to change a group
    (RULES 11.1)."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.subscribed: dict[str, set[str]] = {}  # by topic: groups with members that subscribe to its name
        self.with_patterns: set[str] = set()  # groups with members that subscribe to a pattern
        self.committed: dict[str, set[str]] = {}  # by topic: groups with offsets of it
        self.emitted = 0  # records that this shard has made, which were not replayed
        self._last: dict[str, int] = {}  # by group: the number of the last record of it that this shard made
        self._records: list[Record] = []

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Takes a record of the log. Raises `UnreadableRecordError`."""
        found = decode(key, value)
        if found is not None:
            self._apply(*found, timestamp_ms)

    def emit(self, key: Key, value: Value | None, now_ms: int) -> None:
        self._records.append(encode(key, value, now_ms))
        self.emitted += 1
        self._apply(key, value, now_ms)
        if key.group in self.groups:
            self._last[key.group] = self.emitted

    def take_records(self) -> tuple[Record, ...]:
        """The records that were made since the last call."""
        taken, self._records = tuple(self._records), []
        return taken

    def last_record_of(self, group_id: str) -> int:
        """The number of the record that says the last of what is known of a group. Of one that is not there it may be
        any: its removal is in a record, too."""
        return self._last.get(group_id, 0) if group_id in self.groups else self.emitted

    def _apply(self, key: Key, value: Value | None, timestamp_ms: int) -> None:
        group = self.groups.get(key.group)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group] = Group(key.group)
        before: frozenset[str] = frozenset()
        if isinstance(key, MemberSubscriptionKey) and key.member_id in group.members:
            before = group.members[key.member_id].subscription.topics
        group.apply(key, value, timestamp_ms)
        if isinstance(key, OffsetCommitKey):
            _enter(self.committed, key.topic, key.group, key.topic in group.offset_topics)
        elif isinstance(key, MemberSubscriptionKey):
            member = group.members.get(key.member_id)
            for topic in before | member.subscription.topics if member else before:
                _enter(self.subscribed, topic, key.group, topic in group.topic_subscribers)
            (self.with_patterns.add if group.pattern_subscribers else self.with_patterns.discard)(key.group)
        if value is None and group.is_void and isinstance(key, OffsetCommitKey | GroupEpochKey):
            del self.groups[key.group]
            self._last.pop(key.group, None)


def _enter(index: dict[str, set[str]], topic: str, group_id: str, there: bool) -> None:
    if there:
        index.setdefault(topic, set()).add(group_id)
    elif topic in index:
        index[topic].discard(group_id)
        if not index[topic]:
            del index[topic]
