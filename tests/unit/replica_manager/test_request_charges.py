"""The quota `request_percentage`: every call of a client is charged what its handler takes of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import thread_time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from highwater.quotas.client_quotas import Entity, Quota
from highwater.replica_manager.admission.request_charges import RequestCharges, counted
from highwater.replica_manager.admission.throttling import Throttling
from highwater.replica_manager.server.group_session import MOST_OF_SESSION, GroupSession
from highwater.v1 import controller_pb2, group_pb2

METADATA = "/highwater.v1.Broker/Metadata"
WORK_S = 0.02


def work(seconds: float) -> None:
    end_s = thread_time() + seconds
    while thread_time() < end_s:
        pass


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class AbortedError(Exception):
    pass


class Call:
    def invocation_metadata(self) -> Any:
        return (("client-id", "app"),)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)


class Server:
    """A method whose handler works for `WORK_S`, waits, and works as long again. A debt is paid as time is told."""

    def __init__(self, percentage: str | None, method: str = METADATA) -> None:
        self.clock = Clock()
        self.throttling = Throttling(clock_s=self.clock)
        self.throttled: list[Quota] = []
        self.throttling.throttled = lambda quota, pause_s: self.throttled.append(quota)
        if percentage is not None:
            self.throttling.configure(Entity(None, "app"), {"request_percentage": percentage})
        self.response: Any = b""
        self.begun = 0
        self.waits = asyncio.Event()
        self._charges = RequestCharges(self.throttling)
        self._handler = grpc.unary_unary_rpc_method_handler(self._serve)
        self._method = method

    async def _serve(self, request: Any, context: Any) -> Any:
        self.begun += 1
        work(WORK_S)
        await self.waits.wait()
        work(WORK_S)
        return self.response

    async def call(self) -> Any:
        async def continuation(details: Any) -> Any:
            return self._handler

        details: Any = SimpleNamespace(method=self._method)
        handler: Any = await self._charges.intercept_service(continuation, details)
        return await handler.unary_unary(None, Call())

    def owed_s(self) -> float:
        return self.throttling.of(Call())._owed_s(self.clock.now_s)  # type: ignore[arg-type]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_call_is_charged_its_steps_and_not_its_waits() -> None:
    took: list[float] = []

    async def handler() -> str:
        work(WORK_S)
        await asyncio.get_running_loop().run_in_executor(None, work, 10 * WORK_S)
        work(WORK_S)
        return "answer"

    assert await counted(handler(), took.append) == "answer"
    (seconds,) = took
    assert 2 * WORK_S <= seconds < 10 * WORK_S


async def test_a_handler_hears_of_its_cancellation_and_of_errors() -> None:
    took: list[float] = []
    heard: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def counting() -> None:
        await counted(handler(), took.append)

    task = asyncio.create_task(counting())
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await counted(failing(), took.append)
    assert len(took) == 2


async def test_the_next_call_of_who_owes_waits() -> None:
    server = Server("1")  # 10 ms a second, of which half a second may be taken at once
    server.waits.set()
    await server.call()
    assert server.throttled == [Quota.REQUEST]
    next_call = asyncio.create_task(server.call())
    await settled()
    assert server.begun == 1
    server.throttling.configure(Entity(None, "app"), {})  # what is owed is nothing any more
    await next_call
    assert server.begun == 2


async def test_who_owes_too_much_is_refused() -> None:
    server = Server("0.1")  # 1 ms a second: 40 ms take 40 s
    server.waits.set()
    await server.call()
    with pytest.raises(AbortedError) as refused:
        await server.call()
    assert refused.value.args[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.begun == 1
    server.clock.now_s += 60
    await server.call()


async def test_an_answer_that_has_the_field_says_how_long_to_pause() -> None:
    server = Server("1")
    server.waits.set()
    server.response = controller_pb2.CreateTopicsResponse()
    assert (await server.call()).throttle_ms > 1_000
    server = Server("1")
    server.waits.set()
    server.response = group_pb2.CommitOffsetsResponse()  # it has none
    assert await server.call() is server.response


@pytest.mark.parametrize(
    "method", ["/grpc.health.v1.Health/Check", "/highwater.v1.ReplicaControl/X", "/highwater.v1.Broker/Produce"]
)
async def test_calls_that_are_not_charged_here(method: str) -> None:
    server = Server("1", method)
    server.waits.set()
    await server.call()
    assert not server.throttled


async def test_without_the_quota_nothing_is_counted() -> None:
    server = Server(None)
    server.throttling.of = None  # type: ignore[assignment,method-assign]
    server.waits.set()
    assert await server.call() == b""


async def test_a_members_stream_is_charged_and_hardly_held_up() -> None:
    throttling = Throttling(clock_s=Clock())
    throttling.configure(Entity(None, "app"), {"request_percentage": "0.1"})
    pauses: list[float] = []

    async def await_change(most_s: float) -> None:
        pauses.append(most_s)
        throttling.clock_s.now_s += most_s  # type: ignore[attr-defined]

    throttling.await_change = await_change  # type: ignore[method-assign]
    config = SimpleNamespace(session_timeout_ms=20_000)
    coordinator: Any = SimpleNamespace(config=config, heard=lambda *_: work(WORK_S))
    session = GroupSession(coordinator, "host", None, throttling.of(Call()))  # type: ignore[arg-type]

    async def requests() -> AsyncIterator[group_pb2.SessionRequest]:
        yield group_pb2.SessionRequest(group="g", member_id="m")
        assert pauses == [pytest.approx(20 * MOST_OF_SESSION)], "before the next one is read"

    await session.read(requests())
    assert pauses
