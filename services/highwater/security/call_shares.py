"""The calls that are open at a server: bounded, and those of one caller, whatever they are, in a part of that.

A call counts from when it is begun, before its message has come, until it has ended; a stream as a unary one. One too
many ends at once. The last places are kept for who asks whether the server is well, and of these the last half for the
controller's instructions: nobody's other calls keep them out. What is asked about health is part of its caller's calls,
as a stream of that may be open as long as any other.
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
from highwater.rpc.requests.unread_requests import UnreadableRequestError, guarded
from highwater.rpc.server import PEERS
from highwater.security.caller import UNIX, caller_of, current_caller

OWN_PLACES = 20
"""Of so many places one is for instructions and questions about health."""
INSTRUCTIONS = "/highwater.v1.ReplicaControl/"
HEALTH = "/grpc.health.v1.Health/"

_INSTRUCTING = "as a controller, "

PARTS = 3
"""A client may be two callers: what it calls with its token counts as its principal's, and without it as its host's.
With a third each they leave others a third."""

OF_ONE_PEER = 10_000
"""Of Highwater's own processes, by their hosts: of `PEERS`."""

Context = grpc.aio.ServicerContext[Any, Any]


def part_of_one(most: int) -> int:
    """Of `most` calls, those of one caller where no setting says."""
    return max(1, most // PARTS)


class OpenCalls:
    """`most` calls at a time, `most_of_one` of one caller. Only callers with an open call are kept in mind."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self.open = 0
        self.by_caller: dict[str, int] = {}

    def begin(self, caller: str, kept: int = 0) -> str:
        """The sentence that refuses; empty: the call is counted until `end`. `kept`: so many places are not for it."""
        held = self.by_caller.get(caller, 0)
        if held >= self.most_of_one and caller != UNIX:
            return f"OVERLOADED: {caller} has {held} calls open, which is all it may have: retry after a short pause"
        if self.open >= self.most - kept:
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
    """Of one server, behind the interceptors that tell who calls. `most` is what gRPC lets in, of whatever kind; a
    twentieth of that is not for calls of everybody. `refused` is told of each refusal."""

    def __init__(self, most: int, most_of_one: int, refused: Callable[[], object] = lambda: None) -> None:
        self.calls = OpenCalls(most, most_of_one)
        self._own = most // OWN_PLACES
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
            known = self._handlers[method] = (handler, self._counted(handler, method))
        return known[1]

    def _kept_from(self, method: str) -> int:
        """The places that are not for calls of the method."""
        if method.startswith(INSTRUCTIONS):
            return 0
        return (self._own + 1) // 2 if method.startswith(HEALTH) else self._own

    def _counted(self, handler: Any, method: str) -> Any:
        """The handler, whose calls count. To gRPC all of them take a stream: it would read the one message of a unary
        call before anybody hears of the call, and whoever never ends that message would hold what nobody counts.
        A message that would cost too much to read ends its call."""
        one = not handler.request_streaming
        kept = self._kept_from(method)
        # Who calls by the controller's host, and shows nothing, does not use up what the controller may have open.
        role = _INSTRUCTING if method.startswith(INSTRUCTIONS) else ""
        behaviour = behaviour_of(handler)
        counted: Any
        if inspect.isasyncgenfunction(behaviour):

            async def generate(requests: Any, context: Context) -> AsyncIterator[Any]:
                counted_as = await self._begin(context, kept, role)
                try:
                    request = await _only(context) if one else requests
                    async with contextlib.aclosing(behaviour(request, context)) as responses:
                        del request  # a large one is its behaviour's to hold
                        async for response in responses:
                            yield response
                except UnreadableRequestError as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                finally:
                    self.calls.end(counted_as)

            counted = generate
        else:

            async def answer(requests: Any, context: Context) -> Any:
                counted_as = await self._begin(context, kept, role)
                try:
                    return await behaviour(await _only(context) if one else requests, context)
                except UnreadableRequestError as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                finally:
                    self.calls.end(counted_as)

            counted = answer
        deserializer = guarded(handler.request_deserializer)
        return with_behaviour(handler, counted, takes_stream=True, deserializer=deserializer)

    async def _begin(self, context: Context, kept: int, role: str) -> str:
        """Returns the name under which the call is counted."""
        caller = caller_of(context)
        counted_as = role + caller
        if refusal := self.calls.begin(counted_as, kept):
            self._refused()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        current_caller.set(caller)  # of the task of this call, for whoever counts by it
        return counted_as


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
