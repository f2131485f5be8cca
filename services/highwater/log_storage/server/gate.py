"""The service while its logs are being opened: DescribeLogs tells how far that is, everything else has to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from highwater.log_storage.log_manager.log_manager import LogManager

SERVICE_NAME = "highwater.v1.LogStorage"
_CALLS = f"/{SERVICE_NAME}/"
_ANSWERED_EARLIER = f"{_CALLS}DescribeLogs"


REFUSAL = "log-storage is opening its logs: DescribeLogs tells how far it is"


async def _refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, REFUSAL)


_REFUSED = grpc.unary_unary_rpc_method_handler(_refuse)
_REFUSED_STREAM = grpc.stream_stream_rpc_method_handler(_refuse)


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs' generic, and no class at run time
    """Refuses calls of LogStorage as UNAVAILABLE until the manager's logs are open, as a server that is not there yet
    would: callers try again. DescribeLogs is answered as soon as the directories are known. A call that has passed, be
    it a stream of hours, is not looked at again."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if self._manager.loaded or handler is None:
            return handler
        method = handler_call_details.method
        if not method.startswith(_CALLS) or (method == _ANSWERED_EARLIER and self._manager.locked):
            return handler
        return _REFUSED_STREAM if handler.request_streaming else _REFUSED
