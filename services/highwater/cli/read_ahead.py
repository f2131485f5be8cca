"""Input read by a thread, for an event loop that must not wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """The items of an iterator that may block: a pipe into which somebody types. Made on the event loop.

    At most `limit` items are read before they are taken. The thread ends with the iterator or with the process.
    """

    def __init__(self, items: Iterator[T], limit: int = 10_000) -> None:
        self._items = items
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()  # there is something to take, or the end was reached
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._read: list[T] = []
        self._ended = False
        self._error: Exception | None = None
        threading.Thread(target=self._read_all, name="read-ahead", daemon=True).start()

    async def take(self) -> list[T]:
        """Returns what was read since the last call, waiting for the first; empty at the end. Raises what the iterator
        raised, behind all items before it."""
        await self._some.wait()
        with self._lock:
            taken, self._read = self._read, []
            if not self._ended:
                self._some.clear()
            self._room.notify()
        if not taken and self._error is not None:
            raise self._error
        return taken

    def _read_all(self) -> None:
        try:
            for item in self._items:
                with self._lock:
                    while len(self._read) >= self._limit:
                        self._room.wait()
                    self._read.append(item)
                    first = len(self._read) == 1
                if first:
                    self._wake()
        except Exception as error:
            self._error = error
        with self._lock:
            self._ended = True
        self._wake()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._some.set)
