"""Responses that are written and not taken: whoever leaves one for too long is hung up on.

gRPC holds a response until its reader has room for it. A server can neither take it back nor end a call whose response
is being written. Only the end of its connection does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import grpc.aio

from highwater.rpc.hang_up import hang_up
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.unread_responses")

TIMEOUT_S = 30.0
SLOWEST_BYTES_PER_S = 1 << 20  # a response has so much longer: what is being read is not cut off for its size

# A connection that could not be found or shut down just now is tried again so often.
TRIES = 5
TRY_AGAIN_S = 1.0

Context = grpc.aio.ServicerContext[Any, Any]


class _Writing(NamedTuple):
    """A response that is being written."""

    due_s: float  # of the event loop's time; overdue after that
    limit_s: float  # from its beginning
    size_bytes: int


class ResponseWatch:
    """The responses of one call, one after the other."""

    def __init__(
        self, context: Context, timeout_s: float, closed: Callable[[], object], local_port: Callable[[], int]
    ) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._closed = closed
        self._local_port = local_port
        self._writing: _Writing | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hung_up = False

    def begun(self, size_bytes: int) -> None:
        """A response goes to gRPC now."""
        loop = asyncio.get_running_loop()
        limit_s = self._timeout_s + size_bytes / SLOWEST_BYTES_PER_S
        self._writing = _Writing(loop.time() + limit_s, limit_s, size_bytes)
        if self._timer is None or self._timer.when() > self._writing.due_s:
            self._arm(loop)

    def taken(self) -> None:
        """It is written. The timer stays for the next one: to make one for each would cost a lone record's way a
        hundredth."""
        self._writing = None

    def ended(self) -> None:
        """The call is over."""
        self._writing = None
        self._disarm()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._disarm()
        if self._writing is not None:
            self._timer = loop.call_at(self._writing.due_s, self._look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        writing, loop = self._writing, asyncio.get_running_loop()
        if writing is not None and writing.due_s > loop.time():
            self._arm(loop)
        elif writing is not None:
            self._overdue(writing, 1)

    def _overdue(self, writing: _Writing, attempt: int) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._writing is not writing:  # it has been taken
            self._arm(loop)
            return
        peer = self._context.peer()
        waited_s = writing.limit_s + (attempt - 1) * TRY_AGAIN_S
        facts = pairs(peer=peer, response_bytes=writing.size_bytes, waited_s=round(waited_s, 1))
        hung_up = hang_up(peer, self._local_port())
        if hung_up and not self._hung_up:
            self._hung_up = True
            self._closed()
            logger.warning("the connection of a client that does not take its response is closed %s", facts)
        if attempt < TRIES:  # until the call is over: `ended`
            self._timer = loop.call_later(TRY_AGAIN_S, self._overdue, writing, attempt + 1)
        elif not hung_up:
            logger.warning("a client does not take its response, and its connection cannot be closed %s", facts)


class UnreadResponses:
    """`closed` is called for each connection that is closed. `local_port` tells that of the listener that the calls
    come in by, once it is bound; 0: it is a unix socket, whose connections cannot be closed."""

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        closed: Callable[[], object] = lambda: None,
        local_port: Callable[[], int] = lambda: 0,
    ) -> None:
        self._timeout_s = timeout_s
        self._closed = closed
        self._local_port = local_port

    def of(self, context: Context) -> ResponseWatch:
        return ResponseWatch(context, self._timeout_s, self._closed, self._local_port)

    def watch_unary(self, context: Context, size_bytes: int) -> None:
        """The only response of a call, which ends when that is written."""
        watch = self.of(context)
        watch.begun(size_bytes)
        context.add_done_callback(cast(Any, lambda _: watch.ended()))
