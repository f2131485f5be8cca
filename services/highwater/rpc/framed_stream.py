"""A bidirectional stream of protobuf messages over a Unix socket of its own: what a gRPC stream between two processes
of one host carries, for less CPU (no HTTP/2, no other thread between the socket and the event loop).

    frame    length of the payload, 4 bytes; kind, 1 byte; payload. Numbers are little-endian.
    HELLO    the first frame of each side, the client's before the server's: version of this layout, 1 byte; then the
             server's incarnation in ASCII, and nothing from a client. Where the two versions differ neither says more,
             and the stream is gRPC's. This frame is the same in every version.
    REFUSED  instead of the server's HELLO, and the connection ends: the reason, a sentence in UTF-8.
    MESSAGE  one message as protobuf serialises it: a request from the client, a response from the server.

There is no other frame, and no half of a stream: who closes has ended all of it. Why a stream ended is not told but by
REFUSED; what was asked and not answered by then is of unknown outcome.

The socket's file stands beside that of the gRPC server: who has the address of one has the other's (`socket_path`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from highwater.rpc.connections.channel import MAX_MESSAGE_BYTES

VERSION = 1
# A client that does not say HELLO, or a server that does not answer it.
HELLO_TIMEOUT_S = 10.0

_HEADER = struct.Struct("<IB")
_MAX_HELLO_BYTES = 1 << 10  # nobody has said yet that it is a peer of ours
_BUFFER_BYTES = 256 << 10  # most messages; one that is larger has a buffer of its own


class Kind(IntEnum):
    HELLO = 1
    REFUSED = 2
    MESSAGE = 3


class FrameError(Exception):
    """No frame of this layout, or one that is too large. The connection is of no use any more."""


def socket_path(address: str, suffix: str) -> Path | None:
    """The path of the framed stream `suffix` of the gRPC server at `address`; None: at a TCP address it has none.

    With a suffix of up to 7 bytes it is short enough for a socket (`listeners.check_address`)."""
    return Path(address.removeprefix("unix:") + suffix) if address.startswith("unix:") else None


def frame_header(kind: Kind, payload_bytes: int) -> bytes:
    """The bytes before a payload of this size. Raises `FrameError` for one that no peer would take."""
    _check_size(payload_bytes, MAX_MESSAGE_BYTES)
    return _HEADER.pack(payload_bytes, kind)


def frame(kind: Kind, payload: bytes) -> bytes:
    """A whole frame. Raises as `frame_header`."""
    return frame_header(kind, len(payload)) + payload


def hello(incarnation: str = "") -> bytes:
    """The frame of this version; `incarnation` is a server's."""
    return frame(Kind.HELLO, bytes([VERSION]) + incarnation.encode())


def read_hello(payload: bytes | bytearray) -> tuple[int, str]:
    """Version, and the server's incarnation. Raises `FrameError`."""
    if not payload:
        raise FrameError("a HELLO without a version")
    return payload[0], payload[1:].decode(errors="replace")


class FrameReader:
    """Splits what a connection receives into frames. Its two methods are those of a `BufferedProtocol`.

    A payload is handed out in an object of its own. A large one is received into that: it is never copied."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0  # of what is in it and was not handed out
        self._large: bytearray | None = None  # a payload that does not fit in there
        self._large_kind = Kind.MESSAGE
        self._filled = 0  # bytes of it that have arrived
        self._greeted = False

    def get_buffer(self) -> memoryview:
        """Room for what arrives next, at least one byte."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._buffer[self._end :]

    def received(self, count: int) -> Iterator[tuple[Kind, bytes | bytearray]]:
        """The frames that `count` more bytes in the buffer complete. Raises `FrameError`."""
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                large, self._large = self._large, None
                yield self._large_kind, large
            return
        self._end += count
        while self._end - self._begin >= _HEADER.size:
            kind, size = self._header()
            begin = self._begin + _HEADER.size
            if begin + size > self._end:
                self._make_room(kind, size)
                return
            payload = bytes(self._buffer[begin : begin + size])
            self._begin = begin + size
            self._greeted = True
            yield kind, payload
        self._move_to_front(_HEADER.size)

    def _header(self) -> tuple[Kind, int]:
        size, number = _HEADER.unpack_from(self._buffer, self._begin)
        try:
            kind = Kind(number)
        except ValueError:
            raise FrameError(f"a frame of the unknown kind {number}") from None
        if (kind is Kind.MESSAGE) is not self._greeted:
            raise FrameError(f"{kind.name} where it has no place")
        _check_size(size, MAX_MESSAGE_BYTES if self._greeted else _MAX_HELLO_BYTES)
        return kind, size

    def _make_room(self, kind: Kind, size: int) -> None:
        """For the rest of a frame of which the header, and not all of the payload, has arrived."""
        if _HEADER.size + size <= len(self._buffer):
            self._move_to_front(_HEADER.size + size)
            return
        there = self._buffer[self._begin + _HEADER.size : self._end]
        self._large, self._large_kind, self._filled = bytearray(size), kind, len(there)
        self._large[: len(there)] = there
        self._begin = self._end = 0

    def _move_to_front(self, needed: int) -> None:
        """Makes room for `needed` bytes from the beginning of what there is, unless they fit already."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin + needed > len(self._buffer):
            left = self._end - self._begin
            self._buffer[:left] = self._buffer[self._begin : self._end]
            self._begin, self._end = 0, left


def _check_size(payload_bytes: int, limit: int) -> None:
    if payload_bytes > limit:
        raise FrameError(f"a frame of {payload_bytes} bytes, where {limit} are the most")
