"""The bytes that all fetchers of a broker may have under way: bounded, fair, and never so that one stands still."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.fetcher.fetch_budget import FetchBudget
from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.actions import FenceAnswer, Followed, LogAnswer
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.replica_fetcher import UNDER_WAY, ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.records import Record, encode_rows
from highwater.rpc.partition_keys import to_key
from highwater.rpc.settings import load
from highwater.telemetry.metrics import Metrics
from highwater.v1 import broker_pb2

MIB = 1 << 20
TOTAL = 128 * MIB
RESPONSE = 10 * MIB


def budget_of(fetchers: int, total: int = TOTAL) -> FetchBudget:
    budget = FetchBudget(total, UNDER_WAY)
    for _ in range(fetchers):
        budget.join()
    return budget


@pytest.mark.parametrize("fetchers", [1, 2, 3])
def test_few_leaders_are_asked_for_whole_responses_whatever_is_under_way(fetchers: int) -> None:
    budget = budget_of(fetchers)
    granted = [budget.grant(RESPONSE, more=more) for more in (True, False) * 2 for _ in range(fetchers)]
    assert granted == [RESPONSE] * UNDER_WAY * fetchers


def test_a_request_of_each_of_many_leaders_has_its_share() -> None:
    budget = budget_of(99)
    share = TOTAL // (UNDER_WAY * 99)
    assert [budget.grant(RESPONSE, more=False) for _ in range(2 * 99)] == [share] * 2 * 99
    assert budget.held <= TOTAL // 2


def test_a_leader_that_has_more_is_asked_for_more_while_others_are_idle() -> None:
    budget = budget_of(99)
    for _ in range(99):
        budget.grant(RESPONSE, more=False)
    assert budget.grant(RESPONSE, more=True) == RESPONSE
    assert budget.grant(RESPONSE, more=True) > MIB


def test_leaders_that_all_have_more_come_to_equal_shares() -> None:
    """Also those that come when the first have taken much."""
    budget = budget_of(99)
    share = TOTAL // (UNDER_WAY * 99)
    under_way = deque((fetcher, budget.grant(RESPONSE, more=True)) for fetcher in [*range(99)] * UNDER_WAY)
    latest = [0] * 99
    for _ in range(4 * len(under_way)):
        fetcher, granted = under_way.popleft()
        budget.give_back(granted)
        latest[fetcher] = budget.grant(RESPONSE, more=True)
        under_way.append((fetcher, latest[fetcher]))
        assert budget.held <= TOTAL + len(under_way)
    assert min(latest) >= share // 2
    assert max(latest) <= 2 * share


def test_one_byte_is_granted_where_nothing_is_left() -> None:
    budget = budget_of(1, total=100)
    budget.hold(5_000)  # a batch came whole
    assert budget.grant(RESPONSE, more=True) == 1
    budget.give_back(5_000)
    assert budget.grant(RESPONSE, more=False) == 100 // UNDER_WAY


@given(
    total=st.integers(1, 10_000),
    steps=st.lists(
        st.tuples(st.sampled_from(["ask", "ask more", "answer", "append", "join"]), st.integers(0, 2_000)), max_size=80
    ),
)
def test_what_is_held_is_bounded_and_all_of_it_comes_back(total: int, steps: list[tuple[str, int]]) -> None:
    budget = budget_of(1, total)
    asked: list[int] = []
    appending: list[int] = []
    for what, size in steps:
        match what:
            case "ask" | "ask more":
                before = budget.held
                granted = budget.grant(size + 1, more=what == "ask more")
                assert 1 <= granted <= size + 1
                assert granted == 1 or before + granted <= total
                asked.append(granted)
            case "answer" if asked:
                granted = asked.pop(0)
                budget.give_back(granted)
                appending.append(min(size, granted))
                budget.hold(appending[-1])
            case "append" if appending:
                budget.give_back(appending.pop(0))
            case "join":
                budget.join()
        assert budget.held == sum(asked) + sum(appending)
        assert budget.held <= total + asked.count(1) + appending.count(1)
    for left in asked + appending:
        budget.give_back(left)
    assert budget.held == 0


# A fetcher with it

KEY = PartitionKey(b"t" * 16, 0)
BATCH = encode_rows([Record(0, 0, None, b"a" * 500)], base_offset=10, leader_epoch=5)


class HeldLogStorage:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.answered: list[Callable[[Sequence[LogAnswer] | None, str], None]] = []

    def append(self, appends: Sequence[Any], answered: Callable[[Sequence[LogAnswer] | None, str], None]) -> None:
        self.answered.append(answered)


class Fetching:
    def __init__(self, budget: FetchBudget) -> None:
        self.storage: Any = HeldLogStorage()
        settings = load(
            FetcherSettings,
            {"broker.id": "1", "listen": "unix:/f", "replica.manager": "unix:/rm", "log.storage": "unix:/ls"},
        )
        self.fetcher = ReplicaFetcher(
            FetcherId(2, 0),
            LeaderEndpoint("127.0.0.1:1", 3),
            settings,
            self.storage,
            FetcherMetrics(Metrics("fetcher")),
            lambda: 0,
            budget=budget,
        )
        self.follower = Follower(KEY, "t", 1_000)
        self.follower.follow(Followed(2, 5, -1, "ls"), 0)
        self.follower.fenced(FenceAnswer(self.follower.generation, "ls", LogState(10, 5, 0, 10)), 0)
        self.fetcher.add(self.follower)

    def asks(self) -> int | None:
        """The bytes that the request which is due asks for; None: none is."""
        request = self.fetcher._next_request(3)
        return None if request is None else request.max_bytes

    def told(self, number: int, records: bytes, *, more: bool = False) -> None:
        response = broker_pb2.FetchResponse(correlation_id=number, incremental=True, more=more)
        response.results.add(
            partition=to_key(KEY), high_watermark=10, log_end_offset=11, leader_epoch=5, records=records
        )
        self.fetcher._received(response)


async def test_a_grant_is_given_back_with_the_answer_and_data_once_it_is_appended() -> None:
    budget = FetchBudget(TOTAL, UNDER_WAY)
    fetching = Fetching(budget)
    assert fetching.asks() == RESPONSE
    assert budget.held == RESPONSE
    fetching.told(1, BATCH)
    assert budget.held == len(BATCH)
    fetching.storage.answered.pop()([LogAnswer(fetching.follower.generation, "ls", LogState(11, 5, 0, 10))], "")
    assert budget.held == 0
    assert fetching.asks() == RESPONSE
    fetching.told(2, b"")
    assert budget.held == 0
    await fetching.fetcher.stop()


async def test_data_that_is_dropped_is_given_back() -> None:
    budget = FetchBudget(TOTAL, UNDER_WAY)
    fetching = Fetching(budget)
    fetching.asks()
    fetching.follower.follow(Followed(2, 6, -1, "ls"), 0)  # another leader epoch: its log is read again
    fetching.told(1, BATCH)
    assert fetching.storage.answered == []
    assert budget.held == 0
    await fetching.fetcher.stop()


async def test_a_session_that_ends_gives_back_what_it_has_asked_for() -> None:
    """What is being appended is held until log-storage has said what became of it."""
    budget = FetchBudget(TOTAL, UNDER_WAY)
    fetching = Fetching(budget)
    fetching.asks()
    fetching.told(1, BATCH, more=True)
    assert fetching.asks() == RESPONSE
    await fetching.fetcher.stop()
    assert budget.held == len(BATCH)
    fetching.storage.answered.pop()(None, "the connection broke")
    assert budget.held == 0


async def test_a_fetcher_goes_on_where_others_hold_everything() -> None:
    budget = FetchBudget(TOTAL, UNDER_WAY)
    budget.hold(TOTAL)
    fetching = Fetching(budget)
    assert fetching.asks() == 1
    fetching.told(1, BATCH, more=True)
    assert fetching.asks() == 1
    await fetching.fetcher.stop()
