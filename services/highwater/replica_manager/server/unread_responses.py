"""Responses that are written and not taken: whoever leaves one for too long is hung up on.

gRPC holds a response until its reader has room for it. A server can neither take it back nor end a call whose response
is being written. Only the end of its connection does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc.aio

from highwater.rpc.hang_up import hang_up
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.unread_responses")

TIMEOUT_S = 30.0
SLOWEST_BYTES_PER_S = 1 << 20  # a response has so much longer: what is being read is not cut off for its size

Context = grpc.aio.ServicerContext[Any, Any]


class ResponseWatch:
    """The responses of one call, one after the other."""

    def __init__(self, context: Context, timeout_s: float, closed: Callable[[], object]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._closed = closed
        self._timer: asyncio.TimerHandle | None = None

    def begun(self, size_bytes: int) -> None:
        """A response goes to gRPC now."""
        limit_s = self._timeout_s + size_bytes / SLOWEST_BYTES_PER_S
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._overdue, limit_s, size_bytes)

    def taken(self) -> None:
        """It is written, or the call is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self, limit_s: float, size_bytes: int) -> None:
        peer = self._context.peer()
        facts = pairs(peer=peer, response_bytes=size_bytes, waited_s=round(limit_s, 1))
        if hang_up(peer):
            self._closed()
            logger.warning("the connection of a client that does not take its response is closed %s", facts)
        else:
            logger.warning("a client does not take its response, and its connection cannot be closed %s", facts)


class UnreadResponses:
    """`closed` is called for each connection that is closed."""

    def __init__(self, timeout_s: float = TIMEOUT_S, closed: Callable[[], object] = lambda: None) -> None:
        self._timeout_s = timeout_s
        self._closed = closed

    def of(self, context: Context) -> ResponseWatch:
        return ResponseWatch(context, self._timeout_s, self._closed)

    def watch_unary(self, context: Context, size_bytes: int) -> None:
        """The only response of a call, which ends when that is written."""
        watch = self.of(context)
        watch.begun(size_bytes)
        context.add_done_callback(cast(Any, lambda _: watch.taken()))
