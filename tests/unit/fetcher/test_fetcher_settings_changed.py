"""The fetcher's settings, changed while it runs: each has its effect without a restart."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from test_fetcher_manager import Managed, key

from highwater.configuration.dynamic_keys import FETCHER_KEYS
from highwater.fetcher.fetch_budget import FetchBudget
from highwater.fetcher.follower.actions import Fence
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint, fetcher_id_of
from highwater.fetcher.service import FetcherService
from highwater.fetcher.settings import FetcherSettings
from highwater.rpc.settings import load

LEADERS = {1: "one", 2: "two"}


def everything(managed: Managed) -> None:
    """Each partition is with the fetcher that is its, and with no other."""
    manager = managed.manager
    for each, follower in manager.followers.items():
        (home,) = [identity for identity, fetcher in manager.fetchers.items() if each in fetcher.partitions]
        assert manager.fetchers[home].partitions[each] is follower
        assert fetcher_id_of(each, home.leader, manager._count) == home
        assert manager.fetchers[home].leader.address == LEADERS[home.leader]


async def test_partitions_move_to_the_fetchers_that_are_theirs_and_back() -> None:
    managed = Managed()
    await managed.follow(*((number, 1 + number % 2, LEADERS[1 + number % 2]) for number in range(24)))
    managed.fence_all()
    positions = {each: follower.fetch_offset for each, follower in managed.manager.followers.items()}
    assert set(managed.manager.fetchers) == {FetcherId(1, 0), FetcherId(2, 0)}
    assert managed.manager.configure(3, 1_000) == []
    everything(managed)
    assert {identity.fetcher_id for identity in managed.manager.fetchers} == {0, 1, 2}
    assert {each: follower.fetch_offset for each, follower in managed.manager.followers.items()} == positions
    assert all(fetcher.sessions[-1] == 7 for fetcher in managed.manager.fetchers.values())
    stopped = managed.manager.configure(1, 1_000)
    everything(managed)
    assert {identity.fetcher_id for identity in managed.manager.fetchers} == {0}
    assert {fetcher.identity.fetcher_id for fetcher in stopped} == {1, 2}
    assert managed.manager.fetchers[FetcherId(1, 0)].sessions == [7, 7, 7]


async def test_what_is_followed_later_goes_by_the_new_number() -> None:
    managed = Managed()
    managed.manager.configure(4, 1_000)
    await managed.follow(*((number, 1, "one") for number in range(12)))
    everything(managed)
    assert len(managed.manager.fetchers) == 4
    await managed.follow((3, 2, "two"), changes=True, removed=[0])
    everything(managed)


async def test_the_same_number_disturbs_nobody() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"))
    managed.fence_all()
    assert managed.manager.configure(1, 5) == []
    assert managed.opened[0].sessions == [7]
    assert [type(action) for _, action in managed.opened[0].performed] == [Fence]
    assert managed.manager.followers[key(0)].retry_ms == 5
    await managed.follow((0, 1, "one"), (1, 1, "one"))
    assert managed.manager.followers[key(1)].retry_ms == 5


def test_a_smaller_budget_grants_less_and_takes_back_nothing() -> None:
    budget = FetchBudget(1_000, 4)
    budget.join()
    assert budget.grant(250, more=False) == 250
    budget.resize(400)
    assert budget.grant(250, more=False) == 100
    budget.give_back(350)
    budget.resize(4_000)
    assert budget.grant(900, more=False) == 900


@pytest.fixture
async def service(tmp_path: Path) -> FetcherService:
    values = {
        "broker.id": "3",
        "listen": f"unix:{tmp_path}/f",
        "log.storage": f"unix:{tmp_path}/ls",
        "replica.manager": f"unix:{tmp_path}/rm",
        "replica.fetch.max.bytes": "5000",
    }
    return FetcherService(load(FetcherSettings, values))


async def test_fetchers_ask_by_what_is_set(service: FetcherService) -> None:
    fetcher = service._open_fetcher(FetcherId(1, 0), LeaderEndpoint("unix:/nowhere", 3))
    service.manager._fetchers[fetcher.identity] = fetcher
    values = {
        "replica.fetch.max.bytes": "7",
        "replica.fetch.response.max.bytes": "8",
        "replica.fetch.wait.max.ms": "9",
        "replica.fetch.min.bytes": "10",
        "replica.fetch.total.max.bytes": "11",
        "replica.fetch.backoff.ms": "12",
        "num.replica.fetchers": "2",
    }
    assert values.keys() == FETCHER_KEYS.keys()
    service.take_config(values)
    used = fetcher._settings
    assert (used.replica_fetch_max_bytes, used.replica_fetch_response_max_bytes) == (7, 8)
    assert (used.replica_fetch_wait_max_ms, used.replica_fetch_min_bytes) == (9, 10)
    assert (service._budget._total, service.manager._retry_ms, service.manager._count) == (11, 12, 2)
    service.manager._fetchers[fetcher.identity] = fetcher  # which has been let go, as it follows nothing
    service.take_config({})
    assert fetcher._settings.replica_fetch_max_bytes == 5000
    assert (service._budget._total, service.manager._retry_ms, service.manager._count) == (128 << 20, 1_000, 1)
    await service.manager.stop()


async def test_the_level_of_its_log(service: FetcherService) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        service.take_config({"log.level": "DEBUG"})
        assert root.level == logging.DEBUG
        service.take_config({})
        assert root.level == logging.INFO
    finally:
        root.setLevel(before)
