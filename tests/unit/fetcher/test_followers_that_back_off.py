"""A retry costs the followers that are due, however many wait for theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from highwater.errors import ErrorCode
from highwater.fetcher import replica_fetcher
from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.actions import FenceAnswer, Followed
from highwater.fetcher.follower.follower import Follower, FollowerState
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.follower.retry_times import RetryTimes
from highwater.fetcher.replica_fetcher import ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.settings import load
from highwater.telemetry.metrics import Metrics

RETRY_MS = 1_000
GROUPS = 10
OF_GROUP = 5


def key(number: int) -> PartitionKey:
    return PartitionKey(b"t" * 16, number)


class Fetching:
    """A fetcher whose log-storage has refused to fence: each group of followers a little later than the one before."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.fenced: list[PartitionKey] = []
        settings = load(
            FetcherSettings,
            {"broker.id": "1", "listen": "unix:/f", "replica.manager": "unix:/rm", "log.storage": "unix:/ls"},
        )
        storage: Any = self
        leader = LeaderEndpoint("127.0.0.1:1", 3)
        metrics = FetcherMetrics(Metrics("fetcher"))
        self.fetcher = ReplicaFetcher(FetcherId(2, 0), leader, settings, storage, metrics, lambda: self.now_ms)
        self.followers = [Follower(key(number), "t", RETRY_MS) for number in range(GROUPS * OF_GROUP)]
        for number, follower in enumerate(self.followers):
            self.now_ms = number // OF_GROUP
            follower.follow(Followed(2, 5, -1, "ls"), self.now_ms)
            self.fetcher.add(follower)
            refused = FenceAnswer(follower.generation, "ls", None, (), ErrorCode.LOG_STORAGE_ERROR, "a disk")
            follower.fenced(refused, self.now_ms)
            self.fetcher.changed(follower)
        self.fetcher._next_request(3)

    async def fence(self, fences: Any) -> Any:
        self.fenced += [key for key, _ in fences]
        await asyncio.Event().wait()


async def test_a_retry_looks_at_those_that_are_due_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching = Fetching()
    looks: list[PartitionKey] = []
    tick, position = Follower.tick, Follower.position

    def count_tick(self: Follower, now_ms: int) -> Any:
        looks.append(self.key)
        return tick(self, now_ms)

    def count_position(self: Follower) -> Any:
        looks.append(self.key)
        return position(self)

    monkeypatch.setattr(Follower, "tick", count_tick)
    monkeypatch.setattr(Follower, "position", count_position)
    for group in range(GROUPS):
        fetching.now_ms = RETRY_MS + group
        fetching.fetcher._tick()
        fetching.fetcher._next_request(3)
        await asyncio.sleep(0)
    assert fetching.fenced == [follower.key for follower in fetching.followers]
    assert len(looks) <= 2 * GROUPS * OF_GROUP
    await fetching.fetcher.stop()


async def test_the_timer_goes_on_to_the_next_that_is_due() -> None:
    fetching = Fetching()
    fetching.now_ms = RETRY_MS
    fetching.fetcher._tick()
    timer = fetching.fetcher._timer
    assert timer is not None
    assert not timer.cancelled()
    assert fetching.fetcher._timer_at_ms == RETRY_MS + 1
    waiting = fetching.followers[OF_GROUP:]
    assert {follower.state for follower in waiting} == {FollowerState.DELAYED}
    await fetching.fetcher.stop()


async def test_of_many_that_are_due_at_once_each_turn_takes_a_messages_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher, "MESSAGE_PARTITIONS", 7)
    fetching = Fetching()
    fetching.now_ms = 2 * RETRY_MS
    tried = []
    while fetching.fetcher._retries.next_ms is not None:
        before, timer = len(fetching.fenced), fetching.fetcher._timer
        assert timer is not None
        timer.cancel()  # in its place
        fetching.fetcher._tick()
        await asyncio.sleep(0)
        tried.append(len(fetching.fenced) - before)
    assert tried == [7] * 7 + [1]
    assert fetching.fenced == [follower.key for follower in fetching.followers]
    await fetching.fetcher.stop()


async def test_one_that_has_gone_is_not_tried_again() -> None:
    fetching = Fetching()
    for follower in fetching.followers:
        fetching.fetcher.remove(follower.key)
    fetching.now_ms = 2 * RETRY_MS
    fetching.fetcher._tick()
    await asyncio.sleep(0)
    assert not fetching.fenced
    await fetching.fetcher.stop()


def test_only_the_latest_time_counts() -> None:
    times = RetryTimes()
    for number, at_ms in ((1, 30), (2, 10), (1, 20), (3, 5), (3, None)):
        times.set(key(number), at_ms)
    assert times.next_ms == 5
    assert times.take_due(9, 10) == []
    assert times.next_ms == 10
    assert times.take_due(25, 1) == [key(2)]
    assert times.take_due(25, 10) == [key(1)]
    assert times.take_due(100, 10) == []
    assert times.next_ms is None


def test_of_thousands_of_times_that_hold_no_more_few_are_dropped_at_once() -> None:
    times = RetryTimes()
    for number in range(100):
        times.set(key(number), 10)
    for number in range(100):
        times.set(key(number), None if number < 99 else 20)
    assert times.take_due(30, 40) == []
    assert len(times._times) == 61
    assert times.next_ms == 10
    assert times.take_due(30, 60) == []
    assert times.take_due(30, 60) == [key(99)]
