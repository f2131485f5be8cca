"""Measures the calls of a server with one request and one response, by their names."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc.aio

from highwater.telemetry.request_times import RequestMetrics

_OTHERS = ("grpc.",)  # health checks and reflection


class MeasuredCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs' generic, and no class at run time
    """Streams are measured, message by message, by those who answer them; so are the calls named in `besides`."""

    def __init__(self, requests: RequestMetrics, besides: frozenset[str] = frozenset()) -> None:
        self._requests = requests
        self._besides = besides
        self._measured: dict[Any, Any] = {}  # the handlers that there are are known from the start

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        measured = self._measured.get(handler)
        if measured is None:
            service, _, name = handler_call_details.method.strip("/").rpartition("/")
            left_out = service.startswith(_OTHERS) or name in self._besides
            measured = self._measured[handler] = handler if left_out else self._measure(handler, name)
        return cast("grpc.RpcMethodHandler[Any, Any]", measured)

    def _measure(self, handler: Any, name: str) -> Any:
        answer, times = handler.unary_unary, self._requests.total(name)

        async def measured(request: Any, context: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return await answer(request, context)
            finally:
                times.observe(time.perf_counter() - began_s)

        return grpc.unary_unary_rpc_method_handler(
            measured,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
