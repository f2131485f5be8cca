"""Admission of clients' unary calls: bounded rates, bounded turns.

A call comes as soon as gRPC has read it, whoever sent it and however many others it has sent. Two things keep one
client from the others' time:

- Calls of a connection beyond its rate wait, each until it is due, and those of a caller beyond the rate of all its
  connections. Nothing else is slowed: the connection has as many calls open as HTTP/2 lets it, and no more come. A
  client that would have to wait too long is refused. The rate of a connection is lower while the loop is busy.
- Few calls begin in one turn of the event loop: the callers have their turns, and of each its connections. So whatever
  else the loop has to do (the controller's instructions, streams, the lease's answers) comes round after a bounded
  number of them.

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
from highwater.replica_manager.admission.connection_rate import ConnectionRate
from highwater.security.caller import UNIX, caller_of

CALLS_A_TURN = 8
MAX_WAIT_S = 5.0
_FREE = ("/grpc.health.v1.Health/", "/grpc.reflection.", "/highwater.v1.ReplicaControl/")
"""Calls that are not counted: who asks whether the broker is well is to hear of it, and the controller instructs it,
where a broker has one listener for all."""

Context = grpc.aio.ServicerContext[Any, Any]
_Behavior = Callable[[Any, Context], Awaitable[Any]]


_Calls = OrderedDict[str, deque[asyncio.Future[None]]]  # by connection, of one caller


class Turns:
    """Lets `CALLS_A_TURN` calls begin in each turn of the event loop. Those that wait are of callers in their turn, of
    one caller of its connections in their turn, and of one connection in the order in which they came."""

    def __init__(self) -> None:
        self._begun = 0  # in this turn
        self._waiting: OrderedDict[str, _Calls] = OrderedDict()

    def begin(self, caller: str, connection: str) -> asyncio.Future[None] | None:
        """None: the call may begin. A future: once that is done."""
        loop = asyncio.get_running_loop()
        if self._begun < CALLS_A_TURN and not self._waiting:
            self._begun += 1
            if self._begun == 1:
                loop.call_soon(self._next_turn)
            return None
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(caller, OrderedDict()).setdefault(connection, deque()).append(turn)
        return turn

    def _next_turn(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < CALLS_A_TURN:
            turn = self._first()
            if not turn.done():  # else its client has given it up
                self._begun += 1
                turn.set_result(None)
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _first(self) -> asyncio.Future[None]:
        """Takes it out; its caller and connection go to the end."""
        caller, connections = self._waiting.popitem(last=False)
        connection, calls = connections.popitem(last=False)
        turn = calls.popleft()
        if calls:
            connections[connection] = calls
        if connections:
            self._waiting[caller] = connections
        return turn


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Of the listeners that clients use. `of_caller` is in calls a second, too; `refused` is told of each refusal."""

    def __init__(
        self,
        of_connection: ConnectionRate,
        of_caller: float,
        refused: Callable[[], object] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_connection = of_connection
        self._of_caller = of_caller
        self._refused = refused
        self._clock_s = clock_s
        self._turns = Turns()
        self._connections: Buckets[str] = Buckets()
        self._callers: Buckets[str] = Buckets()
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
            connection, caller = context.peer(), caller_of(context)
            if wait_s := self._wait_s(connection, caller):
                if wait_s > MAX_WAIT_S:
                    self._refused()
                    rate = self._of_connection.at(self._clock_s())
                    message = (
                        f"OVERLOADED: a connection may make {rate:.4g} calls a second now, "
                        f"and {caller} {self._of_caller:g} by all of its: retry after a pause"
                    )
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
                await asyncio.sleep(wait_s)
            turn = self._turns.begin(caller, connection)
            if turn is not None:
                await turn
            return await behavior(request, context)

        return admitted

    def _wait_s(self, connection: str, caller: str) -> float:
        """Counts the call, unless it would have to wait for too long. Clients of Unix sockets cannot be told apart."""
        now_s, wait_s = self._clock_s(), 0.0
        taken = []
        if connection != UNIX:
            taken.append(self._connections.of(connection, self._of_connection.at(now_s), now_s))
        if caller != UNIX:
            taken.append(self._callers.of(caller, self._of_caller, now_s))
        for bucket in taken:
            wait_s = max(wait_s, bucket.take(1, now_s))
        if wait_s > MAX_WAIT_S:
            for bucket in taken:
                bucket.take(-1, now_s)
        return wait_s
