"""Those who wait for data: produces for the high watermark, fetches for bytes. Bounded over all partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.replica_manager.replicas.purgatory import FetchPurgatory, ProducePurgatory


class DataWait:
    """One request that waits for data, woken directly by the partitions that it waits for."""

    __slots__ = ("_future", "_woken", "ended")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._woken = False
        self.ended = False

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
            self._future = loop.create_future()
            timer = loop.call_later(timeout_s, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        self._woken = False


class WaitingProduce(NamedTuple):
    """One partition of a produce that log-storage has answered for and that is not committed yet."""

    leader_epoch: int
    end_offset: int
    done: Callable[[ErrorCode], None]


class Waits:
    def __init__(self, *, max_produces: int, max_fetches: int) -> None:
        """`max_produces` counts partitions, `max_fetches` requests of either kind."""
        self.produces: ProducePurgatory[WaitingProduce] = ProducePurgatory(max_produces)
        self.replicas: FetchPurgatory[DataWait] = FetchPurgatory(max_fetches)  # for the log end to move
        self.consumers: FetchPurgatory[DataWait] = FetchPurgatory(max_fetches)  # for the high watermark to move
