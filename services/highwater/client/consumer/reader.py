"""Records as they are handed out: waits for them, takes the partitions in turn, and tells the group of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pyarrow as pa

from highwater.client.consumer.consumer_record import ConsumerRecord
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.consumer.fetcher import Fetcher
from highwater.client.consumer.group_assignment import GroupAssignment
from highwater.client.consumer.record_run import RecordRun
from highwater.client.notebook import RowList
from highwater.telemetry.application_span import application_span

_IDLE_S = 3600.0  # of a loop without records, before it begins to wait anew


class Reader:
    """Owned by one consumer. `change` is set when there may be something to hand out, or it was stopped;
    `check_running` raises where it cannot be used, `is_running` tells whether it was not stopped meanwhile."""

    def __init__(
        self,
        fetcher: Fetcher,
        group: GroupAssignment | None,
        change: asyncio.Event,
        *,
        check_running: Callable[[], None],
        is_running: Callable[[], bool],
    ) -> None:
        self._fetcher = fetcher
        self._group = group
        self._change = change
        self._check_running = check_running
        self._is_running = is_running

    async def records(self, limit: int, timeout_ms: float) -> list[ConsumerRecord]:
        """See `Consumer.poll`. Awaits nothing once it has taken something."""
        deadline = monotonic() + timeout_ms / 1000
        found: list[ConsumerRecord] = RowList()
        while not found:
            if await self.next_ready(deadline) is None:
                return found
            for buffer in list(self._fetcher.ready.values()):
                if len(found) >= limit:
                    break
                while len(found) < limit and buffer.ready:
                    try:
                        records, index = buffer.current()
                    except Exception:
                        if not found:
                            buffer.told()
                            raise
                        break  # what was found first; the error comes with the next call
                    end = min(index + limit - len(found), len(records))
                    found += records[index:end]
                    buffer.handed_out(end)
                    self.touched(buffer)
                    if end == len(records):
                        self._turn(buffer)
        return found

    async def batches(self, limit: int, timeout_ms: float, *, include_headers: bool) -> list[pa.RecordBatch]:
        """See `Consumer.poll_batches`. Awaits nothing once it has taken something."""
        left = limit
        deadline = monotonic() + timeout_ms / 1000
        found: list[pa.RecordBatch] = []
        while not found:
            if await self.next_ready(deadline) is None:
                return []
            for buffer in list(self._fetcher.ready.values()):
                if left <= 0:
                    break
                while left > 0 and buffer.ready:
                    try:
                        columns = buffer.take_columns(left, include_headers=include_headers)
                    except Exception:
                        if not found:
                            buffer.told()
                            raise
                        break  # what was taken first; the error comes with the next call
                    self.touched(buffer)  # also where all that was left was passed over
                    if columns is None:
                        break
                    found.append(columns)
                    left -= columns.num_rows
                self._turn(buffer)
        return found

    async def run(self) -> RecordRun | None:
        """The next records to be given one by one, which may be none; None: it was stopped meanwhile."""
        while (buffer := await self.next_ready(monotonic() + _IDLE_S)) is None:
            if not self._is_running():
                return None
        group, partition = self._group, buffer.partition
        try:
            if group is None:
                run = RecordRun(buffer, self._is_running)
            else:
                run = RecordRun(buffer, lambda: self._is_running() and not group.asks_for_more(partition))
                group.giving(partition)
        except Exception:
            buffer.told()
            raise
        self._turn(buffer)
        return run

    def touched(self, buffer: FetchBuffer) -> None:
        """The position of this one has changed."""
        if self._group is not None:
            self._group.touched(buffer.partition)

    async def next_ready(self, deadline: float) -> FetchBuffer | None:
        """A partition with something to hand out (or to raise); None at the deadline.

        Lets the event loop run once, so that fetching goes on beside a caller that only reads.
        """
        self._check_running()
        group = self._group
        if group is None:
            return await self._next_of_all(deadline)
        group.poll_began()
        try:
            return await self._next_of_all(deadline)
        finally:
            group.poll_ended()

    async def _next_of_all(self, deadline: float) -> FetchBuffer | None:
        fetcher = self._fetcher
        if not fetcher.is_traced or (parent := application_span()) is None:
            return await self._next_of_fetched(deadline)
        fetcher.parent = parent
        try:
            return await self._next_of_fetched(deadline)
        finally:
            fetcher.parent = None

    async def _next_of_fetched(self, deadline: float) -> FetchBuffer | None:
        self._fetcher.wake()
        await asyncio.sleep(0)
        while True:
            while self._group is not None and self._group.needs_attention:
                await self._group.settle()
            for buffer in list(self._fetcher.ready.values()):
                if buffer.ready:
                    return buffer
                self._turn(buffer)
            remaining = deadline - monotonic()
            if remaining <= 0 or not self._is_running():
                return None
            await self.changed(remaining)

    async def changed(self, timeout_s: float) -> None:
        """Waits until something may have changed, or for so long."""
        self._change.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._change.wait()
        except TimeoutError:
            return

    def _turn(self, buffer: FetchBuffer) -> None:
        """Puts it at the end of the line, so that a full partition starves no other; or out of it."""
        ready = self._fetcher.ready
        if ready.get(buffer.partition) is buffer:
            del ready[buffer.partition]
            if buffer.ready:
                ready[buffer.partition] = buffer
