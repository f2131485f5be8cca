"""Admission of unary calls: rates of connections, and turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from highwater.replica_manager.admission.unary_calls import CALLS_A_TURN, MAX_WAIT_S, Admission, Turns

METADATA = "/highwater.v1.Broker/Metadata"


class AbortedError(Exception):
    pass


class Call:
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)


class Server:
    """One method behind an admission. `turn` counts the turns of the event loop in which calls have begun."""

    def __init__(self, calls_per_second: float, method: str = METADATA) -> None:
        self.refused = 0
        self.now_s = 0.0
        self.begun: list[tuple[int, str]] = []  # (turn, connection)
        self._turn = 0
        self._counting = False
        self._admission = Admission(calls_per_second, self._refuse, lambda: self.now_s)
        self._handler = grpc.unary_unary_rpc_method_handler(self._serve)
        self._method = method

    def _refuse(self) -> None:
        self.refused += 1

    async def _serve(self, request: Any, context: Call) -> str:
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._count)
        self.begun.append((self._turn, context.peer()))
        return "answer"

    def _count(self) -> None:
        self._counting = False
        self._turn += 1

    async def call(self, connection: str) -> Any:
        async def continuation(details: Any) -> Any:
            return self._handler

        details: Any = SimpleNamespace(method=self._method)
        handler: Any = await self._admission.intercept_service(continuation, details)
        return await handler.unary_unary(None, Call(connection))


async def test_few_calls_begin_in_one_turn_and_connections_have_theirs_in_turn() -> None:
    server = Server(1e9)
    calls = [server.call("flood") for _ in range(200)] + [server.call("other") for _ in range(3)]
    assert set(await asyncio.gather(*calls)) == {"answer"}
    assert max(Counter(turn for turn, _ in server.begun).values()) <= CALLS_A_TURN
    others = [place for place, (_, connection) in enumerate(server.begun) if connection == "other"]
    assert max(others) < 3 * CALLS_A_TURN, "it does not wait for all that came before it"


async def test_a_call_that_is_given_up_takes_nobodys_turn() -> None:
    turns = Turns()
    assert [turns.begin("a") for _ in range(CALLS_A_TURN)] == [None] * CALLS_A_TURN
    waiting = [turns.begin("a") for _ in range(3)]
    assert all(waiting)
    first = waiting[0]
    assert first is not None
    first.cancel()
    await asyncio.sleep(0)
    assert all(turn is not None and turn.done() for turn in waiting)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.begin("a") is None, "nothing is left behind"


async def test_a_connection_beyond_its_rate_waits_and_others_do_not() -> None:
    server = Server(20)
    for _ in range(10):
        assert await server.call("fast") == "answer"  # what is saved up
    begun = asyncio.get_running_loop().time()
    assert await server.call("other") == "answer"
    assert asyncio.get_running_loop().time() - begun < 0.03
    assert await server.call("fast") == "answer"
    assert asyncio.get_running_loop().time() - begun >= 0.045, "a twentieth of a second"
    assert not server.refused


async def test_who_would_wait_too_long_is_refused_at_once_and_owes_nothing_for_it() -> None:
    server = Server(1)
    waiting = [asyncio.create_task(server.call("fast")) for _ in range(int(MAX_WAIT_S))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(AbortedError, match="RESOURCE_EXHAUSTED.*1 calls a second"):
            await server.call("fast")
    assert server.refused == 3
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    server.now_s += 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await server.call("fast")  # it waits again, and is not refused


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/highwater.v1.ReplicaControl/LeaderAndIsr"])
async def test_health_and_instructions_are_not_counted(method: str) -> None:
    server = Server(1, method)
    assert len(await asyncio.gather(*(server.call("any") for _ in range(50)))) == 50
