"""Administration that a broker forwards: to whoever acts, in the client's time, never twice where it may be done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self, cast

import grpc
import grpc.aio
import pytest

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import ControllerRegistration
from highwater.metadata.store.etcd_errors import StoreError, Unavailable
from highwater.replica_manager.membership import active_controller
from highwater.replica_manager.membership.active_controller import ActiveControllerLookup
from highwater.replica_manager.replicas.metadata_cache import Endpoint
from highwater.replica_manager.server.controller_forwarder import (
    MAX_DESCRIBING,
    MAX_FORWARDED,
    ControllerForwarder,
    Forwarding,
)
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto, to_proto
from highwater.security.access import Authorization
from highwater.security.authorizer import Authorizer
from highwater.security.call_identity import IdentifyCalls
from highwater.security.call_shares import OpenCalls, part_of_one
from highwater.security.mapping_rules import MappingRules
from highwater.security.principal import user
from highwater.security.tokens import ShownToken
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc

TOPIC = controller_pb2.CreateTopicsRequest(topics=[controller_pb2.NewTopic(topic="t")], timeout_ms=5_000)


class FakeController(controller_pb2_grpc.ControllerServicer):
    def __init__(self) -> None:
        self.acts = True
        self.asked = 0
        self.time_left_s = 0.0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.address = ""
        self._server = grpc.aio.server()

    async def start(self) -> Self:
        controller_pb2_grpc.add_ControllerServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(None)

    async def CreateTopics(self, request: controller_pb2.CreateTopicsRequest, context: Any) -> Any:
        self.asked += 1
        self.time_left_s = context.time_remaining()
        await self.go_on.wait()
        hint = controller_pb2.ControllerHint(controller_id=7, address="controller:1")
        if not self.acts:
            return controller_pb2.CreateTopicsResponse(error=to_proto(ErrorCode.NOT_CONTROLLER), controller=hint)
        exists = to_proto(ErrorCode.TOPIC_ALREADY_EXISTS, "topic t exists")
        results = [controller_pb2.TopicResult(topic=new.topic, error=exists) for new in request.topics]
        return controller_pb2.CreateTopicsResponse(controller=hint, results=results)

    async def DescribeCluster(self, request: controller_pb2.DescribeClusterRequest, context: Any) -> Any:
        if not self.acts:
            return controller_pb2.DescribeClusterResponse(error=to_proto(ErrorCode.NOT_CONTROLLER))
        response = controller_pb2.DescribeClusterResponse()
        for broker_id in (1, 2):
            endpoint = common_pb2.BrokerEndpoint(broker_id=broker_id, address=f"in:{broker_id}")
            endpoint.listeners.add(name="INTERNAL", address=f"in:{broker_id}")
            response.brokers.add(endpoint=endpoint)
        return response

    async def DescribeConfigs(self, request: controller_pb2.DescribeConfigsRequest, context: Any) -> Any:
        self.asked += 1
        await self.go_on.wait()
        return controller_pb2.DescribeConfigsResponse()

    async def ReassignPartitions(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not served by this version")


class World:
    """Two controllers, a forwarding broker, and what etcd says: `acting` is a controller, nobody, or a failure."""

    def __init__(self) -> None:
        self.controllers: list[FakeController] = []
        self.acting: int | StoreError | None = 0
        self.epoch = 1
        self.looks = 0
        self.etcd_answers = asyncio.Event()
        self.etcd_answers.set()
        self._server = grpc.aio.server(interceptors=[IdentifyCalls(MappingRules("DEFAULT"), _verify)])
        self.controller = ActiveControllerLookup(cast(Any, None), cast(Any, None))

    async def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(active_controller, "read_controller", self._read)
        self.controllers = [await FakeController().start(), await FakeController().start()]
        self.forwarding = Forwarding(self.controller)
        forwarder = ControllerForwarder(self.forwarding, lambda: {1: Endpoint(1, 5, "out:1", "")})
        controller_pb2_grpc.add_ControllerServicer_to_server(forwarder, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.channel = open_channel(f"127.0.0.1:{port}")
        self.stub: Any = controller_pb2_grpc.ControllerStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self._server.stop(None)
        await self.controller.close()
        for controller in self.controllers:
            await controller.stop()

    async def _read(self, store: object, keys: object) -> ControllerRegistration | None:
        self.looks += 1
        await asyncio.sleep(0.05)
        await self.etcd_answers.wait()
        if self.acting is None:
            return None
        if isinstance(self.acting, StoreError):
            raise self.acting
        return ControllerRegistration(self.acting, self.controllers[self.acting].address, self.epoch, "i")

    async def create(self, timeout_s: float = 10.0, who: str = "") -> controller_pb2.CreateTopicsResponse:
        metadata = (("authorization", f"Bearer {who}"),) if who else ()
        response: controller_pb2.CreateTopicsResponse = await self.stub.CreateTopics(
            TOPIC, timeout=timeout_s, metadata=metadata
        )
        return response


async def _verify(token: str) -> ShownToken:
    return ShownToken(user(token), lambda: True)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()
    await made.start(monkeypatch)
    try:
        yield made
    finally:
        await made.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_the_answer_is_the_controllers_without_a_way_to_it(world: World) -> None:
    response = await world.create()
    (result,) = response.results
    assert (from_proto(result.error), result.error.message) == (ErrorCode.TOPIC_ALREADY_EXISTS, "topic t exists")
    assert (response.controller.controller_id, response.controller.address) == (7, "")
    with pytest.raises(grpc.aio.AioRpcError, match="not served by this version") as raised:
        await world.stub.ReassignPartitions(controller_pb2.ReassignPartitionsRequest(), timeout=5)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_etcd_is_read_once_for_many_calls(world: World) -> None:
    await asyncio.gather(*(world.create() for _ in range(20)))
    await world.create()
    assert world.looks == 1


async def test_one_that_does_not_act_any_more_is_left_for_the_one_that_does(world: World) -> None:
    await world.create()
    world.controllers[0].acts, world.acting = False, 1
    assert from_proto((await world.create()).error) is ErrorCode.NONE
    assert [controller.asked for controller in world.controllers] == [2, 1]


async def test_where_nobody_else_acts_the_client_hears_so_and_tries_again(world: World) -> None:
    world.controllers[0].acts = False
    response = await world.create()
    assert (from_proto(response.error), response.error.retriable) == (ErrorCode.NOT_CONTROLLER, True)
    assert (world.controllers[0].asked, response.controller.address) == (1, "")
    world.acting = None
    assert from_proto((await world.create()).error) is ErrorCode.NOT_CONTROLLER


async def test_a_call_that_nobody_answered_is_not_made_again(world: World) -> None:
    """It may have been carried out: the client is told, and decides."""
    first = world.controllers[0]
    first.go_on.clear()
    creating = asyncio.create_task(world.create())
    await until(lambda: first.asked == 1)
    world.acting = 1
    await first.stop()
    response = await creating
    assert (from_proto(response.error), response.error.retriable) == (ErrorCode.NETWORK_EXCEPTION, True)
    assert world.controllers[1].asked == 0
    assert from_proto((await world.create()).error) is ErrorCode.NONE
    assert world.controllers[1].asked == 1


async def test_a_call_under_way_at_a_former_controller_is_let_end_and_its_connection_closed(world: World) -> None:
    first, second = world.controllers
    first.go_on.clear()
    creating = asyncio.create_task(world.create())
    await until(lambda: first.asked == 1)
    link = await world.controller.find()
    assert link is not None
    world.acting, first.acts = 1, False
    await world.stub.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=5)
    assert (await world.controller.find()) is not link
    first.acts = True
    first.go_on.set()
    assert from_proto((await creating).error) is ErrorCode.NONE
    assert (first.asked, second.asked) == (1, 0)
    await until(lambda: link._channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


async def test_the_controller_has_the_time_that_the_client_has(world: World) -> None:
    await world.create(timeout_s=3.0)
    assert 2.0 < world.controllers[0].time_left_s <= 3.0
    world.controllers[0].go_on.clear()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await world.create(timeout_s=0.3)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_what_is_above_the_bound_is_refused_at_once(world: World) -> None:
    world.forwarding.calls = OpenCalls(2, 2)
    world.controllers[0].go_on.clear()
    under_way = [asyncio.create_task(world.create()) for _ in range(2)]
    await until(lambda: world.controllers[0].asked == 2)
    refused = await world.create(timeout_s=5)
    assert (from_proto(refused.error), refused.error.retriable) == (ErrorCode.OVERLOADED, True)
    world.controllers[0].go_on.set()
    assert [from_proto((await each).error) for each in under_way] == [ErrorCode.NONE] * 2
    assert from_proto((await world.create()).error) is ErrorCode.NONE


async def test_one_caller_leaves_room_to_others(world: World) -> None:
    """Calls that take their whole time are each its caller's."""
    controller = world.controllers[0]
    controller.go_on.clear()
    most = part_of_one(MAX_FORWARDED)
    mallory = [asyncio.create_task(world.create(who="mallory")) for _ in range(MAX_FORWARDED)]
    await until(lambda: controller.asked == most and sum(each.done() for each in mallory) == MAX_FORWARDED - most)
    refused = next(each.result() for each in mallory if each.done())
    assert (from_proto(refused.error), refused.error.retriable) == (ErrorCode.OVERLOADED, True)
    assert f"{most} of them User:mallory's" in refused.error.message
    alice = asyncio.create_task(world.create(who="alice"))
    await until(lambda: controller.asked == most + 1)
    controller.go_on.set()
    assert from_proto((await alice).error) is ErrorCode.NONE
    await asyncio.gather(*mallory)
    assert not world.forwarding.calls.by_caller


async def test_one_caller_leaves_room_to_the_questions_of_others(world: World) -> None:
    controller = world.controllers[0]
    controller.go_on.clear()

    def describe(who: str) -> Any:
        metadata = (("authorization", f"Bearer {who}"),)
        return world.stub.DescribeConfigs(controller_pb2.DescribeConfigsRequest(), timeout=10, metadata=metadata)

    mallory = [describe("mallory") for _ in range(MAX_DESCRIBING)]
    await until(lambda: sum(each.done() for each in mallory) == MAX_DESCRIBING - part_of_one(MAX_DESCRIBING))
    alice = describe("alice")
    await until(lambda: controller.asked == part_of_one(MAX_DESCRIBING) + 1)
    controller.go_on.set()
    assert from_proto((await alice).error) is ErrorCode.NONE
    await asyncio.gather(*mallory)
    assert not world.forwarding.describing.by_caller


async def test_a_client_that_gives_up_makes_room(world: World) -> None:
    world.forwarding.calls = OpenCalls(1, 1)
    world.controllers[0].go_on.clear()
    call = world.stub.CreateTopics(TOPIC, timeout=60)
    await until(lambda: world.controllers[0].asked == 1)
    call.cancel()
    world.controllers[0].go_on.set()
    async with asyncio.timeout(5):
        while from_proto((await world.create()).error) is ErrorCode.OVERLOADED:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_silent_etcd_is_waited_for_once_by_all(world: World) -> None:
    world.acting = Unavailable("etcd does not answer")
    responses = await asyncio.gather(*(world.create() for _ in range(20)))
    assert {from_proto(response.error) for response in responses} == {ErrorCode.NOT_CONTROLLER}
    assert "etcd does not answer" in responses[0].error.message
    assert world.looks <= 2
    world.acting = 0
    assert from_proto((await world.create()).error) is ErrorCode.NONE


async def test_a_look_that_was_given_up_is_not_the_look_of_those_who_wait(world: World) -> None:
    """Who asks whether a topic exists has a second; an administrator waits for a slow etcd for longer."""
    world.etcd_answers.clear()
    given_up = asyncio.create_task(world.create(timeout_s=0.3))
    await until(lambda: world.looks == 1)
    waiting = [asyncio.create_task(world.create()) for _ in range(3)]
    with pytest.raises(grpc.aio.AioRpcError):
        await given_up
    await until(lambda: world.looks == 2 or all(each.done() for each in waiting))
    world.etcd_answers.set()
    assert [from_proto((await each).error) for each in waiting] == [ErrorCode.NONE] * 3
    assert world.looks == 2


async def test_brokers_are_described_by_the_addresses_of_the_listener(world: World) -> None:
    response = await world.stub.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=5)
    assert [each.endpoint.address for each in response.brokers] == ["out:1", ""]
    assert not any(each.endpoint.listeners for each in response.brokers)


async def test_what_only_brokers_ask_is_not_forwarded(world: World) -> None:
    for method in ("ControlledShutdown", "DescribeReadiness"):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await world.channel.unary_unary(f"/highwater.v1.Controller/{method}")(b"", timeout=5)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert world.looks == 0


async def test_questions_for_configurations_leave_room_for_other_administration(world: World) -> None:
    """Every client that sends to a topic which nobody made asks one (RULES 9.5)."""
    world.forwarding.calls, world.forwarding.describing = OpenCalls(4, 4), OpenCalls(2, 2)
    controller = world.controllers[0]
    controller.go_on.clear()

    async def describe() -> controller_pb2.DescribeConfigsResponse:
        request = controller_pb2.DescribeConfigsRequest()
        response: controller_pb2.DescribeConfigsResponse = await world.stub.DescribeConfigs(request, timeout=10)
        return response

    asking = [asyncio.create_task(describe()) for _ in range(2)]
    await until(lambda: controller.asked == 2)
    refused = await asyncio.gather(*(describe() for _ in range(10)))
    assert {from_proto(each.error) for each in refused} == {ErrorCode.OVERLOADED}
    assert all(each.error.retriable for each in refused)
    creating = [asyncio.create_task(world.create()) for _ in range(2)]
    await until(lambda: controller.asked == 4)
    controller.go_on.set()
    for call in (*asking, *creating):
        assert from_proto((await call).error) is ErrorCode.NONE
    assert from_proto((await describe()).error) is ErrorCode.NONE


async def test_what_nobody_may_see_is_no_work_for_the_controller() -> None:
    """A caller without rights takes none of the room of those who have some."""
    lookup = ActiveControllerLookup(cast(Any, None), cast(Any, None))  # fails where it is asked
    authorization = Authorization(Authorizer(), lambda topic_id: None)
    forwarder = ControllerForwarder(Forwarding(lookup), dict, authorization)
    kinds = {
        controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        controller_pb2.CONFIG_RESOURCE_TYPE_BROKER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        controller_pb2.CONFIG_RESOURCE_TYPE_USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        controller_pb2.CONFIG_RESOURCE_TYPE_CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
    request = controller_pb2.DescribeConfigsRequest(
        resources=[controller_pb2.ConfigResource(type=kind, name="1") for kind in kinds]
    )
    response = await forwarder.DescribeConfigs(request, cast(Any, None))
    assert [from_proto(each.error) for each in response.configs] == list(kinds.values())
    assert [each.resource for each in response.configs] == list(request.resources)


async def test_a_request_that_names_too_much_goes_no_further(world: World) -> None:
    request = controller_pb2.CreateTopicsRequest(topics=[controller_pb2.NewTopic(topic="t")] * 1_001)
    response = await world.stub.CreateTopics(request, timeout=10)
    assert from_proto(response.error) is ErrorCode.INVALID_REQUEST
    assert response.error.message == "a request with 1001 topics: 1000 are the most, send several"
    assert [controller.asked for controller in world.controllers] == [0, 0]
