"""Identifies the calls of one server before they are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from highwater.security.mapping_rules import MappingRules
from highwater.security.principal import CallIdentity, current_call
from highwater.security.token_watch import TokenWatch
from highwater.security.tokens import MAX_TOKEN, InvalidTokenError, ShownToken, TokensBusyError

AUTHORIZATION = "authorization"
_BEARER = "bearer "
_OPEN_TO_ALL = "/grpc."  # health checks and reflection

Verify = Callable[[str], Awaitable[ShownToken]]
"""Looks at a token. Raises `InvalidTokenError`, `TokensBusyError`."""


class IdentifyCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Puts down whose call it is, for `principal_of`. A wrong token is UNAUTHENTICATED, before the call is taken;
    health checks and reflection are served to whoever asks.

    `verify` is None where no tokens are taken, for the reason that `no_tokens` says. While `ready` is not true calls
    are UNAVAILABLE. `watch` ends streams whose tokens count no more."""

    def __init__(
        self,
        rules: MappingRules,
        verify: Verify | None,
        *,
        no_tokens: str = "",
        ready: Callable[[], bool] = lambda: True,
        watch: TokenWatch | None = None,
    ) -> None:
        self._watch = watch
        self._by_certificate = CallIdentity(rules)
        self._verify = verify
        self._no_tokens = no_tokens
        self._ready = ready

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        if handler_call_details.method.startswith(_OPEN_TO_ALL):
            return await continuation(handler_call_details)
        if not self._ready():
            return _refuse(grpc.StatusCode.UNAVAILABLE, "this broker has not read the ACLs yet: ask another one")
        identity, shown = self._by_certificate, None
        try:
            token = _token_of(handler_call_details.invocation_metadata)
            if token:
                if self._verify is None:
                    raise InvalidTokenError(self._no_tokens)
                shown = await self._verify(token)
                identity = identity._replace(by_token=shown.principal)
        except InvalidTokenError as error:
            return _refuse(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except TokensBusyError as error:
            return _refuse(grpc.StatusCode.UNAVAILABLE, str(error))
        current_call.set(identity)  # of the task of this call, which is the one that serves it
        handler = await continuation(handler_call_details)
        if shown is None or self._watch is None or handler is None:
            return handler
        is_stream = handler.request_streaming or handler.response_streaming
        return self._watch.watched(handler, shown) if is_stream else handler


def _token_of(metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
    """Empty: the call shows none. Raises `InvalidTokenError`."""
    found = [value for key, value in metadata or () if key == AUTHORIZATION]
    if not found:
        return ""
    value = found[0] if isinstance(found[0], str) else found[0].decode("utf-8", "replace")
    if len(found) > 1 or value[: len(_BEARER)].lower() != _BEARER or not value[len(_BEARER) :].strip():
        raise InvalidTokenError("the metadata `authorization` is not `Bearer <token>`, once: write it so")
    if len(value) > MAX_TOKEN:
        raise InvalidTokenError(f"a token of more than {MAX_TOKEN} characters is none that counts here")
    return value[len(_BEARER) :].strip()


def _refuse(code: grpc.StatusCode, sentence: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that ends a call of any kind before it reads anything of it."""

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(code, sentence)

    return grpc.stream_stream_rpc_method_handler(refuse)
