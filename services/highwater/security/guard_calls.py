"""Takes internal RPCs from those alone whose they are, by their certificates."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from highwater.rpc.handlers import behaviour_of, with_behaviour
from highwater.security.internal_peers import OF_THE_NAMED_BROKER, InternalPeers
from highwater.security.mapping_rules import MappingRules
from highwater.security.principal import Principal, certificate_principal

_OPEN_TO_ALL = "/grpc."  # health checks and reflection
_UNIX = "unix:"

Context = grpc.aio.ServicerContext[Any, Any]
Guards = Callable[[str], bool]


class GuardCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs' generic, and no class at run time
    """A call of anybody else has the status PERMISSION_DENIED. By Unix sockets nobody shows a certificate: the file's
    permissions say who may connect. `guards` tells of a method whether it is one of these at all. It stands behind
    `CallShares`, for which each call takes a stream: some are looked at by what they ask for."""

    def __init__(self, peers: InternalPeers, rules: MappingRules, guards: Guards = lambda method: True) -> None:
        self._peers = peers
        self._rules = rules
        self._guards = guards

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_OPEN_TO_ALL) or not self._guards(method):
            return handler

        async def check(request: Any, context: Context) -> None:
            if by_socket(context):
                return
            principal = certificate_principal(self._rules, context.auth_context())
            refusal = self._peers.refusal(method, principal)
            if not refusal and method in OF_THE_NAMED_BROKER:
                assert not handler.request_streaming, method
                refusal = self._peers.named_refusal(method, request.broker_id, principal)
            if refusal:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)

        return _checked(handler, check)


def by_socket(context: Context) -> bool:
    """Tells whether a call came in by a Unix socket, from this host."""
    return (context.peer() or "").startswith(_UNIX)


class ReplicaIdentity:
    """Tells for one listener whether a call may fetch as a replica."""

    def __init__(self, peers: InternalPeers, rules: MappingRules) -> None:
        self._peers = peers
        self._rules = rules

    def refusal(self, context: Context, broker_id: int) -> str:
        """The sentence that refuses it; empty: it is that broker's."""
        if by_socket(context):
            return ""
        return self._peers.replica_refusal(broker_id, self.principal(context))

    def principal(self, context: Context) -> Principal:
        return certificate_principal(self._rules, context.auth_context())


def _checked(handler: Any, check: Callable[[Any, Context], Awaitable[None]]) -> Any:
    """The handler behind the check."""
    behaviour = behaviour_of(handler)
    checked: Any
    if inspect.isasyncgenfunction(behaviour):

        async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
            await check(request, context)
            async with contextlib.aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        checked = generate
    else:

        async def answer(request: Any, context: Context) -> Any:
            await check(request, context)
            return await behaviour(request, context)

        checked = answer
    return with_behaviour(handler, checked)
