"""A cluster whose every address is a `host:port`, as if each process had a host of its own, with two controllers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from replica_manager_cluster import eventually
from running_cluster import KEYS, Deployment, deployment, paused, running_cluster, traffic

from highwater.cli.local_cluster import LocalCluster, controller_name
from highwater.errors import ErrorCode
from highwater.metadata.leases.controller_election import read_controller, read_controller_epoch
from highwater.metadata.schema.models import ControllerRegistration
from highwater.metadata.state.topics import read_topics
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.v1 import controller_pb2

ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
SERVICES = {
    "controller": ["Controller"],
    "log-storage": ["LogStorage"],
    "replica-manager": ["Broker", "ReplicaControl", "GroupCoordinator", "Controller"],
    "fetcher": ["Fetcher"],
}
NOT_SERVED_YET = {
    "controller": ["Controller/ReassignPartitions"],
}


@pytest.fixture(scope="module")
def tcp_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"broker.session.timeout.ms": "3000", "controller.session.timeout.ms": "2000"}
    with running_cluster(tmp_path_factory.mktemp("tcp"), tcp_only=True, controllers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def deployed(tcp_cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(tcp_cluster) as found:
        yield found


async def acting(deployed: Deployment) -> ControllerRegistration:
    async def found() -> ControllerRegistration | None:
        return await read_controller(deployed.store, KEYS)

    registration: ControllerRegistration = await eventually(found, "a controller acts")
    return registration


async def successor(deployed: Deployment, former: ControllerRegistration) -> ControllerRegistration:
    async def other() -> ControllerRegistration | None:
        found = await read_controller(deployed.store, KEYS)
        return found if found is not None and found.controller_epoch > former.controller_epoch else None

    registration: ControllerRegistration = await eventually(other, "another controller takes over")
    return registration


async def test_a_broker_whose_processes_are_on_three_hosts(deployed: Deployment) -> None:
    assert not [address for address in deployed.cluster.addresses.values() if address.startswith("unix:")]
    await deployed.create_topic("spread", ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, "spread", 3) as flow:
        deployed.cluster.kill_broker(1)
        await deployed.left_isr(1, "spread", [0, 1, 2])
        await flow.until_acked(50)
        deployed.cluster.start_broker(1)
        await deployed.healed("spread", 3)


async def test_another_controller_takes_over_from_a_killed_one(deployed: Deployment) -> None:
    former = await acting(deployed)
    await deployed.create_topic("before", ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, "before", 3) as flow:
        killed = deployed.cluster.processes[controller_name(former.controller_id)]
        killed.kill()
        now = await successor(deployed, former)
        assert (now.controller_id, now.controller_epoch) == (1 - former.controller_id, former.controller_epoch + 1)
        await deployed.create_topic("after", ASSIGNMENT)
        described = await deployed.admin.describe_cluster()
        assert described.controller_epoch >= now.controller_epoch
        assert described.topics >= 2
        killed.start()
        await flow.until_acked(50)


async def test_a_controller_that_was_paused_past_its_lease_writes_nothing(deployed: Deployment) -> None:
    """RULES 2.2. What waits for the zombie is the first that it sees when it runs again."""
    former = await acting(deployed)
    zombie = deployed.cluster.processes[controller_name(former.controller_id)]
    request = controller_pb2.CreateTopicsRequest(timeout_ms=5000)
    request.topics.add(topic="asked-of-a-zombie", partitions=1, replication_factor=3)
    async with open_channel(former.address) as channel:
        await channel.channel_ready()
        # On the wire a unary call is a stream of one request; only a stream's `write` says that it was sent.
        create = channel.stream_unary(
            "/highwater.v1.Controller/CreateTopics",
            controller_pb2.CreateTopicsRequest.SerializeToString,
            controller_pb2.CreateTopicsResponse.FromString,
        )()
        with paused(zombie.pid):
            now = await successor(deployed, former)
            await create.write(request)
            await create.done_writing()
        response = await create
    assert from_proto(response.error) is ErrorCode.NOT_CONTROLLER or all(
        from_proto(result.error) is not ErrorCode.NONE for result in response.results
    )
    assert "asked-of-a-zombie" not in (await read_topics(deployed.store, KEYS)).topics
    assert await acting(deployed) == now
    assert await read_controller_epoch(deployed.store, KEYS) == now.controller_epoch
    await deployed.create_topic("asked-of-its-successor", ASSIGNMENT)


async def test_every_server_tells_its_health_and_its_contract(deployed: Deployment) -> None:
    for name, address in deployed.cluster.addresses.items():
        kind = next(kind for kind in SERVICES if name.startswith(kind))
        async with open_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            contracts = [f"highwater.v1.{service}" for service in SERVICES[kind]]
            for service in ("", *contracts):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING, (name, service)
            questions = [reflection_pb2.ServerReflectionRequest(list_services="")]
            questions += [reflection_pb2.ServerReflectionRequest(file_containing_symbol=each) for each in contracts]
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            answers = [each async for each in reflection.ServerReflectionInfo(iter(questions), timeout=5)]
            listed = {each.name for each in answers[0].list_services_response.service}
            assert listed >= {*contracts, "grpc.health.v1.Health"}, name
            for service, each in zip(SERVICES[kind], answers[1:], strict=True):
                described = FileDescriptorProto.FromString(each.file_descriptor_response.file_descriptor_proto[0])
                assert service in {contract.name for contract in described.service}


@pytest.mark.parametrize("name", NOT_SERVED_YET)
async def test_what_is_not_served_yet_says_so(deployed: Deployment, name: str) -> None:
    async with open_channel(deployed.cluster.addresses[name]) as channel:
        for method in NOT_SERVED_YET[name]:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(f"/highwater.v1.{method}")(b"", timeout=5)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
            assert "Unexpected" not in str(raised.value.details()), method
