"""Work in threads that outlives the call which has begun it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

from highwater.telemetry.log import get_logger

_log = get_logger("log_storage.thread_work")

Answer = TypeVar("Answer")


async def to_its_end(work: asyncio.Future[Answer]) -> Answer:
    """The outcome of work in a thread. A call is cancelled when its caller goes away or its deadline passes; the thread
    is not. So the locks that the call holds are kept until the thread is done: nobody else may touch the log before,
    and no fence that is not on disk yet may be answered for (RULES 3.1)."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((work,))
        if not work.cancelled() and (error := work.exception()) is not None:
            _log.error("failed, and nobody waited for it: %s", error)
        raise
