"""A broker's listeners over real sockets: what each serves, what it tells, and whose addresses they are."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from controller_world import World, acts
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from replica_manager_cluster import TestCluster, Trio, eventually, fetch_request, rows, to_key

from highwater.client import (
    Admin,
    InvalidRequestError,
    TopicAlreadyExistsError,
    TopicResult,
)
from highwater.client.admin import replica_verification
from highwater.client.cluster.connection import Connection
from highwater.errors import ErrorCode, UserError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete
from highwater.replica_manager.membership import liveness
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    common_pb2,
    replica_control_pb2,
    replica_control_pb2_grpc,
)


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


async def test_a_client_listener_refuses_what_is_not_for_clients(cluster: TestCluster) -> None:
    leader = cluster[0]
    topic = await cluster.create_topic("t", (0, 1))
    assert (await leader.produce(topic.key, rows(b"one"), acks=1)).error.code == common_pb2.ERROR_CODE_NONE
    async with open_channel(leader.client_address) as channel:
        stub: Any = broker_pb2_grpc.BrokerStub(channel)
        debug = fetch_request(topic.key, 0)
        debug.debug.SetInParent()
        replica = fetch_request(topic.key, 0, leader_epoch=0)
        replica.replica.broker_id, replica.replica.broker_epoch = 1, cluster[1].broker_epoch
        unary = await stub.Fetch(debug)
        streamed = []
        for request in (debug, replica):
            stream = stub.FetchStream()
            await stream.write(request)
            streamed.append(await stream.read())
            assert await stream.read() is grpc.aio.EOF
        for response in (unary, *streamed):
            assert from_proto(response.error) is ErrorCode.INVALID_REQUEST
            assert not response.error.retriable
            assert "refused on listener CLIENT" in response.error.message
            assert "internal listener, INTERNAL (inter.broker.listener.name)" in response.error.message
        part = broker_pb2.ListOffsetsPartition(partition=to_key(topic.key), leader_epoch=-1, timestamp=-2)
        for replica_id, error in (
            (-1, ErrorCode.NONE),
            (-2, ErrorCode.INVALID_REQUEST),
            (1, ErrorCode.INVALID_REQUEST),
        ):
            (listed,) = (
                await stub.ListOffsets(broker_pb2.ListOffsetsRequest(partitions=[part], replica_id=replica_id))
            ).results
            assert from_proto(listed.error) is error, replica_id
        consumer = fetch_request(topic.key, 0)
        consumer.consumer.SetInParent()
        (fetched,) = (await stub.Fetch(consumer)).results
        assert from_proto(fetched.error) is ErrorCode.NONE
        control: Any = replica_control_pb2_grpc.ReplicaControlStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await control.UpdateMetadata(replica_control_pb2.UpdateMetadataRequest(full=True), timeout=5)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert (await leader.fetch(topic.key, debug=True)).records  # by the internal listener


async def test_replicas_whose_records_are_compared_are_verified_by_the_internal_listener(cluster: TestCluster) -> None:
    """As where compaction has changed a batch of one of them."""
    topic = await cluster.create_topic("t", (0, 1))
    await cluster[0].produce(topic.key, rows(b"one"), acks=1)
    for address, found in ((f"unix:{cluster[0].directory}/rm", [0]), (cluster[0].client_address, [])):
        connection = Connection(address)
        source = replica_verification._Replica(0, connection, to_key(topic.key), check_crcs=False)
        try:
            if found:
                assert list(await replica_verification._records_at(source, 0)) == found
            else:
                with pytest.raises(InvalidRequestError, match="connect to the brokers' internal listener, INTERNAL"):
                    await replica_verification._records_at(source, 0)
        finally:
            await connection.close()


async def health(address: str, name: str) -> bool:
    async with open_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def services(address: str) -> set[str]:
    async with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = [each async for each in stub.ServerReflectionInfo(iter([question]), timeout=5)]
    return {each.name.removeprefix("highwater.v1.") for each in answer.list_services_response.service}


async def test_every_listener_and_the_health_listener_tell_the_same_health(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    apart = f"unix:{tmp_path}/h"
    trio = Trio(1, tmp_path, etcd.address, keys.cluster, {"health.listen": apart})
    beside = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    try:
        await trio.start_log_storage()
        await trio.start_replica_manager()
        manager = trio.replica_manager
        assert manager is not None
        everywhere = (f"unix:{tmp_path}/rm", trio.client_address, apart)

        async def serves() -> bool:
            return all([await health(address, "highwater.v1.Broker") for address in everywhere])

        await eventually(serves, "it serves by all listeners")
        for address in everywhere:
            assert await health(address, "live")
            assert not await health(address, "ready")  # no controller has said so
        await manager.servers.set_serving(False)
        assert [await health(address, "highwater.v1.Broker") for address in everywhere] == [False] * 3
        clients = {"Broker", "GroupCoordinator", "Controller"}
        assert await services(trio.client_address) == {*clients, *beside}
        assert await services(f"unix:{tmp_path}/rm") == {*clients, "ReplicaControl", *beside}
        assert await services(apart) == beside
    finally:
        await trio.stop()


async def test_administration_by_a_client_listener_while_controllers_come_and_go(
    world: World, etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    first = await world.controller(0)
    await acts(first)
    second = await world.controller(1)
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as cluster:
        manager = cluster[0].replica_manager
        assert manager is not None

        async def told() -> bool:
            return manager.replica_manager.metadata.complete

        await eventually(told, "the controller has told the broker of everything")
        async with Admin(cluster[0].client_address) as admin:
            (described,) = (await admin.describe_cluster()).brokers
            assert described.address == cluster[0].client_address
            assert [one.problem for one in await admin.check_brokers()] == [None]
            assert (await admin.create_topic("before", 1, 1)).error is None
            failing_over = asyncio.create_task(first.stop())
            creating = (admin.create_topic(f"during-{number}", 1, 1) for number in range(5))
            made = await asyncio.gather(*creating, return_exceptions=True)
            # One whose answer was lost with the controller is made already when it is asked for again.
            assert all(isinstance(each, TopicResult | TopicAlreadyExistsError) for each in made), made
            await failing_over
            assert (await admin.describe_cluster()).controller_id == 1
            with pytest.raises(TopicAlreadyExistsError, match="before"):
                await admin.create_topic("before", 1, 1)
            assert set(await admin.list_topics()) == {"before", *(f"during-{number}" for number in range(5))}
    assert second.active_controller is not None


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
        manager = trio.replica_manager
        assert manager is not None
        with pytest.raises(UserError, match="broker 2 is registered"):
            await asyncio.wait_for(manager.failed, 5)
        assert set(await read_brokers(store, keys)) == {2}
    finally:
        await trio.stop()
