"""Admission of clients' unary calls: bounded rates, bounded turns.

A call comes as soon as gRPC has read it, whoever sent it and however many others it has sent. Two things keep one
client from the others' time:

- Calls of a connection beyond its rate wait, each until it is due. Nothing else is slowed: the connection has as many
  calls open as HTTP/2 lets it, and no more come. A client that would have to wait too long is refused.
- Few calls begin in one turn of the event loop, those of each connection in their turn. So whatever else the loop has
  to do (the controller's instructions, streams, the lease's answers) comes round after a bounded number of them.

Streams are not counted: one gives one request a turn, and is not read while its client is to pause.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from highwater.quotas.buckets import Buckets

CALLS_A_TURN = 8
MAX_WAIT_S = 5.0
_FREE = ("/grpc.health.v1.Health/", "/grpc.reflection.", "/highwater.v1.ReplicaControl/")
"""Calls that are not counted: who asks whether the broker is well is to hear of it, and the controller instructs it,
where a broker has one listener for all."""
_ALIKE = "unix:"
"""What gRPC calls every client of a Unix socket: their connections cannot be told apart."""

Context = grpc.aio.ServicerContext[Any, Any]
_Behavior = Callable[[Any, Context], Awaitable[Any]]


class Turns:
    """Lets `CALLS_A_TURN` calls begin in each turn of the event loop. Those that wait are of connections in their turn;
    of one connection in the order in which they came."""

    def __init__(self) -> None:
        self._begun = 0  # in this turn
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def begin(self, connection: str) -> asyncio.Future[None] | None:
        """None: the call may begin. A future: once that is done."""
        loop = asyncio.get_running_loop()
        if self._begun < CALLS_A_TURN and not self._waiting:
            self._begun += 1
            if self._begun == 1:
                loop.call_soon(self._next_turn)
            return None
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(connection, deque()).append(turn)
        return turn

    def _next_turn(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < CALLS_A_TURN:
            connection, calls = self._waiting.popitem(last=False)
            turn = calls.popleft()
            if calls:
                self._waiting[connection] = calls
            if not turn.done():  # else its client has given it up
                self._begun += 1
                turn.set_result(None)
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Of the listeners that clients use. `calls_per_second` is of one connection. `refused` is told of each refusal."""

    def __init__(
        self,
        calls_per_second: float,
        refused: Callable[[], object] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = calls_per_second
        self._refused = refused
        self._clock_s = clock_s
        self._turns = Turns()
        self._connections: Buckets[str] = Buckets()
        self._handlers: dict[str, tuple[Any, Any]] = {}  # by method: the handler, and what stands for it

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler: Any = await continuation(details)
        method: str = details.method
        if handler is None or handler.unary_unary is None or method.startswith(_FREE):
            return handler
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            admitted = grpc.unary_unary_rpc_method_handler(
                self._admitted(handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
            known = self._handlers[method] = (handler, admitted)
        return known[1]

    def _admitted(self, behavior: _Behavior) -> _Behavior:
        async def admitted(request: Any, context: Context) -> Any:
            connection = context.peer()
            now_s = self._clock_s()
            bucket = self._connections.of(connection, self._rate, now_s)
            if (wait_s := bucket.take(1, now_s)) > 0 and connection != _ALIKE:
                if wait_s > MAX_WAIT_S:
                    bucket.take(-1, now_s)
                    self._refused()
                    message = f"OVERLOADED: a connection may make {self._rate:g} calls a second"
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
                await asyncio.sleep(wait_s)
            turn = self._turns.begin(connection)
            if turn is not None:
                await turn
            return await behavior(request, context)

        return admitted
