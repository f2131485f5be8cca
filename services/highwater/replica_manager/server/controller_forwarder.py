"""The `Controller` service of a broker: administration, forwarded to the active controller, so that a client needs no
way to the controllers. What only brokers ask of a controller is not forwarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.metadata.store.etcd_errors import StoreError
from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.admission.throttling import Throttling
from highwater.replica_manager.membership.active_controller import ActiveControllerLookup, ControllerLink
from highwater.replica_manager.replicas.metadata_cache import Endpoint
from highwater.replica_manager.server.refused import Divided, Refusal, cluster_error, may_not, name_refusal
from highwater.rpc.errors import from_proto, to_proto
from highwater.rpc.requests.request_limits import too_large
from highwater.security.access import Access, Authorization
from highwater.security.acls import CLUSTER_NAME, Operation, ResourceType
from highwater.security.call_shares import OpenCalls, part_of_one
from highwater.security.caller import caller_of
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc

# Calls under way, over all listeners of this broker, and DescribeConfigs among them: every client that sends to a topic
# which nobody made asks so (RULES 9.5), and is not to keep an administrator out. Half of either may be of one caller:
# its calls may take as long as it likes.
MAX_FORWARDED = 100
MAX_DESCRIBING = 50
LONGEST_S = 330.0  # of a call without a deadline: the controller's longest time, and some to spare

Context = grpc.aio.ServicerContext[Any, Any]
_Response = TypeVar("_Response")
_Call = Callable[..., Awaitable[_Response]]


class Forwarding:
    """Hands a call on with the client's deadline, and the answer back. A controller that says that it does not act is
    left for the one that etcd names, once; a call that nobody answered is not made again, as it may have been done."""

    def __init__(self, acting: ActiveControllerLookup) -> None:
        self._acting = acting
        self.calls = OpenCalls(MAX_FORWARDED, part_of_one(MAX_FORWARDED))
        self.describing = OpenCalls(MAX_DESCRIBING, part_of_one(MAX_DESCRIBING))

    async def forward(
        self,
        method: Callable[[controller_pb2_grpc.ControllerAsyncStub], _Call[_Response]],
        request: Any,
        refused: Callable[..., _Response],
        context: Context,
    ) -> _Response:
        """`refused` makes the response for what this broker has to say itself."""
        if refusal := too_large(request):
            return refused(error=to_proto(ErrorCode.INVALID_REQUEST, refusal))
        caller = caller_of(context)
        if self.calls.begin(caller):
            return refused(error=_overloaded(self.calls, caller, "administrative calls"))
        try:
            return await self._forward(method, request, refused, context)
        except StoreError as error:
            message = f"etcd does not say which controller acts: {error}"
            return refused(error=to_proto(ErrorCode.NOT_CONTROLLER, message))
        finally:
            self.calls.end(caller)

    async def describe_configs(
        self, request: controller_pb2.DescribeConfigsRequest, context: Context
    ) -> controller_pb2.DescribeConfigsResponse:
        caller = caller_of(context)
        if self.describing.begin(caller):
            error = _overloaded(self.describing, caller, "DescribeConfigs")
            return controller_pb2.DescribeConfigsResponse(error=error)
        try:
            return await self.forward(
                lambda stub: stub.DescribeConfigs, request, controller_pb2.DescribeConfigsResponse, context
            )
        finally:
            self.describing.end(caller)

    async def _forward(
        self,
        method: Callable[[controller_pb2_grpc.ControllerAsyncStub], _Call[_Response]],
        request: Any,
        refused: Callable[..., _Response],
        context: Context,
    ) -> _Response:
        asked: ControllerLink | None = None
        response: _Response | None = None
        while True:
            link = await self._acting.find()
            if response is not None and (link is None or link is asked):
                return response  # nobody else acts
            if link is None:
                return refused(error=to_proto(ErrorCode.NOT_CONTROLLER, "no controller acts now: try again"))
            try:
                async with link.used():
                    answer: Any = await method(link.stub)(request, timeout=_time_left_s(context))
            except grpc.aio.AioRpcError as error:
                self._acting.doubt(link)
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    await context.abort(error.code(), error.details() or "")
                message = f"controller {link.controller.controller_id} does not answer, it may have done it: try again"
                return refused(error=to_proto(ErrorCode.NETWORK_EXCEPTION, message))
            if answer.HasField("controller"):
                answer.controller.address = ""  # of no use to those who go by a broker
            if from_proto(answer.error) is not ErrorCode.NOT_CONTROLLER or asked is not None:
                forwarded: _Response = answer
                return forwarded
            self._acting.doubt(link)
            asked, response = link, answer


class ControllerForwarder(controller_pb2_grpc.ControllerServicer):
    """Of one listener: `brokers` are those that have it, with its addresses. What a client may is looked at here: a
    controller sees the broker that forwards, and not for whom. Whoever exceeds its quota of changes is refused here,
    too. `partitions_of` tells how many a topic has, as far as this broker knows; 0: it does not."""

    def __init__(
        self,
        forwarding: Forwarding,
        brokers: Callable[[], Mapping[int, Endpoint]],
        authorization: Authorization | None = None,
        throttling: Throttling | None = None,
        partitions_of: Callable[[str], int] = lambda topic: 0,
    ) -> None:
        self._forward = forwarding.forward
        self._authorization = authorization
        self._describe_configs = forwarding.describe_configs
        self._brokers = brokers
        self._throttling = throttling or Throttling()
        self._partitions_of = partitions_of

    async def _forward_mutations(
        self,
        method: Callable[[controller_pb2_grpc.ControllerAsyncStub], _Call[_Response]],
        request: Any,
        refused: Callable[..., _Response],
        context: Context,
        mutations: Callable[[Any], int],
    ) -> _Response:
        """`mutations`: how many partitions a request would make or delete, as far as this broker can tell."""
        if not self._throttling.is_set or getattr(request, "validate_only", False):
            return await self._forward(method, request, refused, context)
        charges = self._throttling.of(context)
        if charges.is_over(Quota.CONTROLLER_MUTATION, "", most_s=0.0):
            error = to_proto(ErrorCode.THROTTLING_QUOTA_EXCEEDED, charges.refusal())
            return refused(error=error, throttle_ms=charges.throttle_ms)
        charges.charge(Quota.CONTROLLER_MUTATION, "", mutations(request))
        response: Any = await self._forward(method, request, refused, context)
        response.throttle_ms = charges.throttle_ms
        throttled: _Response = response
        return throttled

    async def CreateTopics(
        self, request: controller_pb2.CreateTopicsRequest, context: Context
    ) -> controller_pb2.CreateTopicsResponse:
        if request.internal:
            message = "internal topics are made by brokers: leave `internal` out"
            return controller_pb2.CreateTopicsResponse(error=to_proto(ErrorCode.INVALID_REQUEST, message))
        access = self._access(context)
        if access is not None and access.may_cluster(Operation.CREATE):
            access = None  # topics of any name
        return await self._of_topics(
            lambda stub: stub.CreateTopics,
            request,
            controller_pb2.CreateTopicsResponse,
            context,
            name_refusal(access, Operation.CREATE, ResourceType.TOPIC, lambda each: each.topic),
            lambda asked: sum(max(1, new.partitions, len(new.assignment)) for new in asked.topics),
        )

    async def DeleteTopics(
        self, request: controller_pb2.DeleteTopicsRequest, context: Context
    ) -> controller_pb2.DeleteTopicsResponse:
        return await self._of_topics(
            lambda stub: stub.DeleteTopics,
            request,
            controller_pb2.DeleteTopicsResponse,
            context,
            name_refusal(self._access(context), Operation.DELETE, ResourceType.TOPIC, str),
            lambda asked: sum(max(1, self._partitions_of(topic)) for topic in asked.topics),
        )

    async def CreatePartitions(
        self, request: controller_pb2.CreatePartitionsRequest, context: Context
    ) -> controller_pb2.CreatePartitionsResponse:
        may_not = name_refusal(self._access(context), Operation.ALTER, ResourceType.TOPIC, lambda each: each.topic)
        return await self._of_topics(
            lambda stub: stub.CreatePartitions,
            request,
            controller_pb2.CreatePartitionsResponse,
            context,
            may_not,
            lambda asked: sum(max(1, new.total - self._partitions_of(new.topic)) for new in asked.topics),
        )

    async def _of_topics(
        self,
        method: Callable[[controller_pb2_grpc.ControllerAsyncStub], _Call[_Response]],
        request: Any,
        response: Callable[..., _Response],
        context: Context,
        may_not: Callable[[Any], Refusal | None] | None,
        mutations: Callable[[Any], int],
    ) -> _Response:
        """Forwards the topics of a request that the caller may have; the others are refused beside them."""
        divided = Divided(request.topics, may_not)
        if not divided:
            return await self._forward_mutations(method, request, response, context, mutations)
        if refusal := too_large(request):
            return response(error=to_proto(ErrorCode.INVALID_REQUEST, refusal))
        answer: Any = response()
        if not divided.nothing_left:
            asked = type(request)()
            asked.CopyFrom(request)
            del asked.topics[:]
            asked.topics.extend(divided.allowed)
            answer = await self._forward_mutations(method, asked, response, context, mutations)
        if from_proto(answer.error) is ErrorCode.NONE:
            results = divided.merged(list(answer.results), _refused_topic)
            del answer.results[:]
            answer.results.extend(results)
        merged: _Response = answer
        return merged

    def _access(self, context: Context) -> Access | None:
        """None: nobody is asked what the caller may do."""
        return None if self._authorization is None else self._authorization.access(context)

    async def DescribeCluster(
        self, request: controller_pb2.DescribeClusterRequest, context: Context
    ) -> controller_pb2.DescribeClusterResponse:
        if (error := cluster_error(self._access(context), Operation.DESCRIBE)) is not None:
            return controller_pb2.DescribeClusterResponse(error=error)
        response = await self._forward(
            lambda stub: stub.DescribeCluster, request, controller_pb2.DescribeClusterResponse, context
        )
        reached = self._brokers()
        for described in response.brokers:
            broker = reached.get(described.endpoint.broker_id)
            described.endpoint.address = "" if broker is None else broker.address
            described.endpoint.ClearField("listeners")
        return response

    async def AlterConfigs(
        self, request: controller_pb2.AlterConfigsRequest, context: Context
    ) -> controller_pb2.AlterConfigsResponse:
        refused = _config_refusal(self._access(context), Operation.ALTER_CONFIGS, request.resource)
        if refused is not None:
            return controller_pb2.AlterConfigsResponse(error=to_proto(*refused))
        return await self._forward(
            lambda stub: stub.AlterConfigs, request, controller_pb2.AlterConfigsResponse, context
        )

    async def DescribeConfigs(
        self, request: controller_pb2.DescribeConfigsRequest, context: Context
    ) -> controller_pb2.DescribeConfigsResponse:
        """Refuses before it asks: what nobody may see is no work for the controller, nor for the brokers it asks."""
        access = self._access(context)
        if access is None:
            return await self._describe_configs(request, context)
        if refusal := too_large(request):
            return controller_pb2.DescribeConfigsResponse(error=to_proto(ErrorCode.INVALID_REQUEST, refusal))
        if request.all_of_kind:  # of users and clients, whose names alone say much
            if (error := cluster_error(access, Operation.DESCRIBE_CONFIGS)) is not None:
                return controller_pb2.DescribeConfigsResponse(error=error)
            return await self._describe_configs(request, context)
        divided = Divided(request.resources, lambda each: _describe_refusal(access, each))
        response = controller_pb2.DescribeConfigsResponse()
        if divided.allowed:
            asked = controller_pb2.DescribeConfigsRequest(resources=divided.allowed)
            response = await self._describe_configs(asked, context)
        if response.HasField("error"):
            return response
        for described in response.configs:
            _hide_config(access, described)
        return controller_pb2.DescribeConfigsResponse(configs=divided.merged(response.configs, _refused_config))

    async def ReassignPartitions(
        self, request: controller_pb2.ReassignPartitionsRequest, context: Context
    ) -> controller_pb2.ReassignPartitionsResponse:
        if (error := cluster_error(self._access(context), Operation.ALTER)) is not None:
            return controller_pb2.ReassignPartitionsResponse(error=error)
        return await self._forward(
            lambda stub: stub.ReassignPartitions, request, controller_pb2.ReassignPartitionsResponse, context
        )

    async def ElectLeaders(
        self, request: controller_pb2.ElectLeadersRequest, context: Context
    ) -> controller_pb2.ElectLeadersResponse:
        if (error := cluster_error(self._access(context), Operation.ALTER)) is not None:
            return controller_pb2.ElectLeadersResponse(error=error)
        return await self._forward(
            lambda stub: stub.ElectLeaders, request, controller_pb2.ElectLeadersResponse, context
        )

    # ACLs: where they count for nothing, nobody is to believe that they do.

    async def CreateAcls(
        self, request: controller_pb2.CreateAclsRequest, context: Context
    ) -> controller_pb2.CreateAclsResponse:
        if (error := self._acl_error(context, Operation.ALTER)) is not None:
            return controller_pb2.CreateAclsResponse(error=error)
        return await self._forward(lambda stub: stub.CreateAcls, request, controller_pb2.CreateAclsResponse, context)

    async def DescribeAcls(
        self, request: controller_pb2.DescribeAclsRequest, context: Context
    ) -> controller_pb2.DescribeAclsResponse:
        if (error := self._acl_error(context, Operation.DESCRIBE)) is not None:
            return controller_pb2.DescribeAclsResponse(error=error)
        return await self._forward(
            lambda stub: stub.DescribeAcls, request, controller_pb2.DescribeAclsResponse, context
        )

    async def DeleteAcls(
        self, request: controller_pb2.DeleteAclsRequest, context: Context
    ) -> controller_pb2.DeleteAclsResponse:
        if (error := self._acl_error(context, Operation.ALTER)) is not None:
            return controller_pb2.DeleteAclsResponse(error=error)
        return await self._forward(lambda stub: stub.DeleteAcls, request, controller_pb2.DeleteAclsResponse, context)

    def _acl_error(self, context: Context, operation: Operation) -> common_pb2.Error | None:
        if self._authorization is None:
            return to_proto(ErrorCode.SECURITY_DISABLED)
        return cluster_error(self._access(context), operation)

    # Not forwarded.

    async def ControlledShutdown(
        self, request: controller_pb2.ControlledShutdownRequest, context: Context
    ) -> controller_pb2.ControlledShutdownResponse:
        await _only_for_brokers(context)

    async def DescribeReadiness(
        self, request: controller_pb2.DescribeReadinessRequest, context: Context
    ) -> controller_pb2.DescribeReadinessResponse:
        await _only_for_brokers(context)


def _refused_topic(named: Any, refused: Refusal) -> controller_pb2.TopicResult:
    return controller_pb2.TopicResult(topic=named if isinstance(named, str) else named.topic, error=to_proto(*refused))


def _config_refusal(
    access: Access | None, operation: Operation, resource: controller_pb2.ConfigResource
) -> Refusal | None:
    """A topic's configuration is its own, any other the cluster's."""
    if resource.type == controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC:
        return may_not(access, operation, ResourceType.TOPIC, resource.name)
    return may_not(access, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _describe_refusal(access: Access, resource: controller_pb2.ConfigResource) -> Refusal | None:
    """None: the caller may hear something of it. That a topic is not there is told to whoever may DESCRIBE it:
    producers ask so (RULES 9.5)."""
    is_topic = resource.type == controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC
    if is_topic and access.may_topic(Operation.DESCRIBE, resource.name):
        return None
    return _config_refusal(access, Operation.DESCRIBE_CONFIGS, resource)


def _hide_config(access: Access, described: controller_pb2.ResourceConfig) -> None:
    """Takes out the configuration of a topic that the caller may only DESCRIBE."""
    refused = _config_refusal(access, Operation.DESCRIBE_CONFIGS, described.resource)
    if refused is not None and not described.HasField("error"):
        described.CopyFrom(_refused_config(described.resource, refused))


def _refused_config(resource: controller_pb2.ConfigResource, refused: Refusal) -> controller_pb2.ResourceConfig:
    return controller_pb2.ResourceConfig(resource=resource, error=to_proto(*refused))


def _overloaded(calls: OpenCalls, caller: str, what: str) -> common_pb2.Error:
    held = calls.by_caller.get(caller, 0)
    message = f"{calls.open} {what} are under way on this broker, {held} of them {caller}'s: try again after a pause"
    return to_proto(ErrorCode.OVERLOADED, message)


async def _only_for_brokers(context: Context) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not forwarded: a broker asks the controller itself")


def _time_left_s(context: Context) -> float:
    left_s = context.time_remaining()
    return LONGEST_S if left_s is None else min(max(left_s, 0.0), LONGEST_S)
