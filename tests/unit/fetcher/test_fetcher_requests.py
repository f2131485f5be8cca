"""A request that waits at the leader is ended by another only where that tells the leader more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from highwater.fetcher import replica_fetcher
from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.actions import FenceAnswer, Followed, LogAnswer
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.follower_throttle import FollowerThrottle
from highwater.fetcher.replica_fetcher import ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import to_key
from highwater.rpc.settings import load
from highwater.telemetry.metrics import Metrics
from highwater.v1 import broker_pb2

KEY = PartitionKey(b"t" * 16, 0)
END = 10


class HeldLogStorage:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self._answered: list[Callable[[Sequence[LogAnswer] | None, str], None]] = []

    def append(self, appends: Sequence[Any], answered: Callable[[Sequence[LogAnswer] | None, str], None]) -> None:
        self._answered.append(answered)

    def answer(self, follower: Follower, log: LogState) -> None:
        self._answered.pop(0)([LogAnswer(follower.generation, "ls", log)], "")


@pytest.fixture
def storage() -> HeldLogStorage:
    return HeldLogStorage()


@pytest.fixture
def follower() -> Follower:
    follower = Follower(KEY, "t", 1_000)
    follower.follow(Followed(2, 5, -1, "ls"), 0)
    follower.fenced(FenceAnswer(follower.generation, "ls", LogState(END, 5, 0, END)), 0)
    return follower


@pytest.fixture
async def fetcher(storage: Any, follower: Follower) -> ReplicaFetcher:
    settings = load(
        FetcherSettings,
        {"broker.id": "1", "listen": "unix:/f", "replica.manager": "unix:/rm", "log.storage": "unix:/ls"},
    )
    leader = LeaderEndpoint("127.0.0.1:1", 3)
    made = ReplicaFetcher(FetcherId(2, 0), leader, settings, storage, FetcherMetrics(Metrics("fetcher")), lambda: 0)
    made.add(follower)
    return made


def told_log_start(fetcher: ReplicaFetcher, number: int, log_start: int) -> None:
    """By the leader, which has nothing else that is new."""
    response = broker_pb2.FetchResponse(correlation_id=number)
    response.results.add(
        partition=to_key(KEY), high_watermark=END, log_start_offset=log_start, log_end_offset=END, leader_epoch=5
    )
    fetcher._received(response)


def asked(fetcher: ReplicaFetcher) -> int | None:
    """The log start in the request that is due; None where none is."""
    request = fetcher._next_request(3)
    return None if request is None else request.partitions[0].log_start_offset


class Throttle(FollowerThrottle):
    """Holds everything back, for as long as the test says."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.owed = 1_000_000
        self.asked: list[PartitionKey] = []

    def held_back_ms(self, follower: Follower) -> int:
        self.asked.append(follower.key)
        return self.owed

    def owed_ms(self) -> int:
        return self.owed


async def test_what_is_held_back_is_looked_at_in_parts(
    fetcher: ReplicaFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_fetcher, "LET_GO_AT_ONCE", 10)
    fetcher._throttle = throttle = Throttle()
    fetcher._incremental = True  # as the leader answered before
    keys = [PartitionKey(b"t" * 16, number) for number in range(1, 31)]
    for key in keys:
        one = Follower(key, "t", 1_000)
        one.follow(Followed(2, 5, -1, "ls"), 0)
        one.fenced(FenceAnswer(one.generation, "ls", LogState(END, 5, 0, END)), 0)
        fetcher.add(one)
    assert fetcher._next_request(3) is None
    assert set(fetcher.held_back) == {KEY, *keys}
    looks = []
    for _ in range(4):
        throttle.asked.clear()
        fetcher._let_go()
        assert fetcher._next_request(3) is None
        looks.append(set(throttle.asked))
    assert [len(look) for look in looks] == [10] * 4
    assert set().union(*looks) == {KEY, *keys}

    throttle.owed = 0  # its rate is gone
    named: set[int] = set()
    async with asyncio.timeout(10):
        while len(named) < 31:
            request = fetcher._next_request(3)
            if request is None:
                fetcher._wake.clear()
                await fetcher._wake.wait()
            else:
                named |= {part.partition.partition for part in request.partitions}
                fetcher._received(broker_pb2.FetchResponse(correlation_id=request.correlation_id, incremental=True))
                await asyncio.sleep(0)  # a leader would wait here: whoever is held back still has its timers to hear
    await fetcher.stop()


async def test_a_log_start_that_lags_is_told_when_it_has_risen_and_not_before(
    fetcher: ReplicaFetcher, storage: HeldLogStorage, follower: Follower
) -> None:
    """While a disk is slow each answer would end the wait of a request that says the same, and the answer to that would
    be appended again: as fast as brokers can."""
    assert asked(fetcher) == 0
    for number in range(1, 4):
        told_log_start(fetcher, number, 4)
        assert asked(fetcher) == 0
        storage.answer(follower, LogState(END, 5, 0, END))
        assert asked(fetcher) is None
    told_log_start(fetcher, 4, 4)
    assert asked(fetcher) == 0
    storage.answer(follower, LogState(END, 5, 4, END))
    assert asked(fetcher) == 4
    await fetcher.stop()


class ThrottleOfOne(FollowerThrottle):
    """Holds one partition back from the moment the test says."""

    def __init__(self, key: PartitionKey) -> None:
        super().__init__(lambda: 0)
        self._key = key
        self.owes = False

    def held_back_ms(self, follower: Follower) -> int:
        return 1_000_000 if self.owes and follower.key == self._key else 0


async def test_a_request_that_forgets_what_the_leader_has_more_of_keeps_no_acknowledgement_waiting(
    fetcher: ReplicaFetcher, storage: HeldLogStorage, follower: Follower
) -> None:
    """The leader has more of a partition that is held back from this request on: it does not answer at once, and what
    another one acknowledges meanwhile is told by the next request."""
    other = Follower(PartitionKey(b"t" * 16, 1), "t", 1_000)
    other.follow(Followed(2, 5, -1, "ls"), 0)
    other.fenced(FenceAnswer(other.generation, "ls", LogState(END, 5, 0, END)), 0)
    fetcher._throttle = throttle = ThrottleOfOne(other.key)
    fetcher.add(other)
    assert asked(fetcher) == 0

    throttle.owes = True
    response = broker_pb2.FetchResponse(correlation_id=1, incremental=True)
    for key, log_start, log_end in ((KEY, 4, END), (other.key, 0, END + 10)):
        response.results.add(
            partition=to_key(key), high_watermark=END, log_start_offset=log_start, log_end_offset=log_end
        )
    fetcher._received(response)
    request = fetcher._next_request(3)
    assert request is not None
    assert [each.partition for each in request.forgotten] == [1]

    storage.answer(follower, LogState(END, 5, 4, END))
    assert asked(fetcher) == 4
    await fetcher.stop()


async def test_what_a_leader_left_and_holds_back_since_keeps_no_acknowledgement_waiting(
    fetcher: ReplicaFetcher, storage: HeldLogStorage, follower: Follower
) -> None:
    """What its response had no room for is throttled, and with what was in it the rate is used up."""
    assert asked(fetcher) == 0
    response = broker_pb2.FetchResponse(correlation_id=1, incremental=True, more=True, throttle_ms=10_000)
    response.results.add(partition=to_key(KEY), high_watermark=END, log_start_offset=4, log_end_offset=END)
    fetcher._received(response)
    assert fetcher._next_request(3) is not None
    storage.answer(follower, LogState(END, 5, 4, END))
    assert asked(fetcher) == 4
    await fetcher.stop()
