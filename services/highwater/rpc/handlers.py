"""The handlers of gRPC's methods, taken apart and put together again by interceptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


def behaviour_of(handler: Any) -> Any:
    """The function that serves the calls of a method."""
    return getattr(handler, _kind(handler.request_streaming, handler.response_streaming))


def with_behaviour(
    handler: Any,
    behaviour: Any,
    *,
    takes_stream: bool | None = None,
    deserializer: Callable[[bytes], Any] | None = None,
) -> Any:
    """The handler with another function. `takes_stream`: whether that one takes a stream of requests; `deserializer`:
    what makes them of bytes; None: as the handler's own does."""
    requests = handler.request_streaming if takes_stream is None else takes_stream
    make = getattr(grpc, f"{_kind(requests, handler.response_streaming)}_rpc_method_handler")
    return make(behaviour, deserializer or handler.request_deserializer, handler.response_serializer)


def _kind(requests: bool, responses: bool) -> str:
    """As gRPC names what streams and what does not."""
    return f"{'stream' if requests else 'unary'}_{'stream' if responses else 'unary'}"
