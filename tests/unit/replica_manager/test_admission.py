"""Admission of unary calls: rates of connections and of callers, and turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from highwater.replica_manager.admission.connection_rate import BUSY_BELOW, LOOK_S, RECOVERY_S, ConnectionRate
from highwater.replica_manager.admission.unary_calls import CALLS_A_TURN, MAX_WAIT_S, Admission, Turns

METADATA = "/highwater.v1.Broker/Metadata"


class AbortedError(Exception):
    pass


class Call:
    """Of an anonymous host: `host/connection`, or the host alone."""

    def __init__(self, peer: str) -> None:
        host, _, connection = peer.partition("/")
        self._peer = f"ipv4:{host}:{connection}"

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)


class Server:
    """One method behind an admission. `turn` counts the turns of the event loop in which calls have begun."""

    def __init__(
        self, calls_per_second: float, method: str = METADATA, of_caller: float = 1e9, busy: float = 1e9
    ) -> None:
        self.refused = 0
        self.now_s = 0.0
        self.begun: list[tuple[int, str]] = []  # (turn, connection)
        self._turn = 0
        self._counting = False
        self.idle_s = 0.0
        rate = ConnectionRate(calls_per_second, busy, lambda: self.idle_s)
        self._admission = Admission(rate, of_caller, self._refuse, lambda: self.now_s)
        self._handler = grpc.unary_unary_rpc_method_handler(self._serve)
        self._method = method

    def _refuse(self) -> None:
        self.refused += 1

    async def _serve(self, request: Any, context: Call) -> str:
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._count)
        self.begun.append((self._turn, context.peer().split(":")[1]))
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
    assert [turns.begin("a", "1") for _ in range(CALLS_A_TURN)] == [None] * CALLS_A_TURN
    waiting = [turns.begin("a", "1") for _ in range(3)]
    assert all(waiting)
    first = waiting[0]
    assert first is not None
    first.cancel()
    await asyncio.sleep(0)
    assert all(turn is not None and turn.done() for turn in waiting)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.begin("a", "1") is None, "nothing is left behind"


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


async def test_a_host_with_many_connections_has_one_turn_of_many() -> None:
    server = Server(1e9)
    calls = [server.call(f"flood/{number}") for number in range(200)] + [server.call("other/1") for _ in range(3)]
    await asyncio.gather(*calls)
    others = [place for place, (_, host) in enumerate(server.begun) if host == "other"]
    assert max(others) < 3 * CALLS_A_TURN, "it does not wait for every connection of the other"


async def test_the_connections_of_one_host_have_their_turns() -> None:
    turns = Turns()
    while turns.begin("host", "busy") is None:
        pass
    busy = [turns.begin("host", "busy") for _ in range(50)]
    quiet = turns.begin("host", "quiet")
    await asyncio.sleep(0)
    assert quiet is not None
    assert quiet.done()
    assert not all(turn is not None and turn.done() for turn in busy)


async def test_all_connections_of_a_host_have_one_rate_and_those_of_others_theirs() -> None:
    server = Server(1e9, of_caller=1)
    waiting = [asyncio.create_task(server.call(f"fast/{number}")) for number in range(int(MAX_WAIT_S))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(AbortedError, match="RESOURCE_EXHAUSTED.*host fast 1 by all of its"):
        await server.call("fast/new")
    assert server.refused == 1
    async with asyncio.timeout(0.6):
        assert await server.call("other/1") == "answer"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", "/highwater.v1.ReplicaControl/LeaderAndIsr"])
async def test_health_and_instructions_are_not_counted(method: str) -> None:
    server = Server(1, method)
    assert len(await asyncio.gather(*(server.call("any") for _ in range(50)))) == 50


async def test_a_busy_broker_slows_the_fastest_connections_and_no_others() -> None:
    server = Server(1_000, busy=20)
    for connection in ("fast", "slow"):
        await server.call(connection)
    for _ in range(40):  # the loop had no time to spare
        server.now_s += LOOK_S
        await server.call("slow")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(10):
        assert await server.call("fast") == "answer"  # what is saved up of the lower rate
    assert await server.call("slow") == "answer"
    assert loop.time() - begun < 0.04
    assert await server.call("fast") == "answer"
    assert loop.time() - begun >= 0.045, "a twentieth of a second"


def test_the_rate_of_a_connection_falls_at_once_and_rises_slowly() -> None:
    idle_s, now_s = 0.0, 0.0
    rate = ConnectionRate(500, 100, lambda: idle_s)
    assert rate.at(now_s) == 500
    now_s += LOOK_S / 2
    assert rate.at(now_s) == 500, "too soon to say"
    falling = []
    for _ in range(8):
        now_s += LOOK_S
        idle_s += LOOK_S * BUSY_BELOW * 0.9
        falling.append(rate.at(now_s))
    assert falling[0] < 500
    assert falling[-2:] == [100, 100]
    now_s += 1
    idle_s += 1
    assert rate.at(now_s) == 100 + 500 / RECOVERY_S
    now_s += RECOVERY_S
    idle_s += RECOVERY_S
    assert rate.at(now_s) == 500


def test_single_batches_do_not_keep_a_rate_down() -> None:
    """Every two seconds one holds the loop for 150 ms, more than two fifths of the time between two looks: the broker
    has nine tenths of its time to spare."""
    idle_s = 0.0
    rate = ConnectionRate(500, 100, lambda: idle_s)
    rates = []
    for look in range(240):
        rates.append(rate.at(look * LOOK_S))
        idle_s += LOOK_S - (0.15 if look % 8 == 4 else 0)
    assert set(rates) == {500}


def test_a_loop_that_does_not_tell_what_it_waits_has_the_whole_rate() -> None:
    rate = ConnectionRate(500, 100, lambda: None)
    assert {rate.at(LOOK_S * look) for look in range(10)} == {500}


def test_a_rate_that_is_below_the_one_of_a_busy_broker_stays() -> None:
    rate = ConnectionRate(50, 100, lambda: 0.0)
    assert {rate.at(LOOK_S * look) for look in range(10)} == {50}
