"""A write that many wait for, done once for all who asked before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from highwater.log_storage.thread_work import to_its_end


class SharedWrite:
    """`write` brings to disk what is so when it begins. One runs at a time, and those who ask meanwhile share the next:
    so thousands that ask at once cost two or three."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        self._writing = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None  # not begun yet

    async def written(self) -> None:
        """Returns when one is done that began after this was called; also where the caller is cancelled meanwhile.
        Raises what `write` raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(), name="shared-write")
        await to_its_end(self._next)

    async def _run(self) -> None:
        async with self._writing:
            self._next = None
            await self._write()
