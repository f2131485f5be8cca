"""A broker's listeners over real sockets: what each serves, what it tells, and whose addresses they are."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, Trio, eventually

from highwater.metadata.brokers import read_brokers
from highwater.metadata.keys import Keys
from highwater.metadata.local import LocalEtcd
from highwater.metadata.models import BrokerRegistration
from highwater.metadata.store import Store
from highwater.metadata.transactions import Delete
from highwater.replica_manager import liveness
from highwater.rpc.channel import open_channel
from highwater.rpc.server import UserError
from highwater.v1 import broker_pb2, broker_pb2_grpc


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=2) as running:
        yield running


async def addresses(trio: Trio, address: str) -> dict[int, str]:
    async with open_channel(address) as channel:
        response = await broker_pb2_grpc.BrokerStub(channel).Metadata(broker_pb2.MetadataRequest(), timeout=5)
    return {broker.broker_id: broker.address for broker in response.brokers}


async def test_each_listener_tells_its_own_addresses(cluster: TestCluster) -> None:
    registered = await read_brokers(cluster.store, cluster.keys)
    for trio in cluster.trios.values():
        internal = f"unix:{trio.directory}/rm"
        registration = registered[trio.broker_id].registration
        assert registration.address == internal
        assert registration.listeners == {"INTERNAL": internal, "CLIENT": trio.client_address}

        async def known(trio: Trio = trio) -> bool:
            return len(await addresses(trio, trio.client_address)) == 2

        await eventually(known, "both brokers are known")
        assert await addresses(trio, trio.client_address) == {
            other.broker_id: other.client_address for other in cluster.trios.values()
        }
        assert await addresses(trio, internal) == {
            other.broker_id: f"unix:{other.directory}/rm" for other in cluster.trios.values()
        }


async def test_a_broker_with_another_brokers_address_does_not_register(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once it may be what a killed process has left: its lease is waited for."""
    monkeypatch.setattr(liveness, "LEASES_WAITED_FOR", 0.5)
    trio = Trio(1, tmp_path, etcd.address, keys.cluster)
    other = BrokerRegistration(2, "elsewhere:1", uuid.uuid4().hex, "s", listeners={"EXTERNAL": trio.client_address})
    await store.put(keys.broker(2), other.to_json())
    try:
        await trio.start_log_storage()
        with pytest.raises(AssertionError, match="registers"):
            await trio.start_replica_manager(registered_within_s=0.5)
        manager = trio.replica_manager
        assert manager is not None

        async def failed() -> bool:
            return manager.failed.done()

        await eventually(failed, "the process is told to end")
        with pytest.raises(
            UserError, match=r"broker 2 is registered at unix:.*/c already, .*CLIENT: give every broker"
        ):
            manager.failed.result()
        assert 1 not in await read_brokers(store, keys)
    finally:
        await trio.stop()


async def test_an_address_that_is_given_up_in_time_is_taken_over(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    trio = Trio(1, tmp_path, etcd.address, keys.cluster)
    await store.put(keys.broker(2), BrokerRegistration(2, trio.client_address, "killed", "s").to_json())
    await store.put(keys.broker(3), b"edited by hand")  # no reason for another broker not to register
    try:
        await trio.start_log_storage()
        with pytest.raises(AssertionError, match="registers"):
            await trio.start_replica_manager(registered_within_s=0.5)
        await store.txn((), (Delete(keys.broker(2)), Delete(keys.broker(3))))
        await trio.registered()
    finally:
        await trio.stop()


async def test_of_two_that_register_at_once_the_later_one_yields(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sees the other before it registers."""
    monkeypatch.setattr(liveness, "LEASES_WAITED_FOR", 0)
    trio = Trio(1, tmp_path, etcd.address, keys.cluster)
    register = liveness.BrokerRegistrar.register

    async def beaten(registrar: liveness.BrokerRegistrar, registration: BrokerRegistration) -> int:
        await store.put(keys.broker(2), BrokerRegistration(2, trio.client_address, "earlier", "s").to_json())
        return await register(registrar, registration)

    monkeypatch.setattr(liveness.BrokerRegistrar, "register", beaten)
    try:
        await trio.start_log_storage()
        with pytest.raises(AssertionError, match="registers"):
            await trio.start_replica_manager(registered_within_s=1)
        assert set(await read_brokers(store, keys)) == {2}
    finally:
        await trio.stop()
