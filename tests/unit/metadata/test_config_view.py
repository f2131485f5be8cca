"""Dynamic configurations as they are read from etcd: listed, changed, and what of them cannot be taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.configuration.dynamic_keys import KEEP_ALL_RECORDS
from highwater.configuration.entities import (
    CLUSTER,
    DEFAULT_BROKER,
    BrokerEntity,
    ClientEntity,
    ConfigEntity,
    EntityKind,
    UserClientEntity,
    UserEntity,
)
from highwater.metadata.schema import config_view
from highwater.metadata.schema.config_view import ConfigView, overlaid
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.dynamic_configs import WatchedConfigs
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.transactions import Entry, Event, Listing, WatchBatch
from highwater.supervision import TaskGroup

KEYS = Keys("test")
NAMES = st.none() | st.text(min_size=1, max_size=20).filter(str.isprintable) | st.just("__default")


class Told:
    def __init__(self) -> None:
        self.heard: list[tuple[ConfigEntity, Mapping[str, str]]] = []

    def on_change(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        self.heard.append((entity, config))


def entry(entity: ConfigEntity | str, config: object, revision: int = 5) -> Entry:
    key = entity if isinstance(entity, str) else KEYS.entity_config(entity)
    value = config if isinstance(config, bytes) else json.dumps(config).encode()
    return Entry(key, value, revision, revision, 0)


def listed(*entries: Entry, kind: EntityKind = EntityKind.BROKERS) -> tuple[ConfigView, UnreadableEntries, Told]:
    unreadable, told = UnreadableEntries(), Told()
    view = ConfigView(KEYS, tuple(EntityKind), unreadable)
    view.subscribe(told, tuple(EntityKind))
    view.list(kind, Listing(entries, 10))
    return view, unreadable, told


def put(view: ConfigView, made: Entry, kind: EntityKind = EntityKind.BROKERS) -> None:
    view.apply(kind, [Event(made.key, made, made.mod_revision)])


@given(user=NAMES, client=NAMES, broker=st.none() | st.integers(0, 1 << 31))
def test_a_key_names_what_it_was_made_for(user: str | None, client: str | None, broker: int | None) -> None:
    entities = (CLUSTER, BrokerEntity(broker), ClientEntity(client), UserEntity(user), UserClientEntity(user, client))
    for entity in entities:
        key = KEYS.entity_config(entity)
        assert key.startswith(KEYS.entity_configs[entity.kind])
        assert KEYS.parse_entity_config(key) == entity
        assert key.isascii()


def test_the_keys_are_kafkas() -> None:
    assert KEYS.entity_config(DEFAULT_BROKER) == "/highwater/test/config/brokers/__default"
    assert KEYS.entity_config(UserClientEntity("anna", None)) == "/highwater/test/config/users/anna/clients/__default"
    assert KEYS.entity_config(ClientEntity("a/b")) == "/highwater/test/config/clients/a%2Fb"
    assert KEYS.entity_config(ClientEntity("__default")) == "/highwater/test/config/clients/%5F_default"


@pytest.mark.parametrize(
    "path",
    [
        *("brokers/x", "brokers/01", "brokers/1/2", "clients/%61", "clients/a%", "clients/", "users/a/b", "clusters"),
        *("users/a/clients/", "topics/flights", "clients/a%00", "clients/%ff", "clients/" + "a" * 256),
    ],
)
def test_what_no_entity_makes_is_no_key(path: str) -> None:
    assert KEYS.parse_entity_config(f"/highwater/test/config/{path}") is None


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b"])
def test_names_that_nobody_may_have_make_no_key(name: str) -> None:
    with pytest.raises(ValueError, match="the name"):
        KEYS.entity_config(ClientEntity(name))


def test_a_listing_and_changes_are_told() -> None:
    view, _, told = listed(entry(BrokerEntity(1), {"log.level": "DEBUG"}))
    put(view, entry(DEFAULT_BROKER, {"log.level": "ERROR"}))
    view.apply(EntityKind.BROKERS, [Event(KEYS.entity_config(BrokerEntity(1)), None, 12)])
    assert told.heard == [
        (BrokerEntity(1), {"log.level": "DEBUG"}),
        (DEFAULT_BROKER, {"log.level": "ERROR"}),
        (BrokerEntity(1), {}),
    ]
    assert view.config(BrokerEntity(1)) == {}
    assert view.config(DEFAULT_BROKER) == {"log.level": "ERROR"}


def test_another_listing_tells_what_differs_and_who_subscribes_late_hears_everything() -> None:
    same, gone, new = (entry(BrokerEntity(number), {"log.level": "DEBUG"}) for number in range(3))
    view, _, told = listed(same, gone)
    told.heard.clear()
    view.list(EntityKind.BROKERS, Listing((same, new), 20))
    assert told.heard == [(BrokerEntity(1), {}), (BrokerEntity(2), {"log.level": "DEBUG"})]
    late = Told()
    view.subscribe(late, [EntityKind.BROKERS])
    assert dict(late.heard) == {BrokerEntity(0): {"log.level": "DEBUG"}, BrokerEntity(2): {"log.level": "DEBUG"}}


def test_it_is_listed_when_every_kind_is() -> None:
    view, _, _ = listed()
    for kind in (EntityKind.CLIENTS, EntityKind.CLUSTER):
        view.list(kind, Listing((), 10))
        assert not view.listed
    view.list(EntityKind.USERS, Listing((), 10))
    assert view.listed


@pytest.mark.parametrize(
    "config",
    [
        *(b"\xff", b"{", [], {"log.level": 1}, {"log.level": "LOUD"}, {"log.level": "DEBUG", "x": "y" * 9_000}),
        *({"log.lvl": "INFO"}, {"num.partitions": "3"}),
    ],
)
def test_what_cannot_be_taken_is_left_out_and_named_until_it_can(config: object) -> None:
    view, unreadable, _ = listed(entry(BrokerEntity(2), config), entry(BrokerEntity(1), {"log.level": "DEBUG"}))
    assert view.config(BrokerEntity(2)) == {}
    assert view.config(BrokerEntity(1)) == {"log.level": "DEBUG"}
    assert len(unreadable) == 1
    put(view, entry(BrokerEntity(2), {"log.level": "INFO"}))
    assert view.config(BrokerEntity(2)) == {"log.level": "INFO"}
    assert len(unreadable) == 0


def test_good_keys_of_an_entry_are_taken_beside_bad_ones() -> None:
    view, unreadable, _ = listed(entry(BrokerEntity(2), {"log.level": "LOUD", "log.roll.ms": "5"}))
    assert view.config(BrokerEntity(2)) == {"log.roll.ms": "5"}
    assert len(unreadable) == 1


@pytest.mark.parametrize("config", [b"{", {"log.retention.ms": "long"}, {"log.retention.bytes": ""}])
def test_where_retention_cannot_be_read_nothing_is_deleted(config: object) -> None:
    view, _, told = listed(entry(DEFAULT_BROKER, config), entry(BrokerEntity(1), {"log.retention.ms": "5"}))
    assert overlaid(view, (BrokerEntity(1), DEFAULT_BROKER)) == KEEP_ALL_RECORDS
    assert (DEFAULT_BROKER, {}) in told.heard
    view.list(EntityKind.BROKERS, Listing((entry(BrokerEntity(1), {"log.retention.ms": "5"}),), 11))
    assert overlaid(view, (BrokerEntity(1), DEFAULT_BROKER)) == {"log.retention.ms": "5"}
    assert told.heard.count((DEFAULT_BROKER, {})) == 2


def test_a_damaged_policy_of_the_cluster_deletes_nothing_either() -> None:
    view, _, _ = listed(entry(CLUSTER, {"log.cleanup.policy": "drop"}), kind=EntityKind.CLUSTER)
    assert overlaid(view, (CLUSTER,)) == KEEP_ALL_RECORDS


class WatchedEtcd:
    """A store whose watch tells what it is given, when it is given it."""

    def __init__(self, *entries: Entry) -> None:
        self.listing = Listing(entries, 10)
        self.batches: asyncio.Queue[WatchBatch] = asyncio.Queue()

    async def get_prefix(self, prefix: str) -> Listing:
        return self.listing

    async def watch_prefix(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch]:
        while True:
            yield await self.batches.get()


async def test_a_reader_that_must_not_be_behind_waits_for_its_watch() -> None:
    key = KEYS.entity_config(CLUSTER)
    etcd: Any = WatchedEtcd(entry(CLUSTER, {"num.partitions": "1"}))
    configs = WatchedConfigs(etcd, KEYS, (EntityKind.CLUSTER,))
    async with asyncio.timeout(10), TaskGroup() as tasks:
        following = tasks.create_task(configs.follow())
        await configs.listed()
        await configs.caught_up(CLUSTER)  # with nothing behind it, at once

        newest = entry(CLUSTER, {"num.partitions": "3"}, revision=12)
        etcd.listing = Listing((newest, entry(key + "x", {}, revision=99)), 99)
        catching_up = tasks.create_task(configs.caught_up(CLUSTER))
        etcd.batches.put_nowait(WatchBatch((Event(key, entry(CLUSTER, {"num.partitions": "2"}, revision=11), 11),), 11))
        await configs.until(lambda: configs.view.config(CLUSTER) == {"num.partitions": "2"})
        await asyncio.sleep(0)
        assert not catching_up.done()
        etcd.batches.put_nowait(WatchBatch((Event(key, newest, 12),), 12))
        await catching_up
        assert configs.view.config(CLUSTER) == {"num.partitions": "3"}

        etcd.listing = Listing((), 13)
        catching_up = tasks.create_task(configs.caught_up(CLUSTER))
        await asyncio.sleep(0)
        assert not catching_up.done()
        etcd.batches.put_nowait(WatchBatch((Event(key, None, 13),), 13))
        await catching_up
        assert configs.view.config(CLUSTER) == {}
        following.cancel()


@pytest.mark.parametrize("config", [b"{", {"unclean.leader.election.enable": "no"}])
def test_where_unclean_elections_may_be_forbidden_there_are_none(config: object) -> None:
    view, _, _ = listed(entry(CLUSTER, config), kind=EntityKind.CLUSTER)
    assert overlaid(view, (CLUSTER,))["unclean.leader.election.enable"] == "false"


def test_a_brokers_own_value_goes_before_the_default_of_brokers() -> None:
    own = entry(BrokerEntity(1), {"log.level": "DEBUG"})
    view, _, _ = listed(own, entry(DEFAULT_BROKER, {"log.level": "ERROR", "log.roll.ms": "9"}))
    assert overlaid(view, (BrokerEntity(1), DEFAULT_BROKER)) == {"log.level": "DEBUG", "log.roll.ms": "9"}


def test_entities_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_view, "MOST_ENTITIES", 2)
    made = [entry(ClientEntity(f"c{number}"), {"producer_byte_rate": "1"}) for number in range(4)]
    view, unreadable, _ = listed(*made[:3], kind=EntityKind.CLIENTS)
    put(view, made[3], EntityKind.CLIENTS)
    assert list(view.entities(EntityKind.CLIENTS)) == [ClientEntity("c0"), ClientEntity("c1")]
    assert len(unreadable) == 2
    put(view, entry(ClientEntity("c0"), {"producer_byte_rate": "7"}), EntityKind.CLIENTS)
    assert view.config(ClientEntity("c0")) == {"producer_byte_rate": "7"}


def test_what_is_listed_counts_when_all_of_it_is_read_and_others_have_their_turns_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config_view, "AT_ONCE", 10)
    view, _, told = listed(*(entry(BrokerEntity(number), {"log.retention.ms": "5"}) for number in range(40)))
    assert len(told.heard) == 40
    told.heard.clear()
    changed = [entry(BrokerEntity(number), {"log.retention.ms": "6"}, 11) for number in range(10, 50)]
    broken = entry(BrokerEntity(60), b"nonsense", 11)
    pieces = 0
    for _ in view.listing(EntityKind.BROKERS, Listing((*changed, broken), 20)):
        pieces += 1
        assert len(told.heard) <= 10 * pieces
        if not told.heard:  # it is being read
            assert view.config(BrokerEntity(0)) == {"log.retention.ms": "5"}
            assert not view.keeps_all([BrokerEntity(60)])
        # What another kind's watch finds meanwhile stays.
        put(view, entry(CLUSTER, b"nonsense", 12), EntityKind.CLUSTER)
        told.heard = [each for each in told.heard if each[0] != CLUSTER]
    assert pieces >= 8
    assert len(told.heard) == 51
    assert view.keeps_all([BrokerEntity(60)])
    assert view.keeps_all([CLUSTER])
