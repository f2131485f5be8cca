"""The gRPC edge of the controller: messages in, values to `Administration`, messages out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from highwater.configuration.entities import ConfigEntity
from highwater.controller.administration.acl_servicer import create_acls, delete_acls, describe_acls
from highwater.controller.administration.administration import Administration, TopicOutcome
from highwater.controller.administration.config_messages import SERVED_TYPES, described, to_entity
from highwater.controller.sending import wire
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import NO_LEADER, ControllerRegistration
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import to_key
from highwater.rpc.process.loop_turn import by_turns
from highwater.rpc.requests.request_limits import limited
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc

DEFAULT_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 300_000

Context = grpc.aio.ServicerContext[Any, Any]
_Response = TypeVar("_Response")


class ControllerServicer(controller_pb2_grpc.ControllerServicer):
    """`acting` gives the administration while this controller acts and has listed everything, `hint` who acts."""

    def __init__(
        self,
        acting: Callable[[], Administration | None],
        cluster: Callable[[], Cluster | None],
        hint: Callable[[], ControllerRegistration | None],
        cluster_id: Callable[[], str],
    ) -> None:
        self._acting = acting
        self._cluster = cluster
        self._hint = hint
        self._cluster_id = cluster_id

    @limited(controller_pb2.CreateTopicsResponse)
    async def CreateTopics(
        self, request: controller_pb2.CreateTopicsRequest, context: Context
    ) -> controller_pb2.CreateTopicsResponse:
        administration = self._acting()
        if administration is not None:
            try:
                outcomes = await administration.create_topics(
                    [wire.new_topic(each, internal=request.internal) async for each in by_turns(request.topics)],
                    validate_only=request.validate_only,
                    timeout_s=_timeout_s(request.timeout_ms),
                )
            except ControllerDeposed:
                return self._elsewhere(controller_pb2.CreateTopicsResponse)
            return controller_pb2.CreateTopicsResponse(
                results=[_topic_result(each) async for each in by_turns(outcomes)]
            )
        return self._elsewhere(controller_pb2.CreateTopicsResponse)

    @limited(controller_pb2.DeleteTopicsResponse)
    async def DeleteTopics(
        self, request: controller_pb2.DeleteTopicsRequest, context: Context
    ) -> controller_pb2.DeleteTopicsResponse:
        administration = self._acting()
        if administration is not None:
            try:
                outcomes = await administration.delete_topics(request.topics, timeout_s=_timeout_s(request.timeout_ms))
            except ControllerDeposed:
                return self._elsewhere(controller_pb2.DeleteTopicsResponse)
            return controller_pb2.DeleteTopicsResponse(
                results=[_topic_result(each) async for each in by_turns(outcomes)]
            )
        return self._elsewhere(controller_pb2.DeleteTopicsResponse)

    @limited(controller_pb2.CreatePartitionsResponse)
    async def CreatePartitions(
        self, request: controller_pb2.CreatePartitionsRequest, context: Context
    ) -> controller_pb2.CreatePartitionsResponse:
        administration = self._acting()
        if administration is not None:
            try:
                outcomes = await administration.create_partitions(
                    [wire.new_partitions(each) async for each in by_turns(request.topics)],
                    validate_only=request.validate_only,
                    timeout_s=_timeout_s(request.timeout_ms),
                )
            except ControllerDeposed:
                return self._elsewhere(controller_pb2.CreatePartitionsResponse)
            return controller_pb2.CreatePartitionsResponse(
                results=[_topic_result(each) async for each in by_turns(outcomes)]
            )
        return self._elsewhere(controller_pb2.CreatePartitionsResponse)

    async def ControlledShutdown(
        self, request: controller_pb2.ControlledShutdownRequest, context: Context
    ) -> controller_pb2.ControlledShutdownResponse:
        administration = self._acting()
        if administration is None:
            return self._elsewhere(controller_pb2.ControlledShutdownResponse)
        held_back = await administration.shut_down(request.broker_id, request.broker_epoch)
        if held_back is None:
            return controller_pb2.ControlledShutdownResponse(error=_not_registered(request))
        return controller_pb2.ControlledShutdownResponse(
            remaining=map(to_key, held_back.sample), leads=held_back.leads, needed_by=held_back.needed_by
        )

    async def DescribeReadiness(
        self, request: controller_pb2.DescribeReadinessRequest, context: Context
    ) -> controller_pb2.DescribeReadinessResponse:
        administration = self._acting()
        if administration is None:
            return self._elsewhere(controller_pb2.DescribeReadinessResponse)
        standing = administration.standing(request.broker_id, request.broker_epoch)
        if standing is None:
            return controller_pb2.DescribeReadinessResponse(error=_not_registered(request))
        return controller_pb2.DescribeReadinessResponse(
            told=standing.told,
            out_of_sync=standing.out_of_sync,
            sample=[
                common_pb2.TopicPartition(topic=topic, partition=partition) for topic, partition in standing.sample
            ],
        )

    @limited(controller_pb2.ElectLeadersResponse)
    async def ElectLeaders(
        self, request: controller_pb2.ElectLeadersRequest, context: Context
    ) -> controller_pb2.ElectLeadersResponse:
        if request.type != controller_pb2.ELECTION_TYPE_PREFERRED:
            await _unimplemented(context, "unclean elections happen only by unclean.leader.election.enable")
        administration = self._acting()
        if administration is None:
            return self._elsewhere(controller_pb2.ElectLeadersResponse)
        wanted = [(each.topic, each.partition) async for each in by_turns(request.partitions)]
        outcomes = await administration.elect_preferred(wanted, timeout_s=_timeout_s(request.timeout_ms))
        response = controller_pb2.ElectLeadersResponse()
        async for outcome in by_turns(outcomes):
            response.results.add(
                partition=common_pb2.TopicPartition(topic=outcome.topic, partition=outcome.partition),
                error=to_proto(outcome.error, outcome.message),
            )
        return response

    async def DescribeCluster(
        self, request: controller_pb2.DescribeClusterRequest, context: Context
    ) -> controller_pb2.DescribeClusterResponse:
        cluster = self._cluster()
        if cluster is None:
            return self._elsewhere(controller_pb2.DescribeClusterResponse)
        partitions = cluster.topics.partitions()
        acting = self._hint()
        return controller_pb2.DescribeClusterResponse(
            controller=_hint(acting),
            cluster_id=self._cluster_id(),
            controller_epoch=cluster.controller_epoch,
            brokers=[
                controller_pb2.BrokerDescription(
                    endpoint=wire.endpoint(broker),
                    shutting_down=cluster.is_shutting_down(broker_id),
                    tail_lost=broker.registration.tail_lost,
                    leaders=len(cluster.led_by(broker_id)),
                    replicas=len(cluster.topics.hosted(broker_id)),
                )
                for broker_id, broker in sorted(cluster.brokers.items())
            ],
            topics=len(cluster.topics),
            partitions=len(partitions),
            offline_partitions=sum(partition.leader == NO_LEADER for partition in partitions),
            under_replicated_partitions=sum(partition.under_replicated for partition in partitions),
        )

    @limited(controller_pb2.AlterConfigsResponse)
    async def AlterConfigs(
        self, request: controller_pb2.AlterConfigsRequest, context: Context
    ) -> controller_pb2.AlterConfigsResponse:
        entity = await _entity(context, request.resource)
        if isinstance(entity, Refusal):
            return controller_pb2.AlterConfigsResponse(error=to_proto(*entity))
        administration = self._acting()
        if administration is None:
            return self._elsewhere(controller_pb2.AlterConfigsResponse)
        changed, unset = dict(request.set), list(request.unset)
        try:
            if entity is None:
                refusal = await administration.configuration.alter_topic(
                    request.resource.name, changed, unset, validate_only=request.validate_only
                )
            else:
                refusal = await administration.entity_configuration.alter(
                    entity, changed, unset, validate_only=request.validate_only
                )
        except ControllerDeposed:
            return self._elsewhere(controller_pb2.AlterConfigsResponse)
        return controller_pb2.AlterConfigsResponse(error=None if refusal is None else to_proto(*refusal))

    @limited(controller_pb2.DescribeConfigsResponse)
    async def DescribeConfigs(
        self, request: controller_pb2.DescribeConfigsRequest, context: Context
    ) -> controller_pb2.DescribeConfigsResponse:
        entities = [await _entity(context, resource) for resource in request.resources]
        administration = self._acting()
        if administration is None:
            return self._elsewhere(controller_pb2.DescribeConfigsResponse)
        return await described(administration, request, entities)

    async def ReassignPartitions(
        self, request: controller_pb2.ReassignPartitionsRequest, context: Context
    ) -> controller_pb2.ReassignPartitionsResponse:
        await _unimplemented(context, "ReassignPartitions")

    @limited(controller_pb2.CreateAclsResponse)
    async def CreateAcls(
        self, request: controller_pb2.CreateAclsRequest, context: Context
    ) -> controller_pb2.CreateAclsResponse:
        administration = self._acting()
        if administration is not None:
            try:
                return await create_acls(administration.acls, administration.term, request)
            except ControllerDeposed:
                pass
        return self._elsewhere(controller_pb2.CreateAclsResponse)

    @limited(controller_pb2.DescribeAclsResponse)
    async def DescribeAcls(
        self, request: controller_pb2.DescribeAclsRequest, context: Context
    ) -> controller_pb2.DescribeAclsResponse:
        administration = self._acting()
        if administration is None:
            return self._elsewhere(controller_pb2.DescribeAclsResponse)
        return await describe_acls(administration.acls, request)

    @limited(controller_pb2.DeleteAclsResponse)
    async def DeleteAcls(
        self, request: controller_pb2.DeleteAclsRequest, context: Context
    ) -> controller_pb2.DeleteAclsResponse:
        administration = self._acting()
        if administration is not None:
            try:
                return await delete_acls(administration.acls, administration.term, request)
            except ControllerDeposed:
                pass
        return self._elsewhere(controller_pb2.DeleteAclsResponse)

    def _elsewhere(self, response: Callable[..., _Response]) -> _Response:
        acting = self._hint()
        where = "nobody acts now, try again" if acting is None else f"ask controller {acting.controller_id}"
        return response(
            error=to_proto(ErrorCode.NOT_CONTROLLER, f"this controller does not act: {where}"), controller=_hint(acting)
        )


def _hint(acting: ControllerRegistration | None) -> controller_pb2.ControllerHint | None:
    if acting is None:
        return None
    return controller_pb2.ControllerHint(controller_id=acting.controller_id, address=acting.address)


def _not_registered(
    request: controller_pb2.ControlledShutdownRequest | controller_pb2.DescribeReadinessRequest,
) -> common_pb2.Error:
    message = f"broker {request.broker_id} is not registered under broker epoch {request.broker_epoch}"
    return to_proto(ErrorCode.STALE_BROKER_EPOCH, message)


def _topic_result(outcome: TopicOutcome) -> controller_pb2.TopicResult:
    return controller_pb2.TopicResult(
        topic=outcome.topic,
        error=to_proto(outcome.error, outcome.message),
        topic_id=outcome.topic_id,
        partitions=outcome.partitions,
        replication_factor=outcome.replication_factor,
    )


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS) / 1000


async def _entity(context: Context, resource: controller_pb2.ConfigResource) -> ConfigEntity | Refusal | None:
    """The entity that a resource is; None: a topic."""
    if resource.type not in SERVED_TYPES:
        await _unimplemented(context, "the configuration of a resource of this type")
    return to_entity(resource)


async def _unimplemented(context: Context, what: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"not served by this version: {what}")
