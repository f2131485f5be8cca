"""Consumers of a group over a running cluster: shares, and what is broken under them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest
from group_readers import ASSIGNMENT, PARTITIONS, SESSION_TIMEOUT_S, Readers, Reading, send, whole
from running_cluster import HEAL_S, Deployment, deployment

from highwater.cli.local_cluster import LocalCluster
from highwater.client import (
    CommitFailedError,
    Consumer,
    HighwaterError,
    InvalidRequestError,
    MaxPollIntervalExceededError,
    TopicPartition,
)
from highwater.client.blocking import Consumer as BlockingConsumer
from highwater.errors import ErrorCode


async def test_two_share_and_one_leaves(grouped: Deployment, readers: Readers) -> None:
    topic = group = "shared"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group)
    await first.owns(4)
    await send(grouped, topic, 50)
    await first.has_seen(200)
    second = await readers.join(topic, group)
    await second.owns(2)
    await first.owns(2)
    assert first.owned | second.owned == frozenset(range(4))
    assert [name for name, _ in first.told] == ["assigned", "revoked"]
    await send(grouped, topic, 50)
    await first.until(lambda: len(first.seen) + len(second.seen) >= 400, "the rest")
    await first.suspend()
    await first.consumer.stop()
    assert first.told[-1] == ("revoked", frozenset(range(4)) - second.owned | first.told[-1][1])
    await send(grouped, topic, 50)
    await second.owns(4)
    await second.until(lambda: len(first.seen) + len(second.seen) >= 600, "what comes after the leave")
    assert Counter(first.seen + second.seen) == Counter(whole(150))


async def test_members_come_and_go_and_every_record_is_read_once(grouped: Deployment, readers: Readers) -> None:
    topic = group = "churn"
    await grouped.create_topic(topic, ASSIGNMENT)
    everybody = [await readers.join(topic, group, max_poll_records=3)]
    sent = 0
    for turn in range(8):
        everybody.append(await readers.join(topic, group, max_poll_records=3 + turn))
        await send(grouped, topic, 10)
        sent += 10
        if turn % 2:  # before it has anything, or just then
            await everybody[-1].until(lambda: bool(everybody[-1].owned), "a share")
        leaving = everybody[-2] if turn % 3 else everybody[-1]
        await leaving.suspend()
        await leaving.consumer.stop()
        await send(grouped, topic, 10)
        sent += 10
        if leaving is everybody[-1]:
            everybody[-2:] = reversed(everybody[-2:])  # the one that stays is the last
    seen = everybody[-1]
    await seen.owns(4)
    await seen.until(lambda: sum(len(each.seen) for each in everybody) >= 4 * sent, "all records")
    assert Counter(one for each in everybody for one in each.seen) == Counter(whole(sent))


async def test_what_stays_is_not_read_twice(grouped: Deployment, readers: Readers) -> None:
    """Without any commit: what a member keeps goes on at its position, not at a committed offset."""
    topic = group = "kept"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 20)
    first = await readers.join(topic, group, enable_auto_commit=False, max_poll_records=7)
    await first.has_seen(80)
    second = await readers.join(topic, group, enable_auto_commit=False)
    await second.owns(2)
    await second.has_seen(40)
    await send(grouped, topic, 20)
    await first.has_seen(120)
    await second.has_seen(80)
    kept = first.owned
    assert Counter(one for one in first.seen if one[0] in kept) == Counter(one for one in whole(40) if one[0] in kept)
    assert Counter(second.seen) == Counter(one for one in whole(40) if one[0] not in kept)


async def test_a_killed_member_is_replaced(grouped: Deployment, readers: Readers) -> None:
    topic = group = "killed"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 20)
    program = Path(__file__).with_name("group_reader.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, grouped.cluster.bootstrap, topic, group, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(HEAL_S):
            assert await process.stdout.readline() == b"80\n"
        second = await readers.join(topic, group)
        await second.owns(2)
        process.send_signal(signal.SIGKILL)
        begun = monotonic()
        await second.owns(4)
        assert monotonic() - begun < SESSION_TIMEOUT_S + 10
        await send(grouped, topic, 5)
        await second.until(
            lambda: {(p, o) for p in range(4) for o in range(20, 25)} <= set(second.seen), "all that is new"
        )
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_coordinator_is_killed(grouped: Deployment, readers: Readers) -> None:
    topic = group = "coordinated"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group, auto_commit_interval_ms=200)
    second = await readers.join(topic, group, auto_commit_interval_ms=200)
    await first.owns(2)
    await second.owns(2)
    await send(grouped, topic, 20)
    await first.has_seen(40)
    await second.has_seen(40)
    shares = first.owned, second.owned
    broker = await coordinator_of(grouped, group)
    grouped.cluster.kill_broker(broker)
    await grouped.replaced(broker, topic, PARTITIONS)
    await send(grouped, topic, 20)
    await first.has_seen(80)
    await second.has_seen(80)
    assert (first.owned, second.owned) == shares
    assert not [told for told in first.told + second.told if told[0] == "lost"]
    await first.suspend()
    await first.consumer.commit()
    await first.consumer.stop()
    await second.owns(4)
    await send(grouped, topic, 10)
    await second.until(lambda: len(first.seen) + len(second.seen) >= 200, "the rest")
    assert Counter(first.seen + second.seen) == Counter(whole(50))


async def coordinator_of(deployed: Deployment, group: str) -> int:
    """The id of its broker."""
    from highwater.client.cluster.cluster import Cluster
    from highwater.client.groups.coordinator import Coordinator, retried

    cluster = Cluster(deployed.cluster.bootstrap, client_id="test", request_timeout_ms=5000)
    await cluster.start()
    try:
        connection = await retried(Coordinator(cluster, group).find, HEAL_S)
        (found,) = [one.broker_id for one in cluster.metadata.brokers.values() if one.address == connection.address]
        return found
    finally:
        await cluster.close()


async def test_callbacks_may_take_their_time_commit_and_fail(grouped: Deployment, readers: Readers) -> None:
    topic = group = "callbacks"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 10)
    go_on = asyncio.Event()
    told: list[str] = []

    async def revoked(partitions: Sequence[TopicPartition]) -> None:
        told.append(f"revoked {len(partitions)}")
        async with asyncio.timeout(HEAL_S):
            await go_on.wait()
        await first.consumer.commit()
        raise ZeroDivisionError

    async def assigned(partitions: Sequence[TopicPartition]) -> None:
        if (topic, 0) in partitions:
            first.consumer.seek((topic, 0), 5)
        with pytest.raises(InvalidRequestError, match="waits for the callback"):
            await first.consumer.poll(0)

    first = await readers.join(
        topic, group, enable_auto_commit=False, start=False, on_revoked=revoked, on_assigned=assigned
    )
    first.resume()
    await first.has_seen(35)
    await first.suspend()
    second = await readers.join(topic, group, enable_auto_commit=False)
    async with asyncio.timeout(HEAL_S):
        while not told:  # a poll that ends, by its caller's timeout, in the middle of the callback
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await first.consumer.poll(100)
    assert len(first.owned) == 4
    assert second.owned == frozenset()
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        await first.consumer.poll(1000)
    assert told == ["revoked 2"]
    await second.owns(2)
    assert second.seen == []
    assert len(first.owned) == 2
    first.told.clear()
    with contextlib.suppress(ZeroDivisionError):
        await first.consumer.stop()
    await second.owns(4)


async def test_a_member_subscribes_to_something_else(grouped: Deployment, readers: Readers) -> None:
    await grouped.create_topic("before", ASSIGNMENT)
    first = await readers.join("before", "changing")
    await first.owns(4)
    await first.consumer.subscribe(["after"])
    await first.owns(0)
    await grouped.create_topic("after", ASSIGNMENT)
    await first.owns(4)
    assert {topic for topic, _ in first.consumer.assignment()} == {"after"}


async def test_pauses_survive_a_rebalance(grouped: Deployment, readers: Readers) -> None:
    topic = group = "paused"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group)
    await first.owns(4)
    await first.suspend()
    first.consumer.pause()
    await send(grouped, topic, 10)
    first.resume()
    second = await readers.join(topic, group)
    await second.owns(2)
    await first.owns(2)
    await second.has_seen(20)
    assert first.seen == []
    first.consumer.resume()
    await first.has_seen(20)
    assert Counter(first.seen + second.seen) == Counter(whole(10))


async def test_who_does_not_poll_leaves_and_is_told(grouped: Deployment, readers: Readers) -> None:
    topic = group = "stalled"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group, max_poll_interval_ms=1500)
    await first.owns(4)
    second = await readers.join(topic, group)
    await second.owns(2)
    await first.owns(2)
    await first.suspend()
    await second.owns(4)
    assert first.owned == frozenset()
    with pytest.raises(CommitFailedError):
        await first.consumer.commit({TopicPartition(topic, 0): 1})
    with pytest.raises(MaxPollIntervalExceededError):
        await first.consumer.poll(1000)
    assert first.told[-1][0] == "lost"
    first.resume()
    await first.owns(2)
    await second.owns(2)


async def test_a_static_member_restarts(grouped: Deployment, readers: Readers) -> None:
    topic = group = "static"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group, instance_id="one")
    second = await readers.join(topic, group, instance_id="two")
    await first.owns(2)
    await second.owns(2)
    share = first.owned
    await send(grouped, topic, 10)
    await first.has_seen(20)
    await first.suspend()
    await first.consumer.stop()
    again = await readers.join(topic, group, instance_id="one")
    await again.owns(2)
    assert again.owned == share
    assert [name for name, _ in second.told if name != "assigned"] == []
    await send(grouped, topic, 10)
    await again.has_seen(20)
    assert Counter(first.seen + again.seen) == Counter(one for one in whole(20) if one[0] in share)


async def test_an_instance_id_in_use_is_refused_after_the_session_timeout(
    grouped: Deployment, readers: Readers
) -> None:
    topic = group = "instance"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group, instance_id="one")
    await first.owns(4)
    async with Consumer(topic, bootstrap=grouped.cluster.bootstrap, group=group, instance_id="one") as second:
        second._group._member._membership.session_timeout_ms = 1000  # type: ignore[union-attr]
        reading = Reading(second)
        reading.resume()
        await reading.until(lambda: bool(reading.errors), "an error")
        await reading.suspend()
        assert reading.errors[0].code is ErrorCode.UNRELEASED_INSTANCE_ID
    assert first.owned == frozenset(range(4))


async def test_topics_of_a_pattern_come_by_themselves(grouped: Deployment, readers: Readers) -> None:
    await grouped.create_topic("pattern-a", ASSIGNMENT)
    async with Consumer(
        bootstrap=grouped.cluster.bootstrap, group="patterns", pattern="pattern-.*", auto_offset_reset="earliest"
    ) as consumer:
        reading = Reading(consumer)
        reading.resume()
        try:
            await reading.owns(4)
            await grouped.create_topic("pattern-b", ASSIGNMENT)
            await reading.until(lambda: len(consumer.assignment()) == 8, "both topics")
            await send(grouped, "pattern-b", 5)
            await reading.has_seen(20)
        finally:
            await reading.suspend()


async def test_what_the_coordinator_refuses_for_good_polls_raise(grouped: Deployment) -> None:
    for options, code in (
        ({"pattern": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"pattern": "a", "assignor": "random"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ):
        async with Consumer(bootstrap=grouped.cluster.bootstrap, group="refused-for-good", **options) as consumer:  # type: ignore[arg-type]
            for _ in range(2):
                with pytest.raises(HighwaterError) as raised:
                    await consumer.poll(HEAL_S * 1000)
                assert raised.value.code is code


def test_the_blocking_consumer_of_a_group(group_cluster: LocalCluster) -> None:
    topic = group = "blocking"
    told: list[str] = []
    bootstrap = group_cluster.bootstrap

    async def prepare() -> None:
        async with deployment(group_cluster) as deployed:
            await deployed.create_topic(topic, ASSIGNMENT)
            await send(deployed, topic, 10)

    asyncio.run(prepare())
    consumer = BlockingConsumer(
        topic,
        bootstrap=bootstrap,
        group=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        on_assigned=lambda partitions: told.append(f"assigned {len(partitions)}"),
        on_revoked=lambda partitions: (consumer.commit(), told.append("committed"))[1],
    )
    with consumer:
        seen = []
        deadline = monotonic() + HEAL_S
        while len(seen) < 40:
            assert monotonic() < deadline
            seen += consumer.poll(500)
        assert sum(consumer.lag().values()) == 0
    assert told == ["assigned 4", "committed"]
    with BlockingConsumer(topic, bootstrap=bootstrap, group=group, auto_offset_reset="earliest") as again:
        deadline = monotonic() + HEAL_S
        while len(again.assignment()) < 4:
            assert monotonic() < deadline
            assert again.poll(200) == []
        assert [again.position((topic, partition)) for partition in range(4)] == [10] * 4


async def test_groups_are_administered(grouped: Deployment, readers: Readers) -> None:
    topic = group = "administered"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 10)
    reading = await readers.join(topic, group, client_rack="here")
    await reading.has_seen(40)
    admin = grouped.admin
    assert {"stable"} == {one.state for one in await admin.list_groups() if one.group == group}
    assert group not in {one.group for one in await admin.list_groups(["empty"])}
    described, absent = await admin.describe_groups([group, "no-such-group"], include_offsets=True)
    (member,) = described.members
    assert described.state == "stable"
    assert member.rack == "here"
    assert member.assignment == member.target == tuple(TopicPartition(topic, number) for number in range(4))
    assert absent.error is not None
    assert absent.error.code is ErrorCode.GROUP_ID_NOT_FOUND
    refused = (await admin.delete_groups([group]))[group]
    assert refused is not None
    assert refused.code is ErrorCode.NON_EMPTY_GROUP
    with pytest.raises(HighwaterError, match="has 1 members"):
        await admin.alter_offsets(group, {(topic, 0): 3})
    await reading.suspend()
    await reading.consumer.stop()
    committed = await admin.list_group_offsets(group)
    assert {one: value.offset for one, value in committed.items()} == {(topic, number): 10 for number in range(4)}
    outcomes = await admin.alter_offsets(group, {(topic, 0): 3, ("no-such-topic", 0): 1})
    assert outcomes[TopicPartition(topic, 0)] is None
    unknown = outcomes[TopicPartition("no-such-topic", 0)]
    assert unknown is not None
    assert unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await admin.delete_offsets(group, [(topic, 1)]) == {(topic, 1): None}
    found = await admin.list_group_offsets(group, [(topic, 0), (topic, 1)])
    assert {one: value.offset for one, value in found.items()} == {(topic, 0): 3}
    assert await admin.delete_groups([group]) == {group: None}
    assert await admin.list_group_offsets(group) == {}
