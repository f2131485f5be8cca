"""Ends streams whose token counts no more: removed, expired, or signed by a key that its issuer has taken back."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from highwater.rpc.handlers import behaviour_of, with_behaviour
from highwater.security.tokens import ShownToken
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)

TICK_S = 0.4
TOKEN_ENDED = "highwater-token-ended"
"""In the trailing metadata of a stream that was ended so: its client opens another, with the token that it has then."""
_SENTENCE = (
    "the token of this stream counts no more, as it was removed or has expired: open another one with a new token"
)


class TokenWatch:
    """Looks every `TICK_S`, while streams with tokens are open: at the time, and at the tokens where `revision` says
    that they have changed. A message costs nothing.

    `revision` reads again what is to be read, and counts the changes."""

    def __init__(self, revision: Callable[[], int], wall_s: Callable[[], float] = time.time) -> None:
        self._revision = revision
        self._wall_s = wall_s
        self._seen = 0
        self._open: dict[asyncio.Task[Any], ShownToken] = {}
        # Whose tokens the last look did not find: where the next one does not either, it was no file in the middle of
        # being written.
        self._missed: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._first_s = math.inf  # when the first of them expires
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def watched(self, handler: Any, shown: ShownToken) -> Any:
        """The handler of a stream of this token."""
        behaviour = behaviour_of(handler)
        hands_out = inspect.isasyncgenfunction(behaviour)

        async def serve(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._add(task, shown)
            try:
                if not hands_out:
                    return await behaviour(request, context)
                async with contextlib.aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        await context.write(response)
            except asyncio.CancelledError:
                if task not in self._ended:
                    raise
                task.uncancel()
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, _SENTENCE, ((TOKEN_ENDED, "true"),))
            finally:
                self._open.pop(task, None)
                self._ended.discard(task)
                self._missed.discard(task)

        return with_behaviour(handler, serve)

    def _add(self, task: asyncio.Task[Any], shown: ShownToken) -> None:
        self._open[task] = shown
        self._first_s = min(self._first_s, shown.until_s)
        if not shown.counts():  # it was removed since it was looked at
            self._seen = -1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._open:
            self._first_s = math.inf
            return
        # Before anything that may fail: who looks no more lets everybody stay.
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        now_s, revision = self._wall_s(), self._revision()
        if revision != self._seen or now_s >= self._first_s or self._missed:
            self._seen = revision
            missed = {task for task, shown in self._open.items() if not shown.counts()}
            over = {task for task, shown in self._open.items() if now_s >= shown.until_s} | (missed & self._missed)
            self._missed = missed - over
            for task in over:
                del self._open[task]
                self._ended.add(task)
                task.cancel()
            if over:
                _log.info("streams have ended, as their tokens count no more %s", pairs(streams=len(over)))
            self._first_s = min((shown.until_s for shown in self._open.values()), default=math.inf)
