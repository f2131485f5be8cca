"""The calls that are open at a server: bounded, and those of one caller, whatever they are, in a part of that.

A call counts from when it is begun, before its message has come, until it has ended; a stream as a unary one. One too
many ends at once. The controller's instructions, and who asks whether the server is well, have places of their own:
nobody's calls keep them out.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from highwater.rpc.handlers import behaviour_of, with_behaviour
from highwater.rpc.server import PEERS
from highwater.security.caller import UNIX, caller_of, current_caller

OWN_PLACES = 20
"""Of so many places one is for instructions and questions about health."""
INSTRUCTIONS = "/highwater.v1.ReplicaControl/"
_OWN = (INSTRUCTIONS, "/grpc.health.v1.Health/")

OF_ONE_PEER = 10_000
"""Of Highwater's own processes, by their hosts: of `PEERS`."""

Context = grpc.aio.ServicerContext[Any, Any]


class OpenCalls:
    """`most` calls at a time, `most_of_one` of one caller. Only callers with an open call are kept in mind."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self.open = 0
        self.by_caller: dict[str, int] = {}

    def begin(self, caller: str) -> str:
        """The sentence that refuses; empty: the call is counted until `end`."""
        held = self.by_caller.get(caller, 0)
        if held >= self.most_of_one and caller != UNIX:
            return f"OVERLOADED: {caller} has {held} calls open, which is all it may have: retry after a short pause"
        if self.open >= self.most:
            return f"OVERLOADED: {self.open} calls are open here: retry after a short pause"
        self.by_caller[caller] = held + 1
        self.open += 1
        return ""

    def end(self, caller: str) -> None:
        self.open -= 1
        held = self.by_caller[caller] - 1
        if held:
            self.by_caller[caller] = held
        else:
            del self.by_caller[caller]


class CallShares(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs' generic, and no class at run time
    """Of one server, behind the interceptors that tell who calls. `most` is what gRPC lets in; a twentieth of that is
    not for calls of everybody. `refused` is told of each refusal."""

    def __init__(self, most: int, most_of_one: int, refused: Callable[[], object] = lambda: None) -> None:
        own = most // OWN_PLACES
        self.calls = OpenCalls(most - own, most_of_one)
        self._own_calls = OpenCalls(most, most_of_one)
        self._refused = refused
        self._handlers: dict[str, tuple[Any, Any]] = {}  # by method: the handler, and what stands for it

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler: Any = await continuation(details)
        if handler is None:
            return None
        method: str = details.method
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            calls = self._own_calls if method.startswith(_OWN) else self.calls
            known = self._handlers[method] = (handler, self._counted(handler, calls))
        return known[1]

    def _counted(self, handler: Any, calls: OpenCalls) -> Any:
        """The handler, whose calls count. To gRPC all of them take a stream: it would read the one message of a unary
        call before anybody hears of the call, and whoever never ends that message would hold what nobody counts."""
        one = not handler.request_streaming
        behaviour = behaviour_of(handler)
        counted: Any
        if inspect.isasyncgenfunction(behaviour):

            async def generate(requests: Any, context: Context) -> AsyncIterator[Any]:
                caller = await self._begin(calls, context)
                try:
                    request = await _only(context) if one else requests
                    async with contextlib.aclosing(behaviour(request, context)) as responses:
                        del request  # a large one is its behaviour's to hold
                        async for response in responses:
                            yield response
                finally:
                    calls.end(caller)

            counted = generate
        else:

            async def answer(requests: Any, context: Context) -> Any:
                caller = await self._begin(calls, context)
                try:
                    return await behaviour(await _only(context) if one else requests, context)
                finally:
                    calls.end(caller)

            counted = answer
        return with_behaviour(handler, counted, takes_stream=True)

    async def _begin(self, calls: OpenCalls, context: Context) -> str:
        caller = caller_of(context)
        if refusal := calls.begin(caller):
            self._refused()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        current_caller.set(caller)  # of the task of this call, for whoever counts by it
        return caller


async def _only(context: Context) -> Any:
    """The message of a unary call."""
    request = await context.read()
    if request is EOF:  # its client has given it up, or sent none
        await context.abort(grpc.StatusCode.CANCELLED, "the call ended before its request came")
    return request


def peers_shares() -> CallShares:
    """Of a server that Highwater's own processes use."""
    assert PEERS.max_calls is not None
    return CallShares(PEERS.max_calls, OF_ONE_PEER)
