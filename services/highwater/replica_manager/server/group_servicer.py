"""The `GroupCoordinator` service's edge: protobuf in and out, nothing decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, cast

import grpc.aio

from highwater.errors import ErrorCode
from highwater.groups import requests as req
from highwater.replica_manager.admission.throttling import Throttling
from highwater.replica_manager.groups.group_coordinator import GroupCoordinator
from highwater.replica_manager.server import group_messages as wire
from highwater.replica_manager.server.group_session import GroupSession
from highwater.replica_manager.server.refused import Divided, may_not, name_refusal
from highwater.replica_manager.server.refused import Refusal as Refused
from highwater.rpc.connections.channel import MAX_MESSAGE_BYTES
from highwater.rpc.errors import to_proto
from highwater.rpc.listeners import Listener
from highwater.rpc.process.loop_turn import by_turns
from highwater.rpc.requests.request_limits import limited
from highwater.rpc.requests.unread_requests import UnreadableRequestError
from highwater.security.access import Access, Authorization
from highwater.security.acls import Operation, ResourceType
from highwater.telemetry.log import get_logger
from highwater.v1 import common_pb2, group_pb2, group_pb2_grpc

logger = get_logger("replica_manager.group_servicer")

LONGEST_HOST = 255
MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
"""Of a DescribeGroups, a ListGroups and a FetchOffsets: a group may have an offset for each partition there is, with
4 KiB of metadata, 1,000 members that name 10,000 topics each, and an id of 32 KiB."""

Context = grpc.aio.ServicerContext[Any, Any]


class GroupServicer(group_pb2_grpc.GroupCoordinatorServicer):
    """Of one listener, whose addresses are in the answers."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        listener: Listener,
        authorization: Authorization | None = None,
        throttling: Throttling | None = None,
    ) -> None:
        self._throttling = throttling or Throttling()
        self._coordinator = coordinator
        self._listener = listener
        self._authorization = authorization

    def add_to(self, server: grpc.aio.Server) -> None:
        group_pb2_grpc.add_GroupCoordinatorServicer_to_server(self, server)

    async def FindCoordinator(
        self, request: group_pb2.FindCoordinatorRequest, context: Context
    ) -> group_pb2.FindCoordinatorResponse:
        topic = self._coordinator.topic
        groups, refusal = wire.groups_of(request)
        access = self._access(context)
        if groups and refusal is None:
            await topic.await_topic()
        return group_pb2.FindCoordinatorResponse(
            coordinators=[
                self._coordinator_of(group, refusal or _may_not(access, Operation.DESCRIBE, group))
                async for group in by_turns(groups)
            ]
        )

    def _access(self, context: Context) -> Access | None:
        """None: nobody is asked what the caller may do."""
        return None if self._authorization is None else self._authorization.access(context)

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
        session = GroupSession(
            self._coordinator,
            (context.peer() or "")[:LONGEST_HOST],
            self._access(context),
            self._throttling.of(context),
        )
        forget = self._authorization.on_change(session.access_changed) if self._authorization is not None else None
        reading = asyncio.create_task(session.read(request_iterator), name="group-session")

        # Where a client hangs up while a response is written, grpc.aio may drop this generator without closing it.
        def ended(_: Context) -> None:
            reading.cancel()
            session.close()
            if forget is not None:
                forget()

        context.add_done_callback(cast(Any, ended))  # for the stubs it is a class, for grpc.aio any callable
        try:
            async for response in session.responses():
                yield response
            if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
                if not isinstance(error, UnreadableRequestError):
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
        response = group_pb2.CommitOffsetsResponse()
        await self._store(
            request,
            lambda offsets: req.CommitOffsets(request.group, request.member_id, request.member_epoch, offsets),
            self._access(context),
            response,
        )
        return response

    @limited(group_pb2.AlterOffsetsResponse)
    async def AlterOffsets(
        self, request: group_pb2.AlterOffsetsRequest, context: Context
    ) -> group_pb2.AlterOffsetsResponse:
        response = group_pb2.AlterOffsetsResponse()
        await self._store(
            request, lambda offsets: req.AlterOffsets(request.group, offsets), self._access(context), response
        )
        return response

    async def _store(
        self,
        request: group_pb2.CommitOffsetsRequest | group_pb2.AlterOffsetsRequest,
        asked: Callable[[tuple[req.OffsetToCommit, ...]], req.Request],
        access: Access | None,
        response: group_pb2.CommitOffsetsResponse | group_pb2.AlterOffsetsResponse,
    ) -> None:
        """Fills in the error of all, or each offset with its own."""
        if (refusal := _may_not(access, Operation.READ, request.group)) is not None:
            response.error.CopyFrom(to_proto(refusal.code, refusal.message))
            return
        divided = await Divided.of_many(
            request.offsets, name_refusal(access, Operation.READ, ResourceType.TOPIC, self._topic_of)
        )
        results: Iterable[group_pb2.CommittedOffset] = ()
        if not divided.nothing_left:
            allowed = divided.allowed
            answer = await self._coordinator.ask(request.group, asked(await wire.offsets_to_commit(allowed)))
            stored = _stored(answer)
            if stored.error is not None:
                response.error.CopyFrom(to_proto(stored.error.code, stored.error.message))
                return
            results = map(wire.committed, allowed, stored.errors)
        async for result in divided.merging(results, _refused_offset):
            response.offsets.append(result)

    def _topic_of(self, offset: group_pb2.CommittedOffset) -> str:
        """The name of the topic that an offset is kept for: that of its id, where it has one."""
        known = self._coordinator.image.of_id(offset.topic_id) if offset.topic_id else None
        return offset.partition.topic if known is None else known.name

    @limited(group_pb2.FetchOffsetsResponse)
    async def FetchOffsets(
        self, request: group_pb2.FetchOffsetsRequest, context: Context
    ) -> group_pb2.FetchOffsetsResponse:
        access = self._access(context)
        if (refusal := _may_not(access, Operation.DESCRIBE, request.group)) is not None:
            return group_pb2.FetchOffsetsResponse(error=wire.error_of(refusal))
        divided = await Divided.of_many(request.partitions, _may_see(access))
        answer = req.FetchAnswer()
        if not divided.nothing_left:
            asked = req.FetchOffsets(
                request.group,
                request.member_id,
                request.member_epoch,
                await wire.named_partitions(divided.allowed) or None,
                request.require_stable,
            )
            found = await self._coordinator.ask(request.group, asked)
            if isinstance(found, req.Refusal):
                return group_pb2.FetchOffsetsResponse(error=wire.error_of(found))
            assert isinstance(found, req.FetchAnswer), found
            answer = found
        response = group_pb2.FetchOffsetsResponse(error=wire.error_of(answer.error))
        if answer.error is not None:
            return response
        if request.partitions:
            results = divided.merging(map(wire.fetched, answer.offsets), _unseen_offset)
        else:
            results = wire.all_fetched(answer.kept, self._coordinator.image, _sees(access))
        if await wire.filled(response.offsets, results, MAX_ANSWER_BYTES) < 0:
            return group_pb2.FetchOffsetsResponse(error=wire.error_of(_too_much("name partitions, some at a time")))
        return response

    @limited(group_pb2.DeleteOffsetsResponse)
    async def DeleteOffsets(
        self, request: group_pb2.DeleteOffsetsRequest, context: Context
    ) -> group_pb2.DeleteOffsetsResponse:
        access = self._access(context)
        if (refusal := _may_not(access, Operation.DELETE, request.group)) is not None:
            return group_pb2.DeleteOffsetsResponse(error=wire.error_of(refusal))
        divided = await Divided.of_many(
            request.partitions, name_refusal(access, Operation.READ, ResourceType.TOPIC, lambda each: each.topic)
        )
        results: Iterable[group_pb2.DeletedOffset] = ()
        if not divided.nothing_left:
            allowed = divided.allowed
            asked = req.DeleteOffsets(request.group, await wire.named_partitions(allowed))
            answer = await self._coordinator.ask(request.group, asked)
            refusal = _refusal(answer)
            if refusal is not None:
                return group_pb2.DeleteOffsetsResponse(error=wire.error_of(refusal))
            assert isinstance(answer, req.DeleteAnswer), answer
            results = map(_deleted_offset, allowed, answer.errors)
        response = group_pb2.DeleteOffsetsResponse()
        async for result in divided.merging(
            results, lambda partition, refused: group_pb2.DeletedOffset(partition=partition, error=to_proto(*refused))
        ):
            response.offsets.append(result)
        return response

    # Groups

    @limited(group_pb2.ListGroupsResponse)
    async def ListGroups(self, request: group_pb2.ListGroupsRequest, context: Context) -> group_pb2.ListGroupsResponse:
        groups, missing = await self._coordinator.list_groups(wire.states_of(request.states))
        access = self._access(context)
        sees_all = access is None or access.may_cluster(Operation.DESCRIBE)
        response = group_pb2.ListGroupsResponse(error=wire.error_of(missing))

        async def seen() -> AsyncIterator[group_pb2.ListedGroup]:
            async for each in by_turns(groups):
                if sees_all or (access is not None and access.may_group(Operation.DESCRIBE, each.group)):
                    yield wire.listed(each)

        if await wire.filled(response.groups, seen(), MAX_ANSWER_BYTES) < 0:
            return group_pb2.ListGroupsResponse(error=wire.error_of(_too_much("ask for the groups of one state")))
        return response

    async def DescribeGroups(
        self, request: group_pb2.DescribeGroupsRequest, context: Context
    ) -> group_pb2.DescribeGroupsResponse:
        groups, refusal = wire.groups_of(request)
        access = self._access(context)
        too_much = _too_much("ask for fewer groups at a time, or without offsets")
        response, left = group_pb2.DescribeGroupsResponse(), MAX_ANSWER_BYTES
        for group in dict.fromkeys(groups):
            refused = refusal or _may_not(access, Operation.DESCRIBE, group) or (too_much if left < 0 else None)
            answer = refused or await self._coordinator.ask(group, req.DescribeGroup(group, request.include_offsets))
            described = response.groups.add()
            left = await wire.describe(described, group, answer, self._coordinator.image, _sees(access), left)
            if left < 0 and not described.HasField("error"):
                described.Clear()
                await wire.describe(described, group, too_much, self._coordinator.image, wire.everything, left)
            await asyncio.sleep(0)
        return response

    async def DeleteGroups(
        self, request: group_pb2.DeleteGroupsRequest, context: Context
    ) -> group_pb2.DeleteGroupsResponse:
        groups, refusal = wire.groups_of(request)
        access = self._access(context)
        deleted = []
        async for group in by_turns(groups):
            refused = refusal or _may_not(access, Operation.DELETE, group)
            answer = refused or await self._coordinator.ask(group, req.DeleteGroup(group))
            found = _refusal(answer)
            error = None if found is None else to_proto(found.code, found.message)
            deleted.append(group_pb2.DeletedGroup(group=group, error=error))
        return group_pb2.DeleteGroupsResponse(groups=deleted)


def _stored(answer: req.Answer | req.Refusal) -> req.CommitAnswer:
    if isinstance(answer, req.Refusal):
        return req.CommitAnswer(answer)
    assert isinstance(answer, req.CommitAnswer), answer
    return answer


def _refusal(answer: req.Answer | req.Refusal) -> req.Refusal | None:
    if isinstance(answer, req.Refusal):
        return answer
    assert isinstance(answer, req.DeleteAnswer), answer
    return answer.error


def _may_not(access: Access | None, operation: Operation, group: str) -> req.Refusal | None:
    """The refusal of whoever may not do that with the group; None: it may."""
    refused = may_not(access, operation, ResourceType.GROUP, group)
    return None if refused is None else req.Refusal(*refused)


def _too_much(remedy: str) -> req.Refusal:
    return req.Refusal(ErrorCode.INVALID_REQUEST, f"the answer would have more than {MAX_ANSWER_BYTES} bytes: {remedy}")


def _sees(access: Access | None) -> wire.Sees:
    if access is None:
        return wire.everything
    return partial(access.may_topic, Operation.DESCRIBE)


def _may_see(access: Access | None) -> Callable[[common_pb2.TopicPartition], Refused | None] | None:
    return name_refusal(access, Operation.DESCRIBE, ResourceType.TOPIC, lambda each: each.topic)


def _refused_offset(offset: group_pb2.CommittedOffset, refused: Refused) -> group_pb2.CommittedOffset:
    result = group_pb2.CommittedOffset()
    result.MergeFrom(offset)
    result.error.CopyFrom(to_proto(*refused))
    return result


def _deleted_offset(partition: common_pb2.TopicPartition, refusal: req.Refusal | None) -> group_pb2.DeletedOffset:
    return group_pb2.DeletedOffset(partition=partition, error=wire.error_of(refusal))


def _unseen_offset(partition: common_pb2.TopicPartition, refused: Refused) -> group_pb2.CommittedOffset:
    return group_pb2.CommittedOffset(
        partition=partition, offset=-1, leader_epoch=-1, commit_time_ms=-1, error=to_proto(*refused)
    )
