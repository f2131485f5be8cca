"""The bound on what a producer holds."""

from __future__ import annotations

import asyncio
from collections import deque

from highwater.client.exceptions import BufferExhaustedError


class BufferMemory:
    """Bytes in use and who waits for fewer. The accumulator adds to `used_bytes` by itself (the hot path)."""

    __slots__ = ("_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def fits(self, size_bytes: int) -> bool:
        """A piece larger than everything fits when nothing else is held: it could never go otherwise."""
        return self.used_bytes + size_bytes <= self.limit_bytes or self.used_bytes == 0

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, timeout_s: float) -> None:
        """Waits until something was released. Raises `BufferExhaustedError` after `timeout_s`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await waiter
        except TimeoutError:
            raise BufferExhaustedError(
                f"the producer's buffer of {self.limit_bytes} bytes stayed full for max_block_ms: the cluster "
                "acknowledges more slowly than records are sent; send less, or raise buffer_memory or max_block_ms"
            ) from None
