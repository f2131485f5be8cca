"""The blocking twin of a group's consumer: what it commits, interruptions, callbacks on threads (docs/sdk.md)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import sleep
from typing import Any, ParamSpec

import pyarrow as pa
import pytest
from cluster_double import ClusterDouble
from coordinator_double import CoordinatorDouble

from highwater.client import InvalidRequestError, MaxPollIntervalExceededError, TopicPartition
from highwater.client.blocking import Consumer
from highwater.client.blocking.event_loop_thread import EventLoopThread
from highwater.errors import ErrorCode
from highwater.records import encode_lists, read_header

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
P = ParamSpec("P")


@pytest.fixture
async def coordinator() -> AsyncIterator[CoordinatorDouble]:
    """Of a topic of two partitions with 30 records each, ten a batch."""
    cluster = ClusterDouble()
    for partition in cluster.create("t", 2).partitions:
        for _ in range(3):
            encoded = encode_lists([0] * 10, [b"k"] * 10, [b"v"] * 10)
            assert partition.append(read_header(encoded), encoded)[0] is ErrorCode.NONE
    coordinator = CoordinatorDouble(cluster, "t")
    async with cluster:
        yield coordinator


def beside_the_servers(test: Callable[P, None]) -> Callable[P, Awaitable[None]]:
    """Runs a blocking test on a thread, where the event loop serves the doubles."""

    @functools.wraps(test)
    async def on_a_thread(*args: P.args, **kwargs: P.kwargs) -> None:
        async with asyncio.timeout(30):
            await asyncio.to_thread(test, *args, **kwargs)

    return on_a_thread


def member(coordinator: CoordinatorDouble, **options: Any) -> Consumer:
    bootstrap = coordinator.cluster.bootstrap
    return Consumer("t", bootstrap=bootstrap, group="g", auto_offset_reset="earliest", **options)


@beside_the_servers
def test_a_commit_in_a_loop_is_of_the_record_that_was_given_and_those_before_it(
    coordinator: CoordinatorDouble,
) -> None:
    with member(coordinator, enable_auto_commit=False) as consumer:
        for record in consumer:
            assert consumer.position(ZERO) == record.offset + 1
            if record.offset in (3, 25):
                consumer.commit()
                assert coordinator.commits[-1] == {0: record.offset + 1}
            if record.offset == 25:
                break


@beside_the_servers
def test_leaving_in_a_loop_commits_what_was_given(coordinator: CoordinatorDouble) -> None:
    with member(coordinator) as consumer:
        for record in consumer:
            if record.offset == 3:
                consumer.stop()
    assert coordinator.committed == {0: 4}

    def read() -> None:
        with member(coordinator) as consumer:
            for record in consumer:
                if record.offset == 6:
                    return

    read()
    assert coordinator.committed == {0: 7}
    with member(coordinator) as consumer:
        assert next(iter(consumer)).offset == 7


@beside_the_servers
def test_a_seek_in_a_loop_counts_at_once(coordinator: CoordinatorDouble) -> None:
    with member(coordinator) as consumer:
        offsets = []
        for record in consumer:
            offsets.append(record.offset)
            if offsets == [0, 1, 2]:
                consumer.seek(ZERO, 20)
            if record.offset == 24:
                consumer.seek_to_beginning()
            if len(offsets) == 10:
                break
        assert offsets == [0, 1, 2, 20, 21, 22, 23, 24, 0, 1]


@beside_the_servers
def test_a_loop_is_polling(coordinator: CoordinatorDouble) -> None:
    """Slower than `max_poll_interval_ms` over all, and faster with each record."""
    with member(coordinator, max_poll_interval_ms=400) as consumer:
        for record in consumer:
            sleep(0.1)
            if record.offset == 9:
                break
        assert len(consumer.assignment()) == 1
        records = iter(consumer)
        next(records)
        while consumer.assignment():  # it leaves, where nothing is asked for
            sleep(0.02)
        with pytest.raises(MaxPollIntervalExceededError):
            next(records)


@pytest.mark.parametrize("poll", [Consumer.poll, Consumer.poll_batches, Consumer.poll_table])
@beside_the_servers
def test_an_interrupted_poll_takes_nothing(
    coordinator: CoordinatorDouble, poll: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes when the event loop's thread is done with the poll."""
    run = EventLoopThread.run
    interrupted: list[int] = []

    def interrupting(self: EventLoopThread, work: Any, timeout_s: float | None = None) -> Any:
        found = run(self, work, timeout_s)
        if isinstance(found, list | pa.Table) and len(found) and not interrupted:
            interrupted.append(len(found))
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(EventLoopThread, "run", interrupting)
    with member(coordinator, enable_auto_commit=False) as consumer:

        def until_interrupted() -> None:
            while True:
                poll(consumer, 1000, 5)

        with pytest.raises(KeyboardInterrupt):
            until_interrupted()
        consumer.commit()
        assert coordinator.committed[0] == 0
        assert [record.offset for record in consumer.poll(5000, 5)] == [0, 1, 2, 3, 4]


@beside_the_servers
def test_a_poll_that_anything_interrupts_goes_on_no_longer(
    coordinator: CoordinatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlarmError(Exception):
        """What a signal's handler may raise."""

    def interrupted(self: object, timeout_s: float | None = None) -> None:
        raise AlarmError

    with member(coordinator, enable_auto_commit=False) as consumer:
        while not consumer.assignment():
            consumer.poll(20, 1)
        consumer.pause()
        with monkeypatch.context() as patched:
            patched.setattr("highwater.client.blocking.event_loop_thread._Work.wait", interrupted)
            with pytest.raises(AlarmError):
                consumer.poll(20_000)
        before = consumer.position(ZERO)
        consumer.resume()  # would end the poll
        sleep(0.1)
        assert consumer.position(ZERO) == before


@beside_the_servers
def test_a_callback_that_polls_or_stops_is_refused(coordinator: CoordinatorDouble) -> None:
    refused: list[str] = []

    def on_assigned(partitions: Sequence[TopicPartition]) -> None:
        assert consumer.assignment() == set(partitions)
        for call in (consumer.poll, consumer.stop, lambda: next(iter(consumer))):
            with pytest.raises(InvalidRequestError) as raised:
                call()
            refused.append(str(raised.value).split()[0])

    with member(coordinator, on_assigned=on_assigned) as consumer:
        assert next(iter(consumer)).offset == 0
    assert refused == ["poll", "stop", "poll"]


def test_a_callback_is_no_coroutine_function() -> None:
    async def on_lost(partitions: Sequence[TopicPartition]) -> None:
        raise AssertionError

    with pytest.raises(InvalidRequestError, match="on_lost of a blocking consumer is a plain function"):
        Consumer("t", group="g", on_lost=on_lost)
