"""Backups taken from a real etcd, and plans written into one: in steps that may be interrupted, and beside nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from highwater.errors import UserError
from highwater.kube.lost_etcd import metadata
from highwater.kube.lost_etcd.inventory import BrokerInventory, Directory, Replica
from highwater.kube.lost_etcd.metadata import MARKER, take_backup, write_plan
from highwater.kube.lost_etcd.plan import Plan, plan
from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.schema.cluster_view import decode_snapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.cluster_id import ensure_cluster_id
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Put
from highwater.model.leader_epochs import EpochEntry

PARTITIONS = 300  # more than a transaction holds


def made(epoch: int = 3) -> Plan:
    logs = tuple(
        Replica("orders", b"o" * 16, partition, 0, 5, 0, (EpochEntry(3, 0),), 3, epoch, 3)
        for partition in range(PARTITIONS)
    )
    return plan([BrokerInventory(1, "ours", (Directory("/data", "one"),), logs)])


def candidate(store: Store, keys: Keys) -> ControllerElection:
    return ControllerElection(store, keys, controller_id=5, address="c:1", incarnation="five", session_timeout_ms=2_000)


async def test_all_is_there_when_the_clusters_id_is(store: Store, keys: Keys) -> None:
    assert await write_plan(store, keys, made())
    snapshot = decode_snapshot(keys, await store.get_prefix(keys.everything))
    assert len(snapshot.states) == PARTITIONS == len(snapshot.topics["orders"].assignment.replicas)
    assert all(versioned.state.isr == (1,) for versioned in snapshot.states.values())
    assert snapshot.controller is None
    assert await ensure_cluster_id(store, keys, "another") == "ours"
    assert await store.get(keys.prefix + MARKER) is None
    assert not await write_plan(store, keys, made())  # it is done


async def test_what_was_interrupted_is_gone_on_with_by_the_same_input_alone(
    store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all, calls = metadata._put_all, 0

    async def put_some(store: Store, keys: Keys, term: object, values: Sequence[tuple[str, bytes]]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("killed")
        await put_all(store, keys, term, values)  # type: ignore[arg-type]

    monkeypatch.setattr(metadata, "_put_all", put_some)
    with pytest.raises(ConnectionError):
        await write_plan(store, keys, made())
    snapshot = decode_snapshot(keys, await store.get_prefix(keys.everything))
    assert (len(snapshot.states), len(snapshot.topics)) == (PARTITIONS, 0)
    with pytest.raises(UserError, match="half there"):
        await take_backup(store, keys, 0)
    with pytest.raises(UserError, match="same inventories"):
        await write_plan(store, keys, made(epoch=4))
    assert await store.get(keys.cluster_id) is None
    assert await write_plan(store, keys, made())
    assert (await take_backup(store, keys, 0)).cluster_id == "ours"


async def test_what_a_cluster_has_stays_unless_it_is_to_go(store: Store, keys: Keys) -> None:
    await write_plan(store, keys, made())
    with pytest.raises(UserError, match="nothing is written over it"):
        await write_plan(store, keys, made(epoch=4))
    await store.put(keys.topic_config("stray"), b"{}")
    assert await write_plan(store, keys, made(epoch=4), replace=True)
    assert await store.get(keys.topic_config("stray")) is None


async def test_what_controllers_made_of_an_empty_etcd_is_no_obstacle(store: Store, keys: Keys) -> None:
    await ensure_cluster_id(store, keys, "by-chance")
    await store.put(keys.controller_epoch, b"2000000")
    assert await write_plan(store, keys, made())
    assert await ensure_cluster_id(store, keys, "another") == "ours"
    election = candidate(store, keys)
    assert (await election.campaign()).controller_epoch > 2_000_000
    await election.resign()


async def test_no_controller_acts_on_a_part_of_it(store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    election, put_all = candidate(store, keys), metadata._put_all
    campaigns: list[asyncio.Task[object]] = []

    async def with_a_candidate(store: Store, keys: Keys, term: object, values: Sequence[tuple[str, bytes]]) -> None:
        campaigns.append(asyncio.create_task(election.campaign()) if not campaigns else campaigns[0])
        await asyncio.sleep(0.2)
        assert not campaigns[0].done()
        await put_all(store, keys, term, values)  # type: ignore[arg-type]

    monkeypatch.setattr(metadata, "_put_all", with_a_candidate)
    await write_plan(store, keys, made())
    async with asyncio.timeout(10):
        await campaigns[0]
    assert (await store.get(keys.cluster_id)) is not None
    await election.resign()


async def test_who_is_registered_or_acts_is_to_be_stopped_first(
    store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ELECTED_S", 0.3)
    lease, _ = await store.lease_grant(60)
    await store.put(keys.broker(3), b"{}", lease=lease)
    with pytest.raises(UserError, match="brokers 3 are registered"):
        await write_plan(store, keys, made())
    await store.lease_revoke(lease)
    election = candidate(store, keys)
    await election.campaign()
    with pytest.raises(UserError, match="another controller acts"):
        await write_plan(store, keys, made())
    await election.resign()
    assert await write_plan(store, keys, made())


async def test_a_backup_has_what_lasts_at_one_revision(store: Store, keys: Keys) -> None:
    with pytest.raises(UserError, match="holds no cluster"):
        await take_backup(store, keys, 0)
    lease, _ = await store.lease_grant(60)
    await store.txn((), (Put(keys.cluster_id, b"ours"), Put(keys.producer_ids, json.dumps({"next": 7}).encode())))
    await store.put(keys.broker(3), b"{}", lease=lease)
    await store.put(f"{keys.prefix}2/cluster_id", b"a neighbour's")
    backup = await take_backup(store, keys, 1234)
    assert backup.entries == {"/cluster_id": b"ours", "/producer_ids": b'{"next": 7}'}
    assert (backup.cluster, backup.cluster_id, backup.taken_ms) == (keys.cluster, "ours", 1234)
    await store.lease_revoke(lease)
