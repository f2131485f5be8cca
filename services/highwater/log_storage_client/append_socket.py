"""The client's end of the append socket: one connection, which is one Append stream (`rpc/framed_stream.py` has its
frames).

Nothing of it waits in a task: requests are written from a callback of the event loop, responses are taken from the one
that has received them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from highwater.rpc.bidirectional_stream import OverdueError, StreamEndedError
from highwater.rpc.embedding import Piece, size_of
from highwater.rpc.framed_stream import (
    HELLO_TIMEOUT_S,
    VERSION,
    FrameError,
    FrameReader,
    Kind,
    frame_header,
    hello,
    read_hello,
)
from highwater.rpc.overdue import until_overdue
from highwater.v1 import log_storage_pb2

SUFFIX = ".append"
# The kernel's, for what log-storage has not read yet: it reads a message in one go, and the next one is there by then.
# With the usual default of 208 KiB a message of 900 KB costs the sender twice the CPU. `net.core.wmem_max` bounds it.
SEND_BUFFER_BYTES = 4 << 20


async def connect(
    path: Path,
    next_request: Callable[[], Sequence[Piece] | None],
    received: Callable[[log_storage_pb2.AppendResponse], None],
) -> AppendConnection | None:
    """A connection on which nothing has been asked yet; None: nobody listens there, or one of another version.

    `next_request` is called when the connection is free to take one, None: there is none, and `wake` is called when
    there is. `received` is called with each response. Raises `StreamEndedError` where log-storage lets no stream in.
    """
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_unix_connection(lambda: AppendConnection(next_request, received), str(path))
    except OSError:
        return None
    understood = False
    try:
        understood = await connection.greeted(HELLO_TIMEOUT_S) == VERSION
    finally:
        if not understood:
            connection.close()
    return connection if understood else None


class AppendConnection(asyncio.BufferedProtocol):
    """`incarnation`: of the log-storage that has greeted."""

    def __init__(
        self,
        next_request: Callable[[], Sequence[Piece] | None],
        received: Callable[[log_storage_pb2.AppendResponse], None],
    ) -> None:
        self.incarnation = ""
        self._next_request = next_request
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._version: asyncio.Future[int] = self._loop.create_future()  # of the server
        self._ended: asyncio.Future[Exception] = self._loop.create_future()  # why
        self._running = False
        self._writable = True
        self._woken = False  # `_write` is due

    async def greeted(self, limit_s: float) -> int:
        """The version of the server. Raises `StreamEndedError`."""
        await asyncio.wait((self._version, self._ended), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if self._version.done():
            return self._version.result()
        raise self._ended.result() if self._ended.done() else OverdueError(f"no answer within {limit_s:g} s")

    async def run(self, oldest: Callable[[], object | None], limit_s: float) -> None:
        """Asks and answers until the connection ends, and closes it. `oldest` tells which request has gone without an
        answer for longest, None while there is none.

        Raises:
            OverdueError: that has been the same one for `limit_s`.
            StreamEndedError: the connection broke or was closed by the server.
            Whatever `next_request` and `received` raise.
        """
        self._running = True
        self.wake()
        watching = asyncio.create_task(until_overdue(oldest, limit_s))
        try:
            await asyncio.wait((watching, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                raise self._ended.result()
            watching.result()
            raise OverdueError(f"no answer within {limit_s:g} s")
        finally:
            watching.cancel()
            self.close()

    def wake(self) -> None:
        """There is a request. It is taken in the next turn of the event loop, with what else there is by then."""
        if self._running and self._writable and not self._woken:
            self._woken = True
            self._loop.call_soon(self._write)

    def close(self) -> None:
        """Nothing is taken and nothing is received any more."""
        self._end(StreamEndedError("closed"))

    def _write(self) -> None:
        self._woken = False
        try:
            while self._writable and self._transport is not None and (pieces := self._next_request()) is not None:
                header = frame_header(Kind.MESSAGE, size_of(pieces))
                # Not `writelines`: from Python 3.12 on it joins nothing, and in some releases heeds no limit, either.
                self._transport.write(b"".join((header, *pieces)))
        except FrameError as error:  # what has been taken is of unknown outcome, as ever when a stream ends
            self._end(StreamEndedError(str(error)))
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if not self._ended.done():
            self._ended.set_result(error)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        transport.write(hello())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for kind, payload in self._reader.received(nbytes):
                if self._transport is None:
                    return
                self._take(kind, payload)
        except (FrameError, DecodeError) as error:
            self._end(StreamEndedError(f"what log-storage sent cannot be read: {error}"))
        except Exception as error:
            self._end(error)

    def _take(self, kind: Kind, payload: bytes | bytearray) -> None:
        if kind is Kind.MESSAGE:
            response = log_storage_pb2.AppendResponse.FromString(payload)  # type: ignore[arg-type]
            self._received(response)
        elif kind is Kind.HELLO:
            version, self.incarnation = read_hello(payload)
            self._version.set_result(version)
        else:
            raise StreamEndedError(f"UNAVAILABLE: {payload.decode(errors='replace')}")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(StreamEndedError(f"the connection broke: {error}" if error else "closed by the server"))
