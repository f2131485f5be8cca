"""Offsets that go by themselves go in steps, between which requests are handled (RULES 11.10, 11.11)."""

from __future__ import annotations

from itertools import islice

import pytest
from group_world import GROUP, drain, load, subscription, topic

from highwater.errors import ErrorCode
from highwater.groups import offsets
from highwater.groups.config import GroupConfig
from highwater.groups.requests import (
    CommitAnswer,
    CommitOffsets,
    DeleteAnswer,
    DeleteGroup,
    FetchAnswer,
    FetchOffsets,
    Heartbeat,
    NamedPartition,
    Outcome,
    SessionAnswer,
)
from highwater.groups.requests import OffsetToCommit as To
from highwater.groups.shard import GroupShard
from highwater.groups.topics import TopicImage

DAY_MS = 24 * 3600 * 1000
CONFIG = GroupConfig(offsets_retention_ms=7 * DAY_MS, retention_check_interval_ms=600_000)
STEP, PARTITIONS = 10, 35


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "REMOVED_AT_ONCE", STEP)


@pytest.fixture
def image() -> TopicImage:
    return TopicImage([topic("a", PARTITIONS), topic("b", PARTITIONS)])


@pytest.fixture
def shard(image: TopicImage) -> GroupShard:
    shard = load([], image, 0, CONFIG)
    for name in ("a", "b"):
        commit(shard, 0, *(To(name, number, 7) for number in range(PARTITIONS)))
    return shard


def commit(shard: GroupShard, now_ms: int, *committed: To, member: str = "", epoch: int = -1) -> None:
    answer = shard.handle(CommitOffsets(GROUP, member, epoch, committed), now_ms).answer
    assert isinstance(answer, CommitAnswer)
    assert answer.error is None
    assert set(answer.errors) == {None}


def kept(shard: GroupShard) -> set[tuple[str, int]]:
    group = shard.state.groups.get(GROUP)
    return set() if group is None else {(place.topic, place.partition) for place in group.offsets}


def tombstones(outcomes: list[Outcome]) -> list[int]:
    return [sum(record.value is None for record in outcome.records) for outcome in outcomes]


def test_those_that_expire(shard: GroupShard) -> None:
    drain(shard.tick(7 * DAY_MS - 1))
    assert len(kept(shard)) == 2 * PARTITIONS
    outcomes = drain(shard.tick(8 * DAY_MS))
    assert max(tombstones(outcomes)) == STEP
    assert sum(tombstones(outcomes)) == 2 * PARTITIONS
    assert GROUP not in shard.state.groups
    assert drain(shard.tick(100 * DAY_MS)) == []


def test_a_group_that_gets_members_in_between_keeps_the_rest(shard: GroupShard) -> None:
    now_ms = 8 * DAY_MS
    ticking = shard.tick(now_ms)
    list(islice(ticking, 2))
    left = kept(shard)
    assert len(left) == 2 * PARTITIONS - 2 * STEP
    joined = shard.handle(Heartbeat(GROUP, "m", 0, subscription=subscription("a", "b"), owned=frozenset()), now_ms)
    assert isinstance(joined.answer, SessionAnswer)
    assert joined.answer.error is None
    drain(ticking)
    assert kept(shard) == left


def test_what_is_committed_in_between_is_kept_and_expires_in_its_time(shard: GroupShard) -> None:
    now_ms = 8 * DAY_MS
    ticking = shard.tick(now_ms)
    list(islice(ticking, 1))
    commit(shard, now_ms, To("b", 3, 9), To("a", 0, 9))  # one that was still there, and one that had gone
    drain(ticking)
    assert kept(shard) == {("b", 3), ("a", 0)}
    drain(shard.tick(now_ms + 7 * DAY_MS - 1))
    assert len(kept(shard)) == 2
    drain(shard.tick(now_ms + 7 * DAY_MS + CONFIG.retention_check_interval_ms))
    assert not kept(shard)


def test_a_caller_that_stops_in_between_is_given_the_rest_later(shard: GroupShard) -> None:
    now_ms = 8 * DAY_MS
    ticking = shard.tick(now_ms)
    list(islice(ticking, 1))
    ticking.close()  # type: ignore[attr-defined]
    assert kept(shard)
    due_ms = shard.next_due_ms()
    assert due_ms is not None
    assert due_ms <= now_ms + CONFIG.retention_check_interval_ms
    drain(shard.tick(now_ms + CONFIG.retention_check_interval_ms))
    assert not kept(shard)


def test_those_of_deleted_topics(shard: GroupShard, image: TopicImage) -> None:
    image.update({"a": None})
    outcomes = drain(shard.topics_changed(["a"], 5))
    assert max(tombstones(outcomes)) == STEP
    assert kept(shard) == {("b", number) for number in range(PARTITIONS)}


def test_a_long_id_stands_in_few_tombstones_of_a_step(image: TopicImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "REMOVED_BYTES", 3_500)
    shard = load([], image, 0, CONFIG)
    for name in ("a", "b"):
        committed = tuple(To(name, number, 7) for number in range(PARTITIONS))
        shard.handle(CommitOffsets("g" * 1_000, "", -1, committed), 0)
    image.update({"a": None})
    assert max(tombstones(drain(shard.topics_changed(["a"], 5)))) == 3
    assert max(tombstones(drain(shard.tick(8 * DAY_MS)))) == 3
    assert not shard.state.groups


def test_one_that_is_committed_to_a_new_topic_of_that_name_stays(shard: GroupShard, image: TopicImage) -> None:
    image.update({"a": None})
    changing = shard.topics_changed(["a"], 5)
    list(islice(changing, 1))
    image.update({"a": topic("a", PARTITIONS, generation=2)})
    commit(shard, 6, To("a", PARTITIONS - 1, 1), To("a", 0, 1))
    drain(changing)
    assert {place for place in kept(shard) if place[0] == "a"} == {("a", PARTITIONS - 1), ("a", 0)}


def test_those_of_a_topic_that_only_the_coordinator_before_knew_stay() -> None:
    """It was made anew under its name, and offsets of it were committed there. Here the first of the two goes, and that
    there is a second one is heard after it: what was committed was lost."""
    first, second = topic("a", PARTITIONS, generation=1), topic("a", PARTITIONS, generation=2)
    before = load([], TopicImage([second]), 0, CONFIG)
    committed = before.handle(CommitOffsets(GROUP, "", -1, (To("a", 3, 7),)), 0)
    image = TopicImage([first])
    shard = load(committed.records, image, 0, CONFIG)
    image.update({"a": None})
    drain(shard.topics_changed(["a"], 5))
    assert kept(shard) == {("a", 3)}
    image.update({"a": second})
    drain(shard.topics_changed(["a"], 6))
    drain(shard.topics_known(7))
    answer = shard.handle(FetchOffsets(GROUP, partitions=(NamedPartition("a", 3),)), 8).answer
    assert isinstance(answer, FetchAnswer)
    (fetched,) = answer.offsets
    assert fetched.committed is not None
    assert fetched.committed.offset == 7


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "while it was loaded"])
def test_those_of_a_topic_that_was_made_anew_at_once_go(shard: GroupShard, image: TopicImage, seen: bool) -> None:
    """A group whose members subscribe to it kept them for ever."""
    joined = shard.handle(Heartbeat(GROUP, "m", 0, subscription=subscription("a", "b"), owned=frozenset()), 1)
    assert joined.records
    image.update({"a": topic("a", 3, generation=2)})
    drain(shard.topics_changed(["a"], 5) if seen else shard.topics_known(5))
    assert kept(shard) == {("b", number) for number in range(PARTITIONS)}


def test_a_group_that_has_gone_and_come_back_in_between(shard: GroupShard, image: TopicImage) -> None:
    image.update({"a": None, "b": None})
    changing = shard.topics_changed(["a", "b"], 5)
    list(islice(changing, 2 * PARTITIONS // STEP))
    assert GROUP not in shard.state.groups
    image.update({"c": topic("c", 4)})
    joined = shard.handle(Heartbeat(GROUP, "m", 0, subscription=subscription("c"), owned=frozenset()), 6)
    assert isinstance(joined.answer, SessionAnswer)
    assert joined.answer.error is None
    drain(changing)
    assert shard.state.groups[GROUP].members["m"].current.assigned


def test_a_topic_that_nobody_reads_has_a_step_for_each_group_that_is_asked(image: TopicImage) -> None:
    """A broker with 500 groups that match 1,000 topics each stood for 0.2 s with every topic that was made."""
    shard = load([], image, 0, CONFIG)
    for number in range(5):
        joins = Heartbeat(f"g{number}", "m", 0, subscription=subscription(pattern="a.*"), owned=frozenset())
        assert shard.handle(joins, 0).records
    image.update({"c": topic("c", 1)})
    assert [outcome.records for outcome in shard.topics_changed(["c"], 1)] == [()] * 5


def test_a_group_that_is_deleted(shard: GroupShard) -> None:
    """One of 10,000 offsets was deleted in one step of 60 ms, one of 100,000 in 0.6 s. Nobody joins it half deleted."""
    first = shard.handle(DeleteGroup(GROUP), 5)
    assert first.answer is None
    assert first.rest is not None
    assert len(kept(shard)) == 2 * PARTITIONS - STEP
    joins = Heartbeat(GROUP, "m", 0, subscription=subscription("a"), owned=frozenset())
    for request in (joins, DeleteGroup(GROUP), CommitOffsets(GROUP, "", -1, (To("a", 0, 9),)), FetchOffsets(GROUP)):
        refused = shard.handle(request, 6).answer
        assert isinstance(refused, SessionAnswer | DeleteAnswer | CommitAnswer | FetchAnswer)
        assert refused.error is not None
        assert refused.error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    outcomes = [first, *first.rest]
    assert max(tombstones(outcomes)) == STEP
    assert sum(tombstones(outcomes)) == 2 * PARTITIONS
    assert [outcome.answer for outcome in outcomes] == [None] * (2 * PARTITIONS // STEP) + [DeleteAnswer()]
    assert outcomes[-1].after == shard.state.emitted
    assert GROUP not in shard.state.groups
    assert shard.next_due_ms() is None or not drain(shard.tick(100 * DAY_MS))
    assert shard.handle(joins, 6).records


def test_what_goes_by_itself_while_a_group_is_deleted(shard: GroupShard, image: TopicImage) -> None:
    first = shard.handle(DeleteGroup(GROUP), 8 * DAY_MS)
    assert first.rest is not None
    image.update({"a": None})
    drain(shard.topics_changed(["a"], 8 * DAY_MS))
    drain(shard.tick(8 * DAY_MS))
    assert GROUP not in shard.state.groups
    assert [outcome.records for outcome in first.rest][-1] == ()
    commit(shard, 8 * DAY_MS, To("b", 3, 9))
    assert kept(shard) == {("b", 3)}
