"""The assignors: everything exactly once, balanced, and with no more movement than that costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.groups.assignors import ASSIGNORS, Subscriber, uniform
from highwater.groups.assignors.range import assign_range
from highwater.groups.assignors.uniform import assign_uniform
from highwater.groups.topics import Topic
from highwater.model.partition import PartitionKey

Assigned = dict[str, frozenset[PartitionKey]]
RACKS = ("x", "y", "z")


def topic(number: int, partitions: int, racks: tuple[frozenset[str], ...] = ()) -> Topic:
    return Topic(bytes([number]) * 16, f"t{number}", partitions, racks)


@st.composite
def groups(draw: st.DrawFn, alike: bool = False) -> tuple[list[Subscriber], dict[bytes, Topic]]:
    topics = []
    for number in range(draw(st.integers(1, 5))):
        partitions = draw(st.integers(1, 9))
        rack = st.frozensets(st.sampled_from(RACKS), min_size=1, max_size=2)
        racks = draw(st.just(()) | st.tuples(*[rack] * partitions))
        topics.append(topic(number, partitions, racks))
    by_id = {each.topic_id: each for each in topics}
    ids = st.frozensets(st.sampled_from(sorted(by_id)), min_size=1)
    same = draw(ids)
    subscribers = [
        Subscriber(f"m{number}", same if alike else draw(ids), rack=draw(st.sampled_from(("", *RACKS))))
        for number in range(draw(st.integers(1, 7)))
    ]
    return subscribers, by_id


def with_targets(subscribers: list[Subscriber], before: Mapping[str, frozenset[PartitionKey]]) -> list[Subscriber]:
    return [
        Subscriber(each.member_id, each.topic_ids, before.get(each.member_id, frozenset()), each.instance_id, each.rack)
        for each in subscribers
    ]


def check_whole(subscribers: list[Subscriber], topics: Mapping[bytes, Topic], found: Assigned) -> None:
    wanted = {key for each in subscribers for topic_id in each.topic_ids for key in topics[topic_id].keys}
    assert set(found) == {each.member_id for each in subscribers}
    assert sorted(key for keys in found.values() for key in keys) == sorted(wanted)
    for each in subscribers:
        assert {key.topic_id for key in found[each.member_id]} <= each.topic_ids


def check_balanced(subscribers: list[Subscriber], found: Assigned) -> None:
    for giver in subscribers:
        for taker in subscribers:
            if len(found[giver.member_id]) >= len(found[taker.member_id]) + 2:
                assert not {key.topic_id for key in found[giver.member_id]} & taker.topic_ids


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups(), data=st.data())
def test_every_partition_is_given_once_and_to_a_subscriber(
    name: str, group: tuple[list[Subscriber], dict[bytes, Topic]], data: st.DataObject
) -> None:
    subscribers, topics = group
    found = ASSIGNORS[name](subscribers, topics)
    check_whole(subscribers, topics, found)
    # From any state before, and with any order of the members.
    left = data.draw(st.lists(st.sampled_from(subscribers), min_size=1, unique_by=lambda each: each.member_id))
    again = ASSIGNORS[name](with_targets(left, found), topics)
    check_whole(left, topics, again)
    assert again == ASSIGNORS[name](with_targets(left, found)[::-1], topics)


@given(groups(), st.data())
def test_uniform_is_balanced_after_any_change(
    group: tuple[list[Subscriber], dict[bytes, Topic]], data: st.DataObject
) -> None:
    subscribers, topics = group
    found = assign_uniform(subscribers, topics)
    check_balanced(subscribers, found)
    assert assign_uniform(with_targets(subscribers, found), topics) == found
    left = data.draw(st.lists(st.sampled_from(subscribers), min_size=1, unique_by=lambda each: each.member_id))
    left.append(Subscriber("new", data.draw(st.sampled_from(subscribers)).topic_ids))
    again = assign_uniform(with_targets(left, found), topics)
    check_whole(left, topics, again)
    check_balanced(left, again)


@given(groups(alike=True), st.data())
def test_uniform_moves_no_more_than_balance_costs(
    group: tuple[list[Subscriber], dict[bytes, Topic]], data: st.DataObject
) -> None:
    subscribers, topics = group
    found = assign_uniform(subscribers, topics)
    left = data.draw(st.lists(st.sampled_from(subscribers), min_size=1, unique_by=lambda each: each.member_id))
    left += [Subscriber(f"new{number}", subscribers[0].topic_ids) for number in range(data.draw(st.integers(0, 3)))]
    again = assign_uniform(with_targets(left, found), topics)
    kept = {each.member_id: len(found.get(each.member_id, ())) for each in left}
    taken = sum(len(found.get(each.member_id, frozenset()) - again[each.member_id]) for each in left)
    # Shares of the floor or one more; as many of the latter as divide out, to those that have the most.
    floor, more = divmod(sum(map(len, again.values())), len(left))
    shares = [floor + (place < more) for place in range(len(left))]
    least = sum(max(0, had - share) for had, share in zip(sorted(kept.values(), reverse=True), shares, strict=True))
    assert taken == least


def test_uniform_prefers_the_rack_of_a_replica() -> None:
    racks = tuple(frozenset({RACKS[number % 3]}) for number in range(12))
    topics = {b"\1" * 16: topic(1, 12, racks)}
    subscribers = [Subscriber(f"m{number}", frozenset(topics), rack=RACKS[number]) for number in range(3)]
    found = assign_uniform(subscribers, topics)
    for subscriber in subscribers:
        assert {racks[key.partition] for key in found[subscriber.member_id]} == {frozenset({subscriber.rack})}
    # Balance and what everybody has go first.
    fourth = [*with_targets(subscribers, found), Subscriber("m3", frozenset(topics), rack="x")]
    after = assign_uniform(fourth, topics)
    assert {len(keys) for keys in after.values()} == {3}
    assert all(after[each.member_id] <= found[each.member_id] for each in subscribers)


def test_range_gives_neighbours_and_the_same_numbers_of_topics_that_are_alike() -> None:
    topics = {each.topic_id: each for each in (topic(1, 5), topic(2, 5), topic(3, 2))}
    # By instance id before member id.
    subscribers = [
        Subscriber("a", frozenset(topics), instance_id="2"),
        Subscriber("b", frozenset(topics), instance_id="1"),
        Subscriber("c", frozenset(topics)),
    ]
    found = assign_range(subscribers, topics)
    shown = {name: sorted((key.topic_id[0], key.partition) for key in keys) for name, keys in found.items()}
    assert shown == {
        "b": [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)],
        "a": [(1, 2), (1, 3), (2, 2), (2, 3), (3, 1)],
        "c": [(1, 4), (2, 4)],
    }


def test_range_takes_racks_that_all_topics_alike_have() -> None:
    there = (frozenset("x"), frozenset("y"), frozenset("x"), frozenset("y"))
    topics = {each.topic_id: each for each in (topic(1, 4, there), topic(2, 4, there))}
    found = assign_range(
        [Subscriber("a", frozenset(topics), rack="y"), Subscriber("b", frozenset(topics), rack="x")], topics
    )
    assert {key.partition for key in found["a"]} == {1, 3}
    assert {key.partition for key in found["b"]} == {0, 2}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_large_group_is_shared_out_fast(name: str) -> None:
    """10,000 partitions and 100 members that subscribe to all of them; half a second is 20 times what it takes."""
    racks = tuple(frozenset({RACKS[number % 3], RACKS[(number + 1) % 3]}) for number in range(1000))
    topics = {each.topic_id: each for each in (topic(number, 1000, racks) for number in range(10))}
    subscribers = [Subscriber(f"m{number}", frozenset(topics), rack=RACKS[number % 3]) for number in range(100)]
    found = ASSIGNORS[name](subscribers, topics)
    left = with_targets(subscribers[:90], found)
    began = time.process_time()
    again = ASSIGNORS[name](left, topics)
    assert time.process_time() - began < 0.5
    check_whole(left, topics, again)


def test_a_move_is_followed_in_the_classes_of_its_members_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All classes were begun with again after each: 1,000 members that share 3,000 topics by twos took 25 s."""
    looks = 0
    balance = uniform._Class.balance

    def counted(each: uniform._Class, *arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return balance(each, *arguments)

    monkeypatch.setattr(uniform._Class, "balance", counted)
    random = Random(1)
    topics = {bytes([number]) * 16: topic(number, random.choice((1, 1, 1, 40))) for number in range(250)}
    wanted: list[set[bytes]] = [set() for _ in range(100)]
    for topic_id in topics:
        for member in random.sample(wanted, 2):
            member.add(topic_id)
    subscribers = [Subscriber(f"m{number:03}", frozenset(each)) for number, each in enumerate(wanted)]
    found = assign_uniform(subscribers, topics)
    check_whole(subscribers, topics, found)
    check_balanced(subscribers, found)
    assert looks < 20 * len(topics)


def test_a_member_costs_what_its_own_classes_do() -> None:
    """Each looked for itself in all: 8,000 members that share their topics by twos took 4 s."""
    ids = [number.to_bytes(16, "big") for number in range(8_000)]
    topics = {topic_id: Topic(topic_id, topic_id.hex(), 1) for topic_id in ids}
    subscribers = [Subscriber(f"m{at:04}", frozenset({ids[at], ids[at - 1]})) for at in range(len(ids))]
    began = time.process_time()
    found = assign_uniform(subscribers, topics)
    took_s = time.process_time() - began
    assert {len(each) for each in found.values()} == {1}
    assert took_s < 1.5
