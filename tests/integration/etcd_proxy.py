"""For tests: a TCP proxy in front of etcd that can be cut, and can swallow answers; and waiting for a condition."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Self


async def until(condition: Callable[[], object], timeout_s: float = 8.0) -> None:
    """Returns when the condition is true; fails the test when that takes longer."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in other processes too
            await asyncio.sleep(0.01)


class EtcdProxy:
    """Passes bytes on to `target` (`host:port`) until told otherwise. With `tls` it speaks that to its clients."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._host, port = target.rsplit(":", 1)
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.swallowing = False
        """Requests reach etcd, answers do not come back."""
        self.swallowed_bytes = 0
        self.answers_after_s = 0.0
        self._black_holes: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Breaks all connections and takes no more until `restore`."""
        self._refusing = True
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def restore(self) -> None:
        self._refusing = self.swallowing = False

    @contextlib.asynccontextmanager
    async def swallowing_answers(self) -> AsyncIterator[None]:
        """Ends with the connections broken, so that what was swallowed never comes."""
        self.swallowing = True
        try:
            yield
        finally:
            await self.cut()
            self.restore()

    def swallow_what_stands(self) -> None:
        """The connections that stand are black holes from now on: nothing goes through, either way. New ones work."""
        self._black_holes |= self._connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(task, reader, upstream, requests=True))
                both.create_task(self._pump(task, answers, writer, requests=False))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            self._connections.discard(task)
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()

    async def _pump(
        self,
        connection: asyncio.Task[None],
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        requests: bool,
    ) -> None:
        while data := await source.read(1 << 16):
            if connection in self._black_holes:
                continue
            if self.swallowing and not requests:
                self.swallowed_bytes += len(data)
                continue
            if self.answers_after_s and not requests:
                await asyncio.sleep(self.answers_after_s)
            target.write(data)
            await target.drain()
        raise ConnectionResetError
