"""An Append stream over the append socket, with the methods that gRPC's call has. It shares no code with ours: it holds
the frames to what `rpc/framed_stream.py` says of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from highwater.v1 import log_storage_pb2

HELLO, REFUSED, MESSAGE = 1, 2, 3
GREETING = b"\x01\x00\x00\x00" + bytes([HELLO]) + b"\x01"


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + bytes([kind]) + payload


class AppendCall:
    """Connects when it is first used. `address` is that of the gRPC server."""

    def __init__(self, address: str) -> None:
        self.incarnation = ""
        self._path = address.removeprefix("unix:") + ".append"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._connecting = asyncio.Lock()
        self._unanswered = 0
        self._done = False

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self._connecting:
            if self._streams is None:
                reader, writer = await asyncio.open_unix_connection(self._path)
                self._streams = reader, writer
                writer.write(GREETING)
                kind, payload = await self.receive()
                assert (kind, payload[0]) == (HELLO, 1), payload
                self.incarnation = payload[1:].decode()
        return self._streams

    async def receive(self) -> tuple[int, bytes]:
        assert self._streams is not None
        header = await self._streams[0].readexactly(5)
        return header[4], await self._streams[0].readexactly(int.from_bytes(header[:4], "little"))

    async def write(self, request: log_storage_pb2.AppendRequest) -> None:
        _, writer = await self.connect()
        self._unanswered += 1
        writer.write(frame(MESSAGE, request.SerializeToString()))
        await writer.drain()

    async def read(self) -> Any:
        await self.connect()
        if self._done and not self._unanswered:
            self.cancel()
            return grpc.aio.EOF  # type: ignore[attr-defined]
        kind, payload = await self.receive()
        assert kind == MESSAGE
        self._unanswered -= 1
        return log_storage_pb2.AppendResponse.FromString(payload)

    async def done_writing(self) -> None:
        """There is no half of a stream: the last answer ends it."""
        self._done = True
        if not self._unanswered:
            self.cancel()

    def cancel(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            yield response
