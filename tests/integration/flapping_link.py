"""For tests: a TCP proxy that stands for a link which goes down without a word."""

from __future__ import annotations

import asyncio
from typing import Self


class FlappingLink:
    """Passes bytes on to `target` (`host:port`). While it is down nothing arrives, and who connects waits. The
    connections that it held then are never heard of again on the client's side, and ended on the server's: as where a
    server gave one up and what would have told the client was lost."""

    def __init__(self, target: str) -> None:
        self._host, port = target.rsplit(":", 1)
        self._port = int(port)
        self._up = asyncio.Event()
        self._up.set()
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.down()
        for client in self._clients:
            client.transport.abort()

    async def down(self) -> None:
        self._up.clear()
        passing = list(self._passing)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    def heal(self) -> None:
        self._up.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(writer)
        self._passing.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._up.wait()
            answers, upstream = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, upstream))
                both.create_task(self._pump(answers, writer))
        except (OSError, ExceptionGroup):
            writer.transport.abort()  # one of them has hung up, and the link is there to say so
        except asyncio.CancelledError:
            pass
        finally:
            self._passing.discard(task)
            if upstream is not None:
                upstream.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        raise ConnectionResetError
