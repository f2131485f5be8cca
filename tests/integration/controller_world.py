"""Controllers over a real etcd, and brokers that are doubles at the gRPC edge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

import grpc
import grpc.aio
from fake_broker import FakeBroker, eventually

from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.errors import ErrorCode
from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState
from highwater.metadata.state.partition_states import IsrChange, IsrWriter, read_states
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.v1 import controller_pb2, controller_pb2_grpc


class World:
    """Controllers and brokers of one cluster, stopped at the end."""

    def __init__(self, etcd: LocalEtcd, store: Store, keys: Keys) -> None:
        self.etcd = etcd
        self.store = store
        self.keys = keys
        self.controllers: list[ControllerService] = []
        self.brokers: dict[int, FakeBroker] = {}
        self.channels: list[grpc.aio.Channel] = []
        self.closing: list[Callable[[], Awaitable[None]]] = []

    def settings(self, controller_id: int = 0) -> ControllerSettings:
        return ControllerSettings(
            controller_id=controller_id,
            cluster=self.keys.cluster,
            listen=["127.0.0.1:0"],
            advertised_listener="127.0.0.1:0",
            etcd=[self.etcd.address],
            num_partitions=2,
            default_replication_factor=2,
            min_insync_replicas=2,
            controller_session_timeout_ms=1_000,
        )

    async def controller(self, controller_id: int = 0) -> ControllerService:
        service = ControllerService(self.settings(controller_id), isr_quiet_ms=50)
        self.controllers.append(service)
        await service.start()
        return service

    async def acting(self, controller_id: int = 0) -> controller_pb2_grpc.ControllerAsyncStub:
        service = await self.controller(controller_id)
        await acts(service)
        return self.stub(service.address)

    async def broker(self, broker_id: int) -> FakeBroker:
        broker = FakeBroker(broker_id, self.store, self.keys)
        self.brokers[broker_id] = broker
        await broker.start()
        return broker

    async def cluster(self, brokers: int = 3) -> controller_pb2_grpc.ControllerAsyncStub:
        stub = await self.acting()
        for broker_id in range(1, brokers + 1):
            await self.broker(broker_id)
        everyone = set(self.brokers)
        await eventually(lambda: all(each.live == everyone for each in self.brokers.values()), "all brokers seen")
        await eventually(lambda: self.connected() >= everyone, "connections to all, whose end would tell of a kill")
        return stub

    def connected(self) -> set[int]:
        """The brokers that the active controller has a connection to."""
        active_controller = self.controllers[-1].active_controller
        assert active_controller is not None
        return {broker_id for broker_id, fast_path in active_controller._fast_paths.items() if fast_path._connected}

    def stub(self, address: str) -> controller_pb2_grpc.ControllerAsyncStub:
        self.channels.append(open_channel(address))
        return controller_pb2_grpc.ControllerStub(self.channels[-1])  # type: ignore[return-value]

    async def states(self, topic: str, partitions: int) -> list[PartitionState]:
        found, _ = await read_states(self.store, self.keys, [(topic, number) for number in range(partitions)])
        return [found[topic, number].state for number in range(partitions)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for channel in self.channels:
            await channel.close(None)
        for broker in self.brokers.values():
            await broker.stop()
        for service in self.controllers:
            await service.stop()
        for close in self.closing:
            await close()


async def acts(service: ControllerService) -> None:
    await eventually(
        lambda: service.active_controller is not None and service.active_controller.loaded, "the controller acts"
    )


def new_topic(name: str, partitions: int = 1, factor: int = 1, **more: object) -> controller_pb2.CreateTopicsRequest:
    topic = controller_pb2.NewTopic(topic=name, partitions=partitions, replication_factor=factor, **more)
    return controller_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def only(
    response: controller_pb2.CreateTopicsResponse
    | controller_pb2.CreatePartitionsResponse
    | controller_pb2.DeleteTopicsResponse,
) -> ErrorCode:
    assert from_proto(response.error) is ErrorCode.NONE
    (result,) = response.results
    return from_proto(result.error)


async def create(
    stub: controller_pb2_grpc.ControllerAsyncStub, name: str, partitions: int, factor: int
) -> list[PartitionKey]:
    response = await stub.CreateTopics(new_topic(name, partitions, factor))
    assert only(response) is ErrorCode.NONE, response
    return [PartitionKey(response.results[0].topic_id, number) for number in range(partitions)]


async def joins_isr(world: World, topic: str, key: PartitionKey, leader: FakeBroker, isr: tuple[int, ...]) -> None:
    """The leader's ISR change, with its notification."""
    found, _ = await read_states(world.store, world.keys, [(topic, key.partition)])
    versioned = found[topic, key.partition]
    change = IsrChange(key, topic, versioned.state.with_(isr=isr, elr=()), versioned.revision)
    (result,) = await IsrWriter(world.store, world.keys, leader.broker_id).write([change], leader.broker_epoch)
    assert result.revision


class Earlier:
    """A controller's term without the controller."""

    def __init__(self, election: ControllerElection, term: ControllerTerm) -> None:
        self.election = election
        self.term = term


async def elected(world: World) -> Earlier:
    election = ControllerElection(
        world.store, world.keys, controller_id=9, address="x:1", incarnation="e", session_timeout_ms=5_000
    )
    return Earlier(election, await election.campaign())
