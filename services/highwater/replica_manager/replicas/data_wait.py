"""One request that waits for data: a fetch, or a deletion of records that waits for the replicas."""

from __future__ import annotations

import asyncio


class DataWait:
    """One request that waits for data, woken directly by the partitions that it waits for."""

    __slots__ = ("_future", "_woken", "ended", "waited_s")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self.ended = False
        self.waited_s = 0.0

    def wake(self) -> None:
        """Something moved: look again."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def end(self) -> None:
        """Answer now, with whatever there is: a newer request of the stream has come (RULES 4.1)."""
        self.ended = True
        self.wake()

    async def wait(self, timeout_s: float) -> None:
        """Until woken (also since the last wait), ended or out of time."""
        if not (self._woken or self.ended or timeout_s <= 0):
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            self._future = loop.create_future()
            timer = loop.call_later(timeout_s, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
                self.waited_s += loop.time() - began_s
        self._woken = False
