"""The room for produce requests on their way to log-storage, and what one caller may take of it."""

from __future__ import annotations

import asyncio
import math

OF_ONE = 0.75
"""The part of the room that one caller may take: the rest is there for whoever else comes, at once."""


class _Held:
    """By one caller. `freed` is set once it holds less than it may; None: nobody waits for that."""

    __slots__ = ("freed", "requests", "size")

    def __init__(self) -> None:
        self.requests = 0
        self.size = 0
        self.freed: asyncio.Event | None = None


class ProduceRoom:
    """At most `max_requests` requests of `max_bytes` bytes of records, a lone one of any size. Callers are told apart
    by their names; who has none is bounded as all together are. Only who holds something is kept in mind."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.size = 0
        self._left = asyncio.Event()  # there is some
        self._left.set()
        self._held: dict[str, _Held] = {}

    @property
    def callers(self) -> int:
        """Those who hold something."""
        return len(self._held)

    @property
    def is_full(self) -> bool:
        return self.requests >= self.max_requests or self.size >= self.max_bytes

    def resize(self, max_requests: int, max_bytes: int) -> None:
        """Takes other bounds: what is under way beyond them is finished."""
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self._tell()
        for held in self._held.values():
            self._tell_one(held)

    def refusal(self, caller: str, size: int) -> str:
        """The sentence that refuses a request of so many bytes; empty: there is room."""
        if self.requests >= self.max_requests or (self.size and self.size + size > self.max_bytes):
            return f"{self.requests} requests with {self.size} bytes are being written here: retry after a short pause"
        held = self._held.get(caller)
        if held is None or not (self._is_over(held) or held.size + size > self.max_bytes * OF_ONE):
            return ""
        return (
            f"{held.requests} requests with {held.size} bytes of {caller} are being written here, and others are to "
            "have room: retry after a short pause"
        )

    def take(self, caller: str, size: int) -> None:
        self.requests += 1
        self.size += size
        if self.is_full:
            self._left.clear()
        if caller:
            held = self._held.get(caller)
            if held is None:
                held = self._held[caller] = _Held()
            held.requests += 1
            held.size += size

    def give(self, caller: str, size: int) -> None:
        """Gives back what was taken, by the same caller and of the same size."""
        self.requests -= 1
        self.size -= size
        self._tell()
        if caller:
            held = self._held[caller]
            held.requests -= 1
            held.size -= size
            self._tell_one(held)
            if not held.requests:
                del self._held[caller]

    async def wait(self, caller: str) -> None:
        """Returns once another request of this caller may be taken."""
        await self._left.wait()
        while (held := self._held.get(caller)) is not None and self._is_over(held):
            if held.freed is None:
                held.freed = asyncio.Event()
            await held.freed.wait()

    def _is_over(self, held: _Held) -> bool:
        return held.requests >= math.ceil(self.max_requests * OF_ONE) or held.size >= self.max_bytes * OF_ONE

    def _tell(self) -> None:
        if self.is_full:
            self._left.clear()
        else:
            self._left.set()

    def _tell_one(self, held: _Held) -> None:
        if held.freed is not None and not self._is_over(held):
            held.freed.set()
            held.freed = None
