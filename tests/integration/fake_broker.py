"""A broker as the controller sees it: registered in etcd, taking instructions over gRPC, with no replica of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc.aio

from highwater.errors import ErrorCode
from highwater.metadata.leases.registration import BrokerRegistrar
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import to_proto
from highwater.rpc.server import RpcServer
from highwater.v1 import common_pb2, replica_control_pb2, replica_control_pb2_grpc

SESSION_TIMEOUT_MS = 30_000
"""So long that nothing in a test can be the lease's doing."""


async def eventually(holds: Callable[[], Any], what: str, timeout_s: float = 10.0) -> None:
    """Awaits what holds sooner or later."""

    async def ask() -> bool:
        return bool(holds())

    await eventually_async(ask, what, timeout_s)


async def eventually_async(holds: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 10.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not await holds():
        assert asyncio.get_running_loop().time() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.005)


class FakeBroker(replica_control_pb2_grpc.ReplicaControlServicer):
    def __init__(self, broker_id: int, store: Store, keys: Keys) -> None:
        self.broker_id = broker_id
        self.address = ""
        self.controller_epoch = 0
        self.states: dict[PartitionKey, common_pb2.PartitionState] = {}
        self.configs: dict[PartitionKey, dict[str, str]] = {}
        self.instructed_at: dict[PartitionKey, float] = {}
        self.stopped: list[PartitionKey] = []
        self.metadata: dict[str, replica_control_pb2.TopicState] = {}
        self.metadata_updates = 0
        self.live: set[int] = set()
        self.broken_topic = ""  # its storage fails for this one
        self.every_controller: list[int] = []
        self._keys = keys
        self._server: RpcServer | None = None
        self._registrar = BrokerRegistrar(
            store, keys, session_timeout_ms=SESSION_TIMEOUT_MS, probe=self._probe, on_lost=lambda: None
        )

    async def start(self, **registration: Any) -> None:
        await self.listen()
        await self.register(**registration)

    async def listen(self) -> None:
        self._server = RpcServer([self.address or "127.0.0.1:0"])
        replica_control_pb2_grpc.add_ReplicaControlServicer_to_server(self, self._server.grpc)
        await self._server.start(["highwater.v1.ReplicaControl"])
        self.address = self._server.addresses[0]

    async def register(self, **registration: Any) -> None:
        self.states.clear()
        await self._registrar.register(
            BrokerRegistration(self.broker_id, self.address, uuid.uuid4().hex, "storage", **registration)
        )

    async def mark_leaving(self) -> None:
        """As a broker does before it asks whether it may stop (RULES 7.8)."""
        assert self._registrar.registration is not None
        assert await self._registrar.update(replace(self._registrar.registration, shutting_down=True))

    async def kill(self) -> None:
        """The process is gone: connections break, new ones are refused, the registration stays."""
        assert self._server is not None
        await self._server.grpc.stop(None)
        await self._registrar.close()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.grpc.stop(None)
        await self._registrar.deregister()

    @property
    def broker_epoch(self) -> int:
        assert self._registrar.broker_epoch is not None
        return self._registrar.broker_epoch

    def leads(self) -> set[PartitionKey]:
        return {key for key, state in self.states.items() if state.leader == self.broker_id}

    @staticmethod
    async def _probe() -> None:
        return

    def _refusal(self, request: Any) -> common_pb2.Error | None:
        self.every_controller.append(request.controller_id)
        if request.controller_epoch < self.controller_epoch:
            return to_proto(ErrorCode.STALE_CONTROLLER_EPOCH, "an old controller")
        self.controller_epoch = request.controller_epoch
        if hasattr(request, "broker_epoch") and request.broker_epoch != self._registrar.broker_epoch:
            return to_proto(ErrorCode.STALE_BROKER_EPOCH, "another registration")
        return None

    async def LeaderAndIsr(
        self, request: replica_control_pb2.LeaderAndIsrRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> replica_control_pb2.LeaderAndIsrResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return replica_control_pb2.LeaderAndIsrResponse(error=refusal)
        results = []
        for each in request.partitions:
            key = PartitionKey(each.partition.topic_id, each.partition.partition)
            error = ErrorCode.LOG_STORAGE_ERROR if each.topic == self.broken_topic else ErrorCode.NONE
            if error is ErrorCode.NONE:
                self.states[key] = each.state
                self.configs[key] = dict(each.config)
                self.instructed_at[key] = asyncio.get_running_loop().time()
            tail = replica_control_pb2.LogTail(last_epoch=0, log_end_offset=0)
            results.append(
                replica_control_pb2.InstructionResult(partition=each.partition, error=to_proto(error), tail=tail)
            )
        return replica_control_pb2.LeaderAndIsrResponse(results=results)

    async def StopReplica(
        self, request: replica_control_pb2.StopReplicaRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> replica_control_pb2.StopReplicaResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return replica_control_pb2.StopReplicaResponse(error=refusal)
        for each in request.partitions:
            key = PartitionKey(each.partition.topic_id, each.partition.partition)
            self.states.pop(key, None)
            self.stopped.append(key)
        results = [replica_control_pb2.InstructionResult(partition=each.partition) for each in request.partitions]
        return replica_control_pb2.StopReplicaResponse(results=results)

    async def UpdateMetadata(
        self, request: replica_control_pb2.UpdateMetadataRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> replica_control_pb2.UpdateMetadataResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return replica_control_pb2.UpdateMetadataResponse(error=refusal)
        self.metadata_updates += 1
        self.live = {broker.broker_id for broker in request.live_brokers}
        if request.full:
            there = {topic.topic_id for topic in request.topics}
            self.metadata = {name: topic for name, topic in self.metadata.items() if topic.topic_id in there}
        for topic in request.topics:
            self.metadata[topic.topic] = _merged(self.metadata.get(topic.topic), topic)
        for name in [name for name, topic in self.metadata.items() if topic.topic_id in request.deleted_topic_ids]:
            del self.metadata[name]
        return replica_control_pb2.UpdateMetadataResponse()


def _merged(
    known: replica_control_pb2.TopicState | None, told: replica_control_pb2.TopicState
) -> replica_control_pb2.TopicState:
    """What is told replaces what was known of the same partitions of the same topic."""
    merged = replica_control_pb2.TopicState()
    merged.CopyFrom(told)
    if known is not None and known.topic_id == told.topic_id:
        numbers = {each.partition for each in told.partitions}
        merged.partitions.extend(each for each in known.partitions if each.partition not in numbers)
        merged.partitions.sort(key=lambda each: each.partition)
    return merged
