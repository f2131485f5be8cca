"""The quota `request_percentage` of unary calls: what their handlers take of the event loop is charged.

Most answers have no field for a pause. So it is the next call of whoever owes that waits, until the debt is paid; who
owes more than `MAX_THROTTLE_S` is refused. Produces charge themselves, by the client that the request names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import thread_time
from types import coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.admission.throttling import CallCharges, Throttling

_FREE = ("/grpc.health.v1.Health/", "/grpc.reflection.", "/highwater.v1.ReplicaControl/")
_CHARGED_BY_REQUEST = "/highwater.v1.Broker/Produce"
_THROTTLE_MS = "throttle_ms"

Context = grpc.aio.ServicerContext[Any, Any]
_Behavior = Callable[[Any, Context], Coroutine[Any, Any, Any]]
_Result = TypeVar("_Result")


class RequestCharges(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Of the listeners that clients use."""

    def __init__(self, throttling: Throttling) -> None:
        self._throttling = throttling
        self._handlers: dict[str, tuple[Any, Any]] = {}  # by method: the handler, and what stands for it

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler: Any = await continuation(details)
        method: str = details.method
        if handler is None or handler.unary_unary is None or method.startswith(_FREE) or method == _CHARGED_BY_REQUEST:
            return handler
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            charged = grpc.unary_unary_rpc_method_handler(
                self._charged(handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
            known = self._handlers[method] = (handler, charged)
        return known[1]

    def _charged(self, behavior: _Behavior) -> _Behavior:
        throttling = self._throttling

        async def charged(request: Any, context: Context) -> Any:
            if not throttling.quotas.is_set(Quota.REQUEST):
                return await behavior(request, context)
            charges = throttling.of(context)
            if charges.is_over(Quota.REQUEST, ""):
                message = f"{ErrorCode.THROTTLING_QUOTA_EXCEEDED.name}: {charges.refusal()}"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
            if charges.is_over(Quota.REQUEST, "", most_s=0.0):
                await charges.pause()
            response = await counted(
                behavior(request, context), lambda took_s: charges.charge(Quota.REQUEST, "", took_s)
            )
            _tell(response, charges)
            return response

        return charged


def _tell(response: Any, charges: CallCharges) -> None:
    """Says how long to pause, where the answer has a field for it."""
    if charges.pausing and hasattr(response, _THROTTLE_MS):
        response.throttle_ms = max(response.throttle_ms, charges.throttle_ms)


@coroutine
def counted(work: Coroutine[Any, Any, _Result], took: Callable[[float], object]) -> Generator[Any, Any, _Result]:
    """Awaits it. `took` is told at its end of the processor time that it has taken, in seconds: not of the time in
    which it waited, nor of tasks that it has started."""
    took_s = 0.0
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            begun_s = thread_time()
            try:
                waited_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                result: _Result = end.value
                return result
            finally:
                took_s += thread_time() - begun_s
            value = error = None
            try:
                value = yield waited_for
            except BaseException as raised:  # a cancellation too: it is the handler's to take
                error = raised
    finally:
        took(took_s)
