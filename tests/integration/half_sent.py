"""A client that begins gRPC messages and does not end them, over HTTP/2 by hand: no gRPC client does so, and one that
sends gigabytes would hold them itself."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4
_CHUNK = bytes(16 << 10)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """A literal, in no table, in no code."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(method: str, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """Of a call of gRPC."""
    return b"".join(
        header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"broker"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *((key.encode(), value.encode()) for key, value in metadata),
        )
    )


@dataclass
class HalfSent:
    """`streams` calls of `method`, each with a message of `message_bytes` of which the last byte is missing."""

    path: str  # of the server's socket
    method: str
    streams: int
    message_bytes: int
    refused: set[int] = field(default_factory=set)  # streams that the server has ended
    left: dict[int, int] = field(default_factory=dict)  # bytes of each that are still to be sent
    _windows: dict[int, int] = field(default_factory=dict)
    _window = 65_535  # of the connection
    _initial = 65_535
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> HalfSent:
        self._reader, self._writer = await asyncio.open_unix_connection(self.path)
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0, b""))
        self._reading = asyncio.create_task(self._read())
        headers = call_headers(self.method)
        for stream in range(1, 2 * self.streams, 2):
            self._windows[stream] = self._initial
            self.left[stream] = self.message_bytes - 1
            self._writer.write(frame(_HEADERS, _END_HEADERS, stream, headers))
        prefix = struct.pack(">BI", 0, self.message_bytes)
        for stream in self.left:
            self._send(stream, prefix)
        self._sending = asyncio.create_task(self._send_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        self._reading.cancel()
        await asyncio.gather(self._sending, self._reading, return_exceptions=True)
        self._writer.close()

    @property
    def open(self) -> set[int]:
        return self.left.keys() - self.refused

    async def settled(self) -> None:
        """Returns once the server has ended each stream, or been sent all of it but the last byte."""
        await asyncio.shield(self._sending)

    def _send(self, stream: int, payload: bytes) -> None:
        self._writer.write(frame(_DATA, 0, stream, payload))
        self._windows[stream] -= len(payload)
        self._window -= len(payload)

    async def _send_all(self) -> None:
        while any(self.left[stream] for stream in self.open):
            self._wake.clear()
            moved = False
            for stream in sorted(self.open):
                size = min(len(_CHUNK), self.left[stream], self._window, self._windows[stream])
                if size > 0:
                    self._send(stream, _CHUNK[:size])
                    self.left[stream] -= size
                    moved = True
            await self._writer.drain()
            if not moved:
                await self._wake.wait()

    async def _read(self) -> None:
        while True:
            head = await self._reader.readexactly(9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if kind == _SETTINGS and not flags & _ACK:
                for name, value in struct.iter_unpack(">HI", payload):
                    if name == _INITIAL_WINDOW_SIZE:
                        self._windows = {each: n + value - self._initial for each, n in self._windows.items()}
                        self._initial = value
                self._writer.write(frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._writer.write(frame(_PING, _ACK, 0, payload))
            elif kind == _WINDOW_UPDATE and stream == 0:
                self._window += int.from_bytes(payload, "big")
            elif kind == _WINDOW_UPDATE and stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
            elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
                self.refused.add(stream)
            elif kind == _GOAWAY:
                self.refused |= self.left.keys()
            self._wake.set()
