"""A member's consumer against a coordinator's double: what it commits, hands out and says (docs/sdk.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import monotonic
from typing import Any

import pytest
from cluster_double import ClusterDouble
from coordinator_double import CoordinatorDouble

from highwater.client import (
    CommitFailedError,
    Consumer,
    HighwaterError,
    InvalidRequestError,
    MaxPollIntervalExceededError,
    TopicPartition,
)
from highwater.errors import ErrorCode
from highwater.records import encode_lists, read_header

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def coordinator() -> AsyncIterator[CoordinatorDouble]:
    """Of a topic of two partitions with 30 records each, ten a batch."""
    cluster = ClusterDouble()
    for partition in cluster.create("t", 2).partitions:
        for _ in range(3):
            encoded = encode_lists([0] * 10, [b"k"] * 10, [b"v"] * 10)
            assert partition.append(read_header(encoded), encoded)[0] is ErrorCode.NONE
    coordinator = CoordinatorDouble(cluster, "t")
    async with cluster, asyncio.timeout(30):
        yield coordinator


def member(coordinator: CoordinatorDouble, **options: Any) -> Consumer:
    bootstrap = coordinator.cluster.bootstrap
    return Consumer("t", bootstrap=bootstrap, group="g", auto_offset_reset="earliest", **options)


async def polled(consumer: Consumer, count: int) -> list[int]:
    """The offsets of so many records."""
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in await consumer.poll(1000, max_records=count - len(found))]
    return found


async def test_a_commit_in_a_loop_is_of_the_record_that_was_given_and_those_before_it(
    coordinator: CoordinatorDouble,
) -> None:
    async with member(coordinator, enable_auto_commit=False) as consumer:
        async for record in consumer:
            if record.offset in (3, 25):
                await consumer.commit()
                assert coordinator.commits[-1] == {0: record.offset + 1}
            if record.offset == 25:
                break


async def test_a_poll_in_a_loop_hands_out_what_the_loop_then_does_not(coordinator: CoordinatorDouble) -> None:
    async with member(coordinator) as consumer:
        offsets = []
        async for record in consumer:
            offsets.append(record.offset)
            if record.offset == 4:
                offsets += await polled(consumer, 3)
            if record.offset == 29:
                break
        assert offsets == list(range(30))
    assert coordinator.committed == {0: 30}


@pytest.mark.parametrize("poll", [Consumer.poll, Consumer.poll_table])
async def test_what_was_passed_over_is_committed_where_nothing_comes_behind_it(
    coordinator: CoordinatorDouble, poll: Callable[..., Awaitable[Any]]
) -> None:
    batches = coordinator.cluster.topics["t"].partitions[0].batches
    header, batch = batches[2]
    batches[2] = (header, batch[:-1] + bytes([batch[-1] ^ 1]))
    async with member(coordinator, on_corrupt="skip", enable_auto_commit=False) as consumer:
        while not consumer.passed_over.batches:
            if len(await poll(consumer, 200, 20)):
                await consumer.commit()
        await consumer.commit()
    assert coordinator.committed == {0: 30}


async def test_a_subscription_that_changes_while_the_session_is_opened_is_said(coordinator: CoordinatorDouble) -> None:
    coordinator.answers.clear()
    async with member(coordinator) as consumer:
        await coordinator.cluster.until(lambda: bool(coordinator.words))
        await consumer.subscribe(["t", "u"])
        coordinator.answers.set()
        await coordinator.cluster.until(lambda: len(coordinator.words) > 1)
        assert list(coordinator.words[1].subscription.topics) == ["t", "u"]


async def test_a_callback_that_polls_or_stops_is_refused_in_its_tasks_too(coordinator: CoordinatorDouble) -> None:
    refused: list[str] = []

    async def on_assigned(partitions: Sequence[TopicPartition]) -> None:
        for call in (consumer.poll, consumer.stop):
            with pytest.raises(InvalidRequestError) as raised:
                async with asyncio.timeout(5):
                    await asyncio.gather(call())
            refused.append(str(raised.value))

    async with member(coordinator, on_assigned=on_assigned) as consumer:
        assert len(await polled(consumer, 5)) == 5
    assert [text.split()[0] for text in refused] == ["poll", "stop"]


async def test_what_a_callback_began_may_poll_once_it_has_returned(coordinator: CoordinatorDouble) -> None:
    returned = asyncio.Event()
    reading: list[asyncio.Task[list[int]]] = []

    async def read() -> list[int]:
        await returned.wait()
        return await polled(consumer, 5)

    def on_assigned(partitions: Sequence[TopicPartition]) -> None:
        reading.append(asyncio.create_task(read()))

    async with member(coordinator, on_assigned=on_assigned) as consumer:
        await polled(consumer, 5)
        returned.set()
        assert await reading[0] == list(range(5, 10))


async def test_a_position_that_was_out_of_range_is_committed_where_it_was_reset_to(
    coordinator: CoordinatorDouble,
) -> None:
    broker = coordinator.cluster.brokers[1]
    async with member(coordinator, enable_auto_commit=False) as consumer:
        await polled(consumer, 30)
        broker.awake.clear()
        consumer.seek(ZERO, 1000)
        await consumer.commit()
        broker.awake.set()
        while await consumer.position(ZERO) != 0:
            await coordinator.cluster.wait_for_change(0.02)
        await consumer.commit()
        assert coordinator.commits == [{0: 1000}, {0: 0}]


async def test_a_loop_gives_nothing_after_the_session_timeout(
    coordinator: CoordinatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application has held the event loop: nobody has noticed yet that the time is over."""
    ahead_ms = 0.0
    monkeypatch.setattr("highwater.client.groups.group_member._now_ms", lambda: monotonic() * 1000 + ahead_ms)
    lost: list[TopicPartition] = []
    async with member(coordinator, on_lost=lost.extend, max_poll_interval_ms=1_000_000) as consumer:
        offsets = []
        async for record in consumer:
            offsets.append(record.offset)
            if record.offset == 4 and not ahead_ms:
                ahead_ms = 50_000.0
            elif ahead_ms:
                break
        assert lost == [ZERO]
        assert offsets == [*range(5), 0]


async def test_a_loop_that_asks_too_late_is_told(
    coordinator: CoordinatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = 0.0
    monkeypatch.setattr("highwater.client.groups.group_member._now_ms", lambda: monotonic() * 1000 + ahead_ms)
    async with member(coordinator, max_poll_interval_ms=20_000) as consumer:
        offsets = []

        async def read() -> None:
            nonlocal ahead_ms
            async for record in consumer:
                offsets.append(record.offset)
                ahead_ms += 3_000.0 if record.offset < 9 else 21_000.0

        with pytest.raises(MaxPollIntervalExceededError):
            await read()
        assert offsets == list(range(10))


@pytest.mark.parametrize("max_records", [0, -1])
async def test_a_poll_of_no_records_is_refused(coordinator: CoordinatorDouble, max_records: int) -> None:
    async with member(coordinator) as consumer:
        await polled(consumer, 1)
        for poll in (consumer.poll, consumer.poll_batches, consumer.poll_table):
            with pytest.raises(InvalidRequestError, match="max_records"):
                async with asyncio.timeout(5):
                    await poll(100, max_records)


async def test_a_commit_after_the_partitions_were_lost_raises(coordinator: CoordinatorDouble) -> None:
    async with member(coordinator, enable_auto_commit=False) as consumer:
        await polled(consumer, 5)
        coordinator.end(ErrorCode.UNKNOWN_MEMBER_ID)
        await coordinator.cluster.until(lambda: not consumer.assignment())
        with pytest.raises(CommitFailedError) as failed:
            await consumer.commit()
        assert failed.value.partitions == {ZERO}
        await polled(consumer, 5)  # the application was told
        await consumer.commit()
        assert coordinator.commits == [{0: 5}]


async def test_a_position_is_that_of_a_partition_taken_up_anew(coordinator: CoordinatorDouble) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
        begun.set()
        await go_on.wait()

    broker = coordinator.cluster.brokers[1]
    async with member(coordinator, enable_auto_commit=False, on_revoked=on_revoked) as consumer:
        await polled(consumer, 5)
        broker.awake.clear()
        consumer.seek_to_beginning(ZERO)  # is not looked up while the broker is silent
        asked = asyncio.create_task(consumer.position(ZERO))
        coordinator.push()
        poll = asyncio.create_task(consumer.poll(60_000))
        await begun.wait()
        coordinator.committed[0] = 7
        coordinator.push(0)
        await coordinator.cluster.until(lambda: coordinator.words[-1].seen_assignment == coordinator.number)
        go_on.set()
        try:
            async with asyncio.timeout(5):
                assert await asked == 7
        finally:
            broker.awake.set()
            await poll


async def test_a_stop_gives_up_the_rest_where_a_callback_fails(coordinator: CoordinatorDouble) -> None:
    """One that a poll had begun: the poll was cancelled, and `stop` waits for it."""
    coordinator.assigned = (0, 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
        if ONE in partitions:
            begun.set()
            await go_on.wait()
            raise ValueError("the application's")

    consumer = await member(coordinator, on_revoked=on_revoked).start()
    await polled(consumer, 60)
    coordinator.push(0)
    poll = asyncio.create_task(consumer.poll(10_000))
    await begun.wait()
    poll.cancel()
    await asyncio.wait([poll])
    stop = asyncio.create_task(consumer.stop())
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(ValueError, match="the application's"):
        await stop
    assert coordinator.committed == {0: 30}


async def test_a_callback_that_fails_after_its_poll_was_cancelled_is_told_by_the_next_one(
    coordinator: CoordinatorDouble,
) -> None:
    coordinator.assigned = (0, 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
        begun.set()
        await go_on.wait()
        if ONE in partitions:
            raise ValueError("the application's")

    async with member(coordinator, on_revoked=on_revoked) as consumer:
        await polled(consumer, 60)
        coordinator.push(0)
        poll = asyncio.create_task(consumer.poll(10_000))
        await begun.wait()
        poll.cancel()
        await asyncio.wait([poll])
        go_on.set()
        await coordinator.cluster.until(lambda: ONE not in consumer.assignment())
        with pytest.raises(ValueError, match="the application's"):
            await consumer.poll(0)
        assert await consumer.poll(0) == []


async def test_a_word_that_cannot_be_written_is_raised(
    coordinator: CoordinatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise TypeError("no such word")

    monkeypatch.setattr("highwater.client.groups.session_stream.SessionStream._request", fails)
    async with member(coordinator) as consumer:
        with pytest.raises(HighwaterError, match="by a bug of the client.*no such word"):
            await consumer.poll(5_000)


async def test_a_newer_stream_of_its_own_is_followed_by_another(coordinator: CoordinatorDouble) -> None:
    async with member(coordinator) as consumer:
        await polled(consumer, 5)
        coordinator.end(ErrorCode.FETCH_SESSION_STALE)
        await coordinator.cluster.until(lambda: coordinator.streams == 2)
        assert await polled(consumer, 5) == list(range(5, 10))
