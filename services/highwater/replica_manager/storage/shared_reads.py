"""Reads of log-storage that several fetches share: those that ask for the same at about the same time ask once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

# A small outcome serves a moment longer: a record wakes a thousand readers, and not all have room at once.
KEPT_S = 1.0
KEPT_BYTES = 1 << 20  # of all that are kept

T = TypeVar("T")


class _SharedRead(Generic[T]):
    __slots__ = ("key", "max_bytes", "readers", "task")

    def __init__(self, key: Hashable, max_bytes: int, task: asyncio.Task[T]) -> None:
        self.key = key
        self.max_bytes = max_bytes
        self.task = task
        self.readers = 0


class SharedReads(Generic[T]):
    """Bounded by its callers, and by what is kept: a read without callers is cancelled. `size_of` tells the bytes of an
    outcome; what has none, an error too, is never kept."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._reads: dict[Hashable, _SharedRead[T]] = {}  # of each key the one with the largest limit
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._reads)

    async def read(self, key: Hashable, max_bytes: int, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The outcome of another read of the same `key`, else of the one that `begin` makes. Equal keys promise that
        one's outcome does for the other, where it is within the other's limit: up to there both have read the same."""
        read = self._reads.get(key)
        if read is not None and read.max_bytes >= max_bytes:
            outcome = await self._outcome(read)
            if read.max_bytes == max_bytes or self._size_of(outcome) <= max_bytes:
                return outcome
            # Those with this limit share one of their own.
            return await self.read((key, max_bytes), max_bytes, begin)
        read = _SharedRead(key, max_bytes, asyncio.create_task(begin(), name="shared-read"))
        self._reads[key] = read
        read.task.add_done_callback(lambda _: self._done(read))
        return await self._outcome(read)

    async def _outcome(self, read: _SharedRead[T]) -> T:
        read.readers += 1
        try:
            return await asyncio.shield(read.task)
        finally:
            read.readers -= 1
            if not read.readers and not read.task.done():
                read.task.cancel()  # nobody wants it any more
                self._forget(read)

    def _done(self, read: _SharedRead[T]) -> None:
        size_bytes = 0
        if not read.task.cancelled() and read.task.exception() is None:
            size_bytes = self._size_of(read.task.result())
        if self._reads.get(read.key) is read and 0 < size_bytes <= KEPT_BYTES - self._kept_bytes:
            self._kept_bytes += size_bytes
            asyncio.get_running_loop().call_later(KEPT_S, self._let_go, read, size_bytes)
        else:
            self._forget(read)

    def _let_go(self, read: _SharedRead[T], size_bytes: int) -> None:
        self._kept_bytes -= size_bytes
        self._forget(read)

    def _forget(self, read: _SharedRead[T]) -> None:
        if self._reads.get(read.key) is read:
            del self._reads[read.key]
