"""What all members of a group may ask for together, and one commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from group_world import GROUP, load, subscription, topic

from highwater.errors import ErrorCode
from highwater.groups import reconciliation, topics
from highwater.groups.patterns import MOST_MATCHED_BYTES, matching
from highwater.groups.records import Record
from highwater.groups.requests import (
    AlterOffsets,
    CommitAnswer,
    CommitOffsets,
    DeleteAnswer,
    DeleteOffsets,
    Heartbeat,
    NamedPartition,
    OffsetToCommit,
    SessionAnswer,
)
from highwater.groups.shard import GroupShard
from highwater.groups.topics import Topic, TopicImage
from highwater.groups.validity import (
    LONGEST_GROUP_ID,
    MOST_ID_BYTES,
    MOST_METADATA_BYTES,
    MOST_NAMES,
    MOST_PATTERNS,
    MOST_TOPICS,
)
from highwater.model.topic_name import LONGEST_TOPIC_NAME


def said(shard: GroupShard, member: str, pattern: str, epoch: int = 0) -> ErrorCode:
    asked = Heartbeat(GROUP, member, epoch, subscription=subscription(pattern=pattern), owned=frozenset())
    answer = shard.handle(asked, 0).answer
    assert isinstance(answer, SessionAnswer)
    return ErrorCode.NONE if answer.error is None else answer.error.code


def epoch_of(shard: GroupShard, member: str) -> int:
    return shard.state.groups[GROUP].members[member].current.epoch


def test_members_share_a_number_of_patterns() -> None:
    """A topic that comes is matched with each: 10,000 patterns held the coordinator for seconds."""
    shard = load([], TopicImage(), 0)
    for number in range(MOST_PATTERNS):
        assert said(shard, f"m{number}", f"t{number}.*") is ErrorCode.NONE
    assert said(shard, "more", "another.*") is ErrorCode.INVALID_REQUEST
    assert said(shard, "more", "t0.*") is ErrorCode.NONE
    assert said(shard, "more", "another.*", epoch=epoch_of(shard, "more")) is ErrorCode.INVALID_REQUEST
    # The only member that has a pattern may have another.
    assert said(shard, "m1", "another.*", epoch=epoch_of(shard, "m1")) is ErrorCode.NONE
    assert said(shard, "more", "t1.*", epoch=epoch_of(shard, "more")) is ErrorCode.INVALID_REQUEST


LONG = [
    Topic(number.to_bytes(16), f"{number:05}".ljust(LONGEST_TOPIC_NAME, "x"), 1)
    for number in range(MOST_MATCHED_BYTES // LONGEST_TOPIC_NAME)
]


def test_a_pattern_matches_no_more_than_a_record_may_hold() -> None:
    """A larger record is none that the log takes: it ended the shard with each start of it."""
    image = TopicImage(LONG)
    shard = load([], image, 0)
    assert said(shard, "first", ".*x") is ErrorCode.NONE
    longest = "b".ljust(LONGEST_TOPIC_NAME, "x")
    image.update({"another": topic("another", 1), longest: topic(longest, 1)})
    assert said(shard, "more", ".*[xr]") is ErrorCode.INVALID_REQUEST
    assert said(shard, "more", "another") is ErrorCode.NONE
    # The one that the group has goes on.
    assert said(shard, "first", ".*x", epoch=epoch_of(shard, "first")) is ErrorCode.NONE
    assert said(shard, "third", ".*x") is ErrorCode.NONE


def test_topics_that_come_later_are_left_out_until_all_are_matched_anew() -> None:
    image = TopicImage(LONG)
    shard = load([], image, 0)
    joined = Heartbeat(GROUP, "m", 0, subscription=subscription(pattern=".*"), owned=frozenset())
    written = list(shard.handle(joined, 0).records)
    all_of = {one.name for one in LONG}

    def change(**topics: Topic | None) -> set[str]:
        image.update(topics)
        records = [record for outcome in shard.topics_changed(topics, 0) for record in outcome.records]
        assert all(len(each.value or b"") < 1.1 * MOST_MATCHED_BYTES for each in records)
        written.extend(records)
        return matched(shard)

    def matched(shard: GroupShard) -> set[str]:
        return set(shard.state.groups[GROUP].patterns[".*"])

    room = MOST_MATCHED_BYTES - sum(map(len, all_of))
    late, gone = "a" * (room + 1), LONG[7].name
    assert change(**{late: Topic(b"l" * 16, late, 1)}) == all_of
    # To look for it with each topic that goes would cost some 0.3 s of the loop, for each pattern.
    assert change(**{gone: None}) == all_of - {gone}
    again = load(written, image, 0)
    assert said(again, "another", ".*") is ErrorCode.NONE
    assert matched(again) == all_of - {gone} | {late}


def test_all_names_are_looked_at_once_for_a_pattern_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tenths of a second for names of 4 MiB: neither twice for a join, nor with each topic that comes or goes."""
    looks: list[int] = []

    def counted(pattern: str, names: Iterable[str]) -> frozenset[str]:
        given = list(names)
        looks.append(len(given))
        return matching(pattern, given)

    monkeypatch.setattr(topics, "matching", counted)
    monkeypatch.setattr(reconciliation, "matching", counted)
    image = TopicImage([*LONG, topic("b" * 200, 1)])
    shard = load([], image, 0)
    assert said(shard, "m", "0.*") is ErrorCode.NONE
    assert looks == [len(LONG) + 1]
    for changed in ({LONG[1].name: None}, {"0": topic("0", 1)}):
        looks.clear()
        image.update(changed)
        for _ in shard.topics_changed(changed, 0):
            pass
        assert sum(looks) <= 1


def test_members_share_a_number_of_names() -> None:
    """Each join looks at all: 40 members of 10,000 names each, of topics that need not be there, took a second."""
    shard = load([], TopicImage(), 0)

    def subscribes(member: str, number: int, epoch: int = 0) -> ErrorCode:
        topics = subscription(*(f"t{number}-{each}" for each in range(MOST_TOPICS)))
        answer = shard.handle(Heartbeat(GROUP, member, epoch, subscription=topics, owned=frozenset()), 0).answer
        assert isinstance(answer, SessionAnswer)
        return ErrorCode.NONE if answer.error is None else answer.error.code

    most = MOST_NAMES // MOST_TOPICS
    for number in range(most):
        assert subscribes(f"m{number}", number) is ErrorCode.NONE
    assert subscribes("more", most) is ErrorCode.INVALID_REQUEST
    assert subscribes("more", 0) is ErrorCode.NONE
    assert subscribes("more", most, epoch=epoch_of(shard, "more")) is ErrorCode.INVALID_REQUEST
    # The only member that has a subscription may have another.
    assert subscribes("m1", most, epoch=epoch_of(shard, "m1")) is ErrorCode.NONE
    assert subscribes("more", 1, epoch=epoch_of(shard, "more")) is ErrorCode.INVALID_REQUEST
    # One that leaves makes room.
    shard.handle(Heartbeat(GROUP, "m2", -1), 0)
    assert subscribes("more", 1, epoch=epoch_of(shard, "more")) is ErrorCode.NONE


def test_a_group_from_before_the_bounds_may_change_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member alone has its names and its pattern. They were refused for fewer names, too."""
    records: list[Record] = []

    def subscribes(member: str, names: str, count: int, pattern: str, instance: str, epoch: int = 0) -> ErrorCode:
        topics = subscription(*(f"{names}-{each}" for each in range(count)), pattern=pattern)
        outcome = shard.handle(Heartbeat(GROUP, member, epoch, instance, topics, frozenset()), 0)
        records.extend(outcome.records)
        assert isinstance(outcome.answer, SessionAnswer)
        return ErrorCode.NONE if outcome.answer.error is None else outcome.answer.error.code

    with monkeypatch.context() as unbounded:
        for bound in ("MOST_NAMES", "MOST_PATTERNS"):
            unbounded.setattr(f"highwater.groups.validity.{bound}", 1_000_000)
        shard = load([], TopicImage(), 0)
        for number in range(6):
            assert subscribes(f"m{number}", f"t{number}", 10, f"p{number}.*", f"i{number}") is ErrorCode.NONE
    monkeypatch.setattr("highwater.groups.validity.MOST_NAMES", 50)
    monkeypatch.setattr("highwater.groups.validity.MOST_PATTERNS", 5)
    shard = load(records, TopicImage(), 0)
    assert shard.state.groups[GROUP].subscribed_names == 60
    for change in (("t1", 10, "p1.*"), ("u1", 10, "q1.*"), ("v1", 5, "r1.*")):
        assert subscribes("m1", *change, "", epoch_of(shard, "m1")) is ErrorCode.NONE
    assert shard.state.groups[GROUP].subscribed_names == 55
    assert subscribes("m1", "v1", 6, "", "", epoch_of(shard, "m1")) is ErrorCode.INVALID_REQUEST
    assert subscribes("more", "x", 1, "", "") is ErrorCode.INVALID_REQUEST
    assert subscribes("more", "", 0, "x.*", "") is ErrorCode.INVALID_REQUEST
    # A static member that has left is replaced.
    shard.handle(Heartbeat(GROUP, "m2", -2, "i2"), 0)
    assert subscribes("n2", "w2", 10, "w2.*", "i2") is ErrorCode.NONE


def test_a_static_member_that_replaces_another_has_its_room() -> None:
    """With another pattern it was refused until the session of the one before had ended."""
    shard = load([], TopicImage(), 0)

    def joins(member: str, pattern: str, instance: str) -> ErrorCode:
        asked = Heartbeat(GROUP, member, 0, instance, subscription(pattern=pattern), frozenset())
        answer = shard.handle(asked, 0).answer
        assert isinstance(answer, SessionAnswer)
        return ErrorCode.NONE if answer.error is None else answer.error.code

    for number in range(MOST_PATTERNS):
        assert joins(f"m{number}", f"t{number}.*", f"i{number}") is ErrorCode.NONE
    shard.handle(Heartbeat(GROUP, "m1", -2, "i1"), 0)
    assert joins("n1", "another.*", "i1") is ErrorCode.NONE
    assert joins("more", "t1.*", "") is ErrorCode.INVALID_REQUEST


def test_members_that_subscribe_to_the_same_share_its_names() -> None:
    """Each had its own: 10,000 long names are 3 MB a member."""
    shard = load([], TopicImage(), 0)
    for member in ("a", "b", "c"):
        topics = subscription(*(f"orders-{each}" for each in range(3)))
        shard.handle(Heartbeat(GROUP, member, 0, subscription=topics, owned=frozenset()), 0)
    members = shard.state.groups[GROUP].members.values()
    assert len({id(each.subscription.topics) for each in members}) == 1


def test_the_metadata_of_a_commit_is_bounded() -> None:
    image = TopicImage()
    orders = topic("orders", 5_000)
    image.update({"orders": orders})
    shard = load([], image, 0)

    def commit(partitions: int, size: int) -> CommitAnswer:
        offsets = tuple(
            OffsetToCommit("orders", number, 1, metadata="m" * size, topic_id=orders.topic_id)
            for number in range(partitions)
        )
        answer = shard.handle(CommitOffsets(GROUP, "", -1, offsets), 0).answer
        assert isinstance(answer, CommitAnswer)
        return answer

    most = MOST_METADATA_BYTES // 4096
    assert commit(most, 4096).error is None
    refused = commit(most + 1, 4096).error
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert "send several" in refused.message


def test_a_long_id_stands_in_few_records_of_one_request() -> None:
    """A commit of 5,000 offsets of a group with an id of 32 KiB was a request of 140 KB, 160 MB of records and 0.6 s of
    the coordinator's event loop; so was the removal of what it had committed."""
    orders = topic("orders", 5_000)
    shard = load([], TopicImage([orders]), 0)
    for size in (LONGEST_GROUP_ID, 838):
        group, most = "g" * size, min(MOST_ID_BYTES // size, 5_000)
        for count in (most, most + 1):
            offsets = tuple(OffsetToCommit("orders", number, 1) for number in range(count))
            partitions = tuple(NamedPartition("orders", number) for number in range(count))
            requests = [CommitOffsets(group, "", -1, offsets), AlterOffsets(group, offsets)]
            for request in (*requests, DeleteOffsets(group, partitions)):
                outcome = shard.handle(request, 0)
                assert isinstance(outcome.answer, CommitAnswer | DeleteAnswer)
                if count * size > MOST_ID_BYTES:
                    assert outcome.answer.error is not None
                    assert outcome.answer.error.code is ErrorCode.INVALID_REQUEST
                assert sum(len(record.key) for record in outcome.records) < 2 * MOST_ID_BYTES


def test_two_names_of_one_id_are_no_end_of_a_coordinator() -> None:
    """Metadata that came in an odd order had both for a moment."""
    image = TopicImage([topic("a", 1)])
    twin = replace(topic("a", 1), name="b")
    image.update({"b": twin})
    image.update({"a": None})
    assert image.of_id(twin.topic_id) is twin
    image.update({"b": None})
    assert image.of_id(twin.topic_id) is None
