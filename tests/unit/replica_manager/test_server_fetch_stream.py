"""A replica's FetchStream is its session (RULES 4.1, 5.6): it closes with the call, whatever becomes of the handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest

from highwater.replica_manager.partition.actions import FetchSession
from highwater.replica_manager.partition.fetch_sessions import FetchSessions
from highwater.replica_manager.replicas.traced_batches import TracedBatches
from highwater.replica_manager.requests.fetch import FetchParams
from highwater.replica_manager.responses.fetch_parts import FetchRole
from highwater.replica_manager.responses.response_room import ResponseRoom, Turn
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.rpc.listeners import Listener
from highwater.v1 import broker_pb2

INTERNAL = Listener("INTERNAL", "INTERNAL")


class Sessions:
    """Stands where the broker stands; the stream asks it for nothing but sessions."""

    def __init__(self) -> None:
        self.sessions = FetchSessions()
        self.open: set[FetchSession] = set()

    def session_opened(self, session: FetchSession) -> None:
        self.open.add(session)

    def session_closed(self, session: FetchSession) -> None:
        self.sessions.close(session)
        self.open.discard(session)


class Nothing:
    """Answers every fetch at once, with nothing."""

    tracer = None
    traced = TracedBatches()

    def room(self, role: FetchRole, turn: Turn, caller: str) -> ResponseRoom:
        return ResponseRoom()

    def note_follower(self, params: FetchParams) -> None:
        assert params.session is not None

    async def answer(self, params: FetchParams) -> list[Any]:
        return []

    def answered(self, params: FetchParams, began_s: float) -> float:
        return began_s

    def refused(self, results: Sequence[Any]) -> None:
        assert not results


class Call:
    """What grpc.aio hands to a handler: requests, and a context that tells of the call's end."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []
        self.writing = asyncio.Event()

    async def requests(self) -> AsyncIterator[broker_pb2.FetchRequest]:
        yield broker_pb2.FetchRequest(replica=broker_pb2.ReplicaRole(broker_id=2, broker_epoch=7))
        await asyncio.Event().wait()

    async def write(self, response: bytes) -> None:
        self.writing.set()
        await asyncio.Event().wait()

    def peer(self) -> str:
        return "unix:"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


async def test_a_session_ends_with_its_call_even_while_the_handler_waits_for_its_response_to_be_written() -> None:
    broker, call, unused = Sessions(), Call(), cast(Any, None)
    servicer = BrokerServicer(
        cast(Any, broker), unused, cast(Any, Nothing()), unused, unused, unused, unused, lambda: "cluster", INTERNAL
    )
    handling = asyncio.create_task(servicer.FetchStream(call.requests(), cast(Any, call)))
    async with asyncio.timeout(10):
        await call.writing.wait()  # and it may never be written
        assert len(broker.open) == 1
        call.end()
        assert not broker.open
    handling.cancel()
    await asyncio.wait((handling,))


async def test_a_stream_whose_requests_cannot_be_taken_ends_with_the_error(caplog: pytest.LogCaptureFixture) -> None:
    """It used to end as if all were well, without a word in the log."""

    class Mistaken(Nothing):
        def note_follower(self, params: FetchParams) -> None:
            raise KeyError("a mistake of ours")

    broker, call, unused = Sessions(), Call(), cast(Any, None)
    servicer = BrokerServicer(
        cast(Any, broker), unused, cast(Any, Mistaken()), unused, unused, unused, unused, lambda: "cluster", INTERNAL
    )
    async with asyncio.timeout(10):
        with pytest.raises(KeyError, match="a mistake of ours"):
            await servicer.FetchStream(call.requests(), cast(Any, call))
    assert [record.message for record in caplog.records] == ["a fetch stream failed"]
