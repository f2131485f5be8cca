"""Commits of the consumers of a group over a running cluster, and where one without any begins."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from group_readers import ASSIGNMENT, Readers, send, whole
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, Deployment

from highwater.client import (
    CommitFailedError,
    Consumer,
    OffsetOutOfRangeError,
    TopicPartition,
)


async def test_a_table_is_committed(grouped: Deployment, readers: Readers) -> None:
    topic = group = "tables"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 10)
    first = await readers.join(topic, group, enable_auto_commit=False)
    await first.suspend()
    consumer = first.consumer
    rows = 0
    done = None
    async with asyncio.timeout(HEAL_S):
        while rows < 40:
            table = await consumer.poll_table(500, max_records=7)
            if done is None and table.num_rows:
                done = table
            rows += table.num_rows
    assert done is not None
    await consumer.commit(done)
    assert sum((await consumer.lag()).values()) == 0
    await consumer.stop()
    after = Counter(row["partition"] for row in done.to_pylist())
    second = await readers.join(topic, group)
    await second.has_seen(40 - done.num_rows)
    assert Counter(second.seen) == Counter(one for one in whole(10) if one[1] >= after[one[0]])


async def test_others_partitions_are_not_committed(grouped: Deployment, readers: Readers) -> None:
    topic = group = "refused"
    await grouped.create_topic(topic, ASSIGNMENT)
    first = await readers.join(topic, group, enable_auto_commit=False)
    second = await readers.join(topic, group, enable_auto_commit=False)
    await first.owns(2)
    await second.owns(2)
    (mine, *_), (theirs, *_) = sorted(first.owned), sorted(second.owned)
    with pytest.raises(CommitFailedError) as refused:
        await first.consumer.commit({(topic, mine): 3, (topic, theirs): 4})
    assert refused.value.partitions == {TopicPartition(topic, theirs)}
    committed = await grouped.admin.list_group_offsets(group)
    assert {one: each.offset for one, each in committed.items()} == {(topic, mine): 3}


async def test_a_loop_commits_what_is_behind_it_and_nothing_after_an_error(grouped: Deployment) -> None:
    topic = group = "loop"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 10, partition=2)
    options: dict[str, Any] = {"bootstrap": grouped.cluster.bootstrap, "auto_offset_reset": "earliest", "group": group}

    async def committed() -> int:
        return (await grouped.admin.list_group_offsets(group))[TopicPartition(topic, 2)].offset

    async with asyncio.timeout(HEAL_S), Consumer(topic, **options) as consumer:
        async for record in consumer:
            if record.offset == 3:
                break
    assert await committed() == 4

    async def fail() -> None:
        async with asyncio.timeout(HEAL_S), Consumer(topic, **options) as consumer:
            async for record in consumer:
                assert record.offset >= 4
                _ = 1 // (6 - record.offset)

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await committed() == 4
    async with asyncio.timeout(HEAL_S), Consumer(topic, auto_commit_interval_ms=0, **options) as consumer:
        async for record in consumer:
            if record.offset == 7:  # one commit is under way at a time: those of 6 and 7 may not have begun
                await eventually(lambda: _reaches(committed, 5), "the loop commits what is behind it")
                assert await committed() <= 7
            if record.offset == 9:
                break
    assert await committed() == 10


async def _reaches(found: Callable[[], Awaitable[int]], offset: int) -> bool:
    return await found() >= offset


async def test_where_nothing_was_committed_auto_offset_reset_decides(grouped: Deployment, readers: Readers) -> None:
    topic = "reset"
    await grouped.create_topic(topic, ASSIGNMENT)
    await send(grouped, topic, 10)
    latest = await readers.join(topic, "latest", auto_offset_reset="latest")
    await latest.owns(4)
    assert [await latest.consumer.position((topic, partition)) for partition in range(4)] == [10] * 4
    await latest.suspend()
    await latest.consumer.stop()  # commits the positions, of partitions without a record, too
    await send(grouped, topic, 10)
    again = await readers.join(topic, "latest", auto_offset_reset="latest")
    await again.has_seen(40)
    assert Counter(again.seen) == Counter(one for one in whole(20) if one[1] >= 10)
    failing = await readers.join(topic, "failing", auto_offset_reset="error")
    await failing.until(lambda: bool(failing.errors), "an error")
    assert isinstance(failing.errors[0], OffsetOutOfRangeError)
