"""The replica-manager's settings, changed while it runs: what they decide is decided again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from leading_broker import Leader, key
from test_partition import fence_answer, fetch, instruction, leading, proposal, state
from test_tail_cache import EPOCH, FAR, INCARNATION, batch, bound_cache, content

from highwater.configuration.dynamic_keys import REPLICA_MANAGER_KEYS
from highwater.configuration.entities import CLUSTER, BrokerEntity, ConfigEntity, EntityKind
from highwater.log_storage_client.client import LogStorageClient
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.dynamic_configs import WatchedConfigs
from highwater.metadata.store.transactions import Entry, Event, Listing
from highwater.replica_manager import broker_config
from highwater.replica_manager.broker_config import BrokerConfig
from highwater.replica_manager.partition.actions import HighWatermarkAdvanced, LiveBrokers, PartitionSettings
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.partition.tail_cache import TailCache, TailCacheBudget
from highwater.replica_manager.responses.response_budget import ResponseBudget
from highwater.replica_manager.service import ReplicaManagerService
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.settings import load
from highwater.v1 import common_pb2, log_storage_pb2

MINIMUM_2, MINIMUM_3 = PartitionSettings(min_insync_replicas=2), PartitionSettings(min_insync_replicas=3)


def test_a_higher_minimum_holds_the_high_watermark_and_a_lower_one_lets_it_go() -> None:
    partition = leading(isr=(1, 2))
    partition.appended(5, "storage-1", 10, 0, 1)
    assert partition.settings_changed(MINIMUM_3, 2) == ()
    assert partition.leadership is not None
    assert partition.min_insync_replicas == 3
    assert not partition.leadership.enough_certain_replicas
    assert HighWatermarkAdvanced(10) not in partition.fetched(fetch(2, 10), 3).actions
    assert partition.settings_changed(MINIMUM_2, 4) == (HighWatermarkAdvanced(10),)
    assert partition.leadership.enough_certain_replicas


def test_a_minimum_is_capped_at_the_replicas_and_a_topics_own_stays() -> None:
    partition = leading(isr=(1, 2))
    partition.settings_changed(PartitionSettings(min_insync_replicas=9), 1)
    assert partition.min_insync_replicas == 3
    partition.instruct(instruction(state(revision=11), min_insync_replicas=1), 2)
    partition.settings_changed(MINIMUM_3, 3)
    assert partition.min_insync_replicas == 1
    partition.instruct(instruction(state(revision=12)), 4)
    assert partition.min_insync_replicas == 3


def test_what_is_led_later_has_the_new_settings() -> None:
    partition = Partition(key(0), "T", 1, PartitionSettings())
    assert partition.settings_changed(MINIMUM_3, 0) == ()
    partition.brokers_changed(LiveBrokers({1: 101, 2: 102, 3: 103}), 0)
    partition.instruct(instruction(state()), 0)
    partition.fenced(fence_answer(), 0)
    assert partition.leadership is not None
    assert (partition.min_insync_replicas, partition.leadership.settings) == (3, MINIMUM_3)


def test_a_replica_that_lags_for_longer_than_the_new_limit_leaves() -> None:
    partition = leading(isr=(1, 2))
    partition.fetched(fetch(2, 0), 1)
    partition.appended(5, "storage-1", 10, 0, 2)
    assert partition.tick(5_000) == ()
    shrunk = partition.settings_changed(PartitionSettings(min_insync_replicas=2, replica_lag_time_max_ms=1_000), 5_001)
    assert proposal(shrunk).state.isr == (1,)


async def test_topics_that_set_nothing_have_the_new_defaults() -> None:
    leader = Leader(2)
    manager = leader.replica_manager
    manager.host(key(1), "t", {"max.message.bytes": "777", "min.insync.replicas": "1"})
    manager.settings_changed(MINIMUM_2, message_max_bytes=5_000, cleanup_policy="compact", tail_cache_bytes=9)
    zero, one = leader.hosted(0), leader.hosted(1)
    assert (zero.config.max_message_bytes, zero.config.min_insync_replicas, zero.config.compacted) == (5_000, 2, True)
    assert (one.config.max_message_bytes, one.config.min_insync_replicas, one.config.compacted) == (777, 1, True)
    assert manager._tail_budget.max_bytes == 9
    manager.host(key(2), "t", {})
    assert leader.hosted(2).config == zero.config
    assert leader.hosted(2).partition.settings == MINIMUM_2


def test_a_smaller_tail_cache_drops_the_oldest_at_once() -> None:
    budget = TailCacheBudget(1000)
    caches = [TailCache(budget) for _ in range(2)]
    for cache in caches:
        cache.bind(EPOCH, INCARNATION, 0)
        cache.append(EPOCH, INCARNATION, [batch(0), batch(1)])
    budget.resize(25)
    assert budget.used_bytes == 20
    assert not caches[0].covers(0)
    assert content(caches[1].read(0, 100, FAR)) == b"\x00" * 10 + b"\x01" * 10
    budget.resize(0)
    assert budget.used_bytes == 0
    one = bound_cache(0)
    one.append(EPOCH, INCARNATION, [batch(0)])
    assert not one.covers(0)


def test_other_bounds_of_responses_let_those_go_that_wait() -> None:
    budget = ResponseBudget(400, message_max_bytes=100, waited=lambda granted: None)
    held = budget.consumers.take(300)
    assert held is not None
    held.settle(300)
    granted = []
    budget.consumers.wait(100, granted.append)
    assert not granted
    budget.resize(4_000, 100)
    assert [grant.size_bytes for grant in granted] == [100]
    assert (budget.consumers.max_bytes, budget.replicas.max_bytes) == (3_000, 1_000)
    budget.resize(100, 100)
    assert budget.consumers.take(50) is None


@pytest.mark.parametrize("limit", [100, 5_000])
async def test_fetches_are_answered_within_the_new_size(limit: int) -> None:
    leader = Leader()
    leader.handler.resize(limit, 10_000)
    assert leader.handler.max_bytes == limit
    assert leader.handler.budget.replicas.max_bytes == 2_500


def stated(service: ReplicaManagerService) -> dict[str, object]:
    """What the keys come to where they are looked at."""
    manager = service.replica_manager
    return {
        "auto.create.topics.enable": service._topic_creation.enabled,
        "fetch.max.bytes": service.fetch_handler.max_bytes,
        "fetch.responses.max.bytes": sum(
            each.max_bytes for each in (service.fetch_handler.budget.replicas, service.fetch_handler.budget.consumers)
        ),
        "log.cleanup.policy": manager.topic_config({}).compacted,
        "message.max.bytes": (manager.topic_config({}).max_message_bytes, manager.message_max_bytes),
        "min.insync.replicas": (manager.topic_config({}).min_insync_replicas, manager.settings.min_insync_replicas),
        "queued.max.request.bytes": service._produce_handler.room.max_bytes,
        "queued.max.requests": (service._produce_handler.room.max_requests, manager.purgatory.produces.limit),
        "replica.lag.time.max.ms": manager.settings.replica_lag_time_max_ms,
        "tail.cache.bytes": manager._tail_budget.max_bytes,
    }


class LogStorage:
    """Has the values that it heard last; the calls that make logs are heard when the test says so."""

    def __init__(self) -> None:
        self.values: Mapping[str, str] = {}
        self.told = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def alter_broker_config(self, values: Mapping[str, str]) -> tuple[str, Sequence[Any]]:
        self.values = values
        self.told.set()
        await self.goes_on.wait()
        return "ls", (common_pb2.StaticSetting(key="log.dirs", service="log-storage"),)


def config_of(keys: Keys) -> tuple[BrokerConfig, WatchedConfigs]:
    """A broker's, as etcd has none."""
    store: Any = None
    configs = WatchedConfigs(store, keys, (EntityKind.BROKERS, EntityKind.CLUSTER))
    for kind in configs.view.kinds:
        configs.view.list(kind, Listing((), 5))
    settings = load(
        ReplicaManagerSettings,
        {"broker.id": "1", "listeners": "INTERNAL://unix:rm", "log.storage": "unix:ls", "etcd": "127.0.0.1:1"},
    )
    return BrokerConfig(settings, configs, lambda settings: None), configs


async def test_what_services_were_started_with_is_described_when_they_have_told() -> None:
    """It was described without log-storage's keys, a moment after the broker had registered."""
    config, _ = config_of(Keys("highwater"))
    client: Any = LogStorage()
    await config.read()
    described = asyncio.create_task(config.static_settings())
    assert not (await asyncio.wait([described], timeout=0.05))[0]
    await config.tell_log_storage(client, "ls")
    assert not (await asyncio.wait([described], timeout=0.05))[0]
    await anext(config.watch([common_pb2.StaticSetting(key="num.replica.fetchers", service="fetcher")]))
    async with asyncio.timeout(10):
        assert {each.service for each in await described} == {"replica-manager", "log-storage", "fetcher"}


async def test_a_fetcher_that_is_away_is_described_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_config, "FETCHER_TELLS_WITHIN_S", 0.01)
    config, _ = config_of(Keys("highwater"))
    client: Any = LogStorage()
    await config.read()
    await config.tell_log_storage(client, "ls")
    async with asyncio.timeout(10):
        assert {each.service for each in await config.static_settings()} == {"replica-manager", "log-storage"}


async def test_earlier_values_that_went_with_new_logs_do_not_stay() -> None:
    """A call that makes many logs is larger than the one that says what is set now, and may be heard after it."""
    keys, cluster = Keys("highwater"), {"message.max.bytes": "6000"}
    (config, configs), storage = config_of(keys), LogStorage()
    client: Any = storage
    await config.read()
    earlier = config.values
    assert earlier is not None
    entry = Entry(keys.entity_config(CLUSTER), json.dumps(cluster).encode(), 6, 6, 0)
    configs.view.apply(EntityKind.CLUSTER, [Event(entry.key, entry, 6)])
    await config.tell_log_storage(client, "ls")
    assert storage.values == cluster

    storage.values = earlier  # heard now
    config.went_with_logs(earlier)
    await config.tell_log_storage(client, "ls")
    assert storage.values == cluster

    storage.told.clear()
    storage.goes_on.clear()
    config.went_with_logs(earlier)
    telling = asyncio.create_task(config.tell_log_storage(client, "ls"))
    await storage.told.wait()
    storage.values = earlier  # while the call that says it is not answered
    config.went_with_logs(earlier)
    storage.goes_on.set()
    await telling
    await config.tell_log_storage(client, "ls")
    assert storage.values == cluster

    storage.told.clear()
    config.went_with_logs(config.values)
    await config.tell_log_storage(client, "ls")
    assert not storage.told.is_set(), "what counts is not told twice"


async def test_what_went_with_new_logs_is_said_when_the_call_is_over() -> None:
    earlier = {"log.roll.ms": "5"}
    values: Mapping[str, str] = earlier
    went: list[Mapping[str, str] | None] = []
    client = LogStorageClient(
        open_channel("unix:/nobody"), timeout_s=5, broker_config=lambda: values, config_went=went.append
    )

    async def create_logs(request: log_storage_pb2.CreateLogsRequest, timeout: float) -> Any:
        assert not went
        assert dict(request.broker_config.values) == {"log.roll.ms": "5"}
        nonlocal values
        values = {"log.roll.ms": "6"}
        raise asyncio.CancelledError

    stub: Any = SimpleNamespace(CreateLogs=create_logs)
    client._stub = stub
    with pytest.raises(asyncio.CancelledError):
        await client._create_some([])
    assert went == [earlier]
    await client.close()


async def test_each_key_reaches_what_it_is_for_and_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "broker.id": "1",
        "listeners": f"INTERNAL://unix:{tmp_path}/rm",
        "log.storage": f"unix:{tmp_path}/ls",
        "etcd": "127.0.0.1:1",
        "queued.max.requests": "7",
    }
    service = ReplicaManagerService(load(ReplicaManagerSettings, values))
    before, view, keys = stated(service), service.configs.view, Keys("highwater")
    brokers = {
        "fetch.max.bytes": "2000",
        "fetch.responses.max.bytes": str(4 << 20),
        "queued.max.request.bytes": str(2 << 20),
        "queued.max.requests": "9",
        "replica.lag.time.max.ms": "3000",
        "tail.cache.bytes": "5",
    }
    cluster = {
        "auto.create.topics.enable": "true",
        "log.cleanup.policy": "compact",
        "message.max.bytes": "6000",
        "min.insync.replicas": "2",
    }
    assert brokers.keys() == REPLICA_MANAGER_KEYS.keys()

    def entry(entity: ConfigEntity, config: dict[str, str]) -> Entry:
        return Entry(keys.entity_config(entity), json.dumps(config).encode(), 5, 5, 0)

    view.list(EntityKind.BROKERS, Listing((entry(BrokerEntity(2), {"tail.cache.bytes": "77"}),), 5))
    view.list(EntityKind.CLUSTER, Listing((entry(CLUSTER, cluster),), 5))
    for kind in (EntityKind.CLIENTS, EntityKind.USERS):
        view.list(kind, Listing((), 5))
    await service.config.read()
    made = entry(BrokerEntity(1), brokers)
    view.apply(EntityKind.BROKERS, [Event(made.key, made, 6)])
    assert stated(service) == {
        "auto.create.topics.enable": True,
        "fetch.max.bytes": 2000,
        "fetch.responses.max.bytes": 4 << 20,
        "log.cleanup.policy": True,
        "message.max.bytes": (6000, 6000),
        "min.insync.replicas": (2, 2),
        "queued.max.request.bytes": 2 << 20,
        "queued.max.requests": (9, 9 * 64),
        "replica.lag.time.max.ms": 3000,
        "tail.cache.bytes": 5,
    }
    assert service.config.values == brokers | cluster
    for entity in (BrokerEntity(1), CLUSTER):
        view.apply(entity.kind, [Event(keys.entity_config(entity), None, 7)])
    assert stated(service) == before
    assert before["queued.max.requests"] == (7, 7 * 64)
    assert service.config.values == {}
    storage: Any = LogStorage()
    await service.config.tell_log_storage(storage, "ls")
    monkeypatch.setattr(broker_config, "FETCHER_TELLS_WITHIN_S", 0.01)  # there is none
    told = {(each.service, each.key): each.value for each in await service.config.static_settings()}
    assert told["replica-manager", "queued.max.requests"] == "7"
    await service.stop(deregister=False)
