"""The `GroupCoordinator` service's edge: protobuf in and out, nothing decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc.aio

from highwater.groups import requests as req
from highwater.replica_manager.groups.group_coordinator import GroupCoordinator
from highwater.replica_manager.server import group_messages as wire
from highwater.replica_manager.server.group_session import GroupSession
from highwater.rpc.errors import to_proto
from highwater.rpc.listeners import Listener
from highwater.rpc.request_limits import limited
from highwater.telemetry.log import get_logger
from highwater.v1 import common_pb2, group_pb2, group_pb2_grpc

logger = get_logger("replica_manager.group_servicer")

LONGEST_HOST = 255

Context = grpc.aio.ServicerContext[Any, Any]


class GroupServicer(group_pb2_grpc.GroupCoordinatorServicer):
    """Of one listener, whose addresses are in the answers."""

    def __init__(self, coordinator: GroupCoordinator, listener: Listener) -> None:
        self._coordinator = coordinator
        self._listener = listener

    def add_to(self, server: grpc.aio.Server) -> None:
        group_pb2_grpc.add_GroupCoordinatorServicer_to_server(self, server)

    async def FindCoordinator(
        self, request: group_pb2.FindCoordinatorRequest, context: Context
    ) -> group_pb2.FindCoordinatorResponse:
        topic = self._coordinator.topic
        groups, refusal = wire.groups_of(request)
        if groups and refusal is None:
            await topic.await_topic()
        return group_pb2.FindCoordinatorResponse(
            coordinators=[self._coordinator_of(group, refusal) for group in groups]
        )

    def _coordinator_of(self, group: str, refusal: req.Refusal | None) -> group_pb2.Coordinator:
        topic = self._coordinator.topic
        found = refusal or topic.coordinator(group, self._listener.name)
        if isinstance(found, req.Refusal):
            return group_pb2.Coordinator(error=wire.error_of(found), group=group, partition=-1)
        endpoint = common_pb2.BrokerEndpoint(
            broker_id=found.broker_id, broker_epoch=found.broker_epoch, address=found.address, rack=found.rack
        )
        return group_pb2.Coordinator(group=group, broker=endpoint, partition=topic.partition_of(group))

    async def Session(
        self, request_iterator: AsyncIterator[group_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[group_pb2.SessionResponse]:
        session = GroupSession(self._coordinator, (context.peer() or "")[:LONGEST_HOST])
        reading = asyncio.create_task(session.read(request_iterator), name="group-session")

        # Where a client hangs up while a response is written, grpc.aio may drop this generator without closing it.
        def ended(_: Context) -> None:
            reading.cancel()
            session.close()

        context.add_done_callback(cast(Any, ended))  # for the stubs it is a class, for grpc.aio any callable
        try:
            async for response in session.responses():
                yield response
            if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
                logger.error("a member's stream failed", exc_info=error)
                raise error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # Offsets

    @limited(group_pb2.CommitOffsetsResponse)
    async def CommitOffsets(
        self, request: group_pb2.CommitOffsetsRequest, context: Context
    ) -> group_pb2.CommitOffsetsResponse:
        error, results = await self._stored(
            request, lambda offsets: req.CommitOffsets(request.group, request.member_id, request.member_epoch, offsets)
        )
        return group_pb2.CommitOffsetsResponse(error=error, offsets=results)

    @limited(group_pb2.AlterOffsetsResponse)
    async def AlterOffsets(
        self, request: group_pb2.AlterOffsetsRequest, context: Context
    ) -> group_pb2.AlterOffsetsResponse:
        error, results = await self._stored(request, lambda offsets: req.AlterOffsets(request.group, offsets))
        return group_pb2.AlterOffsetsResponse(error=error, offsets=results)

    async def _stored(
        self,
        request: group_pb2.CommitOffsetsRequest | group_pb2.AlterOffsetsRequest,
        asked: Callable[[tuple[req.OffsetToCommit, ...]], req.Request],
    ) -> tuple[common_pb2.Error | None, list[group_pb2.CommittedOffset]]:
        """The error of all, or each offset with its own."""
        answer = await self._coordinator.ask(request.group, asked(wire.offsets_to_commit(request.offsets)))
        return wire.committed(request.offsets, answer)

    @limited(group_pb2.FetchOffsetsResponse)
    async def FetchOffsets(
        self, request: group_pb2.FetchOffsetsRequest, context: Context
    ) -> group_pb2.FetchOffsetsResponse:
        asked = req.FetchOffsets(
            request.group,
            request.member_id,
            request.member_epoch,
            wire.named_partitions(request.partitions) or None,
            request.require_stable,
        )
        answer = await self._coordinator.ask(request.group, asked)
        if isinstance(answer, req.Refusal):
            return group_pb2.FetchOffsetsResponse(error=wire.error_of(answer))
        assert isinstance(answer, req.FetchAnswer), answer
        return group_pb2.FetchOffsetsResponse(error=wire.error_of(answer.error), offsets=wire.fetched(answer.offsets))

    @limited(group_pb2.DeleteOffsetsResponse)
    async def DeleteOffsets(
        self, request: group_pb2.DeleteOffsetsRequest, context: Context
    ) -> group_pb2.DeleteOffsetsResponse:
        asked = req.DeleteOffsets(request.group, wire.named_partitions(request.partitions))
        answer = await self._coordinator.ask(request.group, asked)
        refusal = _refusal(answer)
        if refusal is not None:
            return group_pb2.DeleteOffsetsResponse(error=wire.error_of(refusal))
        assert isinstance(answer, req.DeleteAnswer), answer
        return group_pb2.DeleteOffsetsResponse(
            offsets=[
                group_pb2.DeletedOffset(partition=partition, error=wire.error_of(each))
                for partition, each in zip(request.partitions, answer.errors, strict=True)
            ]
        )

    # Groups

    @limited(group_pb2.ListGroupsResponse)
    async def ListGroups(self, request: group_pb2.ListGroupsRequest, context: Context) -> group_pb2.ListGroupsResponse:
        groups, missing = await self._coordinator.list_groups(wire.states_of(request.states))
        return group_pb2.ListGroupsResponse(error=wire.error_of(missing), groups=map(wire.listed, groups))

    async def DescribeGroups(
        self, request: group_pb2.DescribeGroupsRequest, context: Context
    ) -> group_pb2.DescribeGroupsResponse:
        groups, refusal = wire.groups_of(request)
        image = self._coordinator.image
        found = []
        for group in dict.fromkeys(groups):
            asked = req.DescribeGroup(group, request.include_offsets)
            answer = refusal or await self._coordinator.ask(group, asked)
            found.append(wire.description(group, answer, image))
            await asyncio.sleep(0)
        return group_pb2.DescribeGroupsResponse(groups=found)

    async def DeleteGroups(
        self, request: group_pb2.DeleteGroupsRequest, context: Context
    ) -> group_pb2.DeleteGroupsResponse:
        groups, refusal = wire.groups_of(request)
        deleted = []
        for group in groups:
            answer = refusal or await self._coordinator.ask(group, req.DeleteGroup(group))
            found = _refusal(answer)
            error = None if found is None else to_proto(found.code, found.message)
            deleted.append(group_pb2.DeletedGroup(group=group, error=error))
        return group_pb2.DeleteGroupsResponse(groups=deleted)


def _refusal(answer: req.Answer | req.Refusal) -> req.Refusal | None:
    if isinstance(answer, req.Refusal):
        return answer
    assert isinstance(answer, req.DeleteAnswer), answer
    return answer.error
