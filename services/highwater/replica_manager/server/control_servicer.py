"""The `ReplicaControl` service's edge: protobuf in and out, nothing decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import grpc.aio

from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.control import Control
from highwater.replica_manager.requests.instructions import (
    InstructionOutcome,
    PartitionInstruction,
    Sender,
    StopInstruction,
)
from highwater.replica_manager.server.following_messages import to_following
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process.loop_turn import LoopTurn, by_turns
from highwater.v1 import common_pb2, replica_control_pb2, replica_control_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Config(Protocol):
    """The values that are set for the broker while it runs."""

    def watch(self, static: Sequence[common_pb2.StaticSetting]) -> AsyncIterator[Mapping[str, str]]: ...

    async def static_settings(self) -> list[common_pb2.StaticSetting]: ...


class ReplicaControlServicer(replica_control_pb2_grpc.ReplicaControlServicer):
    def __init__(self, replica_manager: ReplicaManager, control: Control, config: Config) -> None:
        self._replica_manager = replica_manager
        self._control = control
        self._config = config
        self._arrivals = asyncio.Lock()  # who came first is read first, however long it is, and obeyed first

    def add_to(self, server: grpc.aio.Server) -> None:
        replica_control_pb2_grpc.add_ReplicaControlServicer_to_server(self, server)

    async def LeaderAndIsr(
        self, request: replica_control_pb2.LeaderAndIsrRequest, context: Context
    ) -> replica_control_pb2.LeaderAndIsrResponse:
        async with self._arrivals:
            news = await self._news(request.live_brokers)
            instructions = [_instruction(each) async for each in by_turns(request.partitions)]
        outcomes = await self._control.leader_and_isr(
            Sender(request.controller_id, request.controller_epoch, request.broker_epoch), instructions, news
        )
        response = replica_control_pb2.LeaderAndIsrResponse(error=to_proto(outcomes.error, outcomes.message))
        async for outcome in by_turns(outcomes.partitions):
            response.results.append(_result(outcome))
        return response

    async def StopReplica(
        self, request: replica_control_pb2.StopReplicaRequest, context: Context
    ) -> replica_control_pb2.StopReplicaResponse:
        async with self._arrivals:
            stops = [
                StopInstruction(from_key(each.partition), each.leader_epoch, each.delete_log)
                async for each in by_turns(request.partitions)
            ]
        outcomes = await self._control.stop_replica(
            Sender(request.controller_id, request.controller_epoch, request.broker_epoch), stops
        )
        response = replica_control_pb2.StopReplicaResponse(error=to_proto(outcomes.error, outcomes.message))
        async for outcome in by_turns(outcomes.partitions):
            response.results.append(_result(outcome))
        return response

    async def UpdateMetadata(
        self, request: replica_control_pb2.UpdateMetadataRequest, context: Context
    ) -> replica_control_pb2.UpdateMetadataResponse:
        topics = await cached_topics(request.topics)
        outcomes = await self._control.update_metadata(
            Sender(request.controller_id, request.controller_epoch),
            request.controller_address,
            await self._news(request.live_brokers),
            topics,
            full=request.full,
            deleted=list(request.deleted_topic_ids),
            sequence=request.sequence,
        )
        return replica_control_pb2.UpdateMetadataResponse(error=to_proto(outcomes.error, outcomes.message))

    async def WatchFollowing(
        self, request: replica_control_pb2.WatchFollowingRequest, context: Context
    ) -> AsyncIterator[replica_control_pb2.Following]:
        watch = self._replica_manager.following.watch(takes_changes=request.takes_changes)
        async for following in watch:
            yield to_following(self._replica_manager.broker_id, following)

    async def WatchConfig(
        self, request: replica_control_pb2.WatchConfigRequest, context: Context
    ) -> AsyncIterator[common_pb2.DynamicConfig]:
        async for values in self._config.watch(list(request.settings)):
            yield common_pb2.DynamicConfig(values=values)

    async def DescribeBrokerConfig(
        self, request: replica_control_pb2.DescribeBrokerConfigRequest, context: Context
    ) -> replica_control_pb2.DescribeBrokerConfigResponse:
        return replica_control_pb2.DescribeBrokerConfigResponse(settings=await self._config.static_settings())

    async def _news(self, brokers: Iterable[common_pb2.BrokerEndpoint]) -> list[Endpoint]:
        """Those that are not known from etcd yet: every instruction names all brokers."""
        lacks = self._replica_manager.metadata.lacks
        return [_endpoint(each) async for each in by_turns(brokers) if lacks(each.broker_id, each.broker_epoch)]


def _state(state: common_pb2.PartitionState) -> VersionedState:
    return VersionedState(
        PartitionState(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            leader_broker_epoch=state.leader_broker_epoch,
            isr=tuple(state.isr),
            elr=tuple(state.elr),
            lost=tuple(state.lost),
            unclean_epoch=state.unclean_epoch,
            controller_epoch=state.controller_epoch,
        ),
        state.state_revision,
    )


def _endpoint(broker: common_pb2.BrokerEndpoint) -> Endpoint:
    listeners = {listener.name: listener.address for listener in broker.listeners}
    return Endpoint(broker.broker_id, broker.broker_epoch, broker.address, broker.rack, listeners)


def _instruction(each: replica_control_pb2.PartitionInstruction) -> PartitionInstruction:
    return PartitionInstruction(
        each.topic,
        from_key(each.partition),
        _state(each.state),
        tuple(each.state.replicas),
        dict(each.config),
        tuple(each.state.offline_replicas),
        each.topic_revision,
    )


async def cached_topics(topics: Iterable[replica_control_pb2.TopicState]) -> list[CachedTopic]:
    """Of one request there may be thousands of topics and partitions: others have their turn of the event loop between
    them. A request that is overtaken meanwhile is out of order then (RULES 8.10)."""
    found, turn = [], LoopTurn()
    for topic in topics:
        if turn.over():
            await turn.give_way()
        partitions = {}
        for each in topic.partitions:
            if turn.over():
                await turn.give_way()
            partitions[each.partition] = _cached_partition(each.state)
        found.append(CachedTopic(topic.topic, topic.topic_id, dict(topic.config), partitions))
    return found


def _cached_partition(state: common_pb2.PartitionState) -> CachedPartition:
    versioned = _state(state)
    return CachedPartition(versioned.state, versioned.revision, tuple(state.replicas), tuple(state.offline_replicas))


def _result(outcome: InstructionOutcome) -> replica_control_pb2.InstructionResult:
    return replica_control_pb2.InstructionResult(
        partition=to_key(outcome.key),
        error=to_proto(outcome.error, outcome.message),
        tail=replica_control_pb2.LogTail(last_epoch=outcome.last_epoch, log_end_offset=outcome.log_end_offset),
        log_offline=outcome.log_offline,
        log_damaged=outcome.log_damaged,
    )
