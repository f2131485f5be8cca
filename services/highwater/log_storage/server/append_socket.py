"""The Append stream over a Unix socket of its own, beside the gRPC one (`rpc/framed_stream.py` has its frames).

A connection is a stream. It takes the place of the call that `AppendAndRead.Append` reads requests from and writes
responses to: one method answers both kinds. When it ends, the call is cancelled, as with a gRPC stream.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from highwater.rpc.framed_stream import (
    HELLO_TIMEOUT_S,
    VERSION,
    FrameError,
    FrameReader,
    Kind,
    frame,
    hello,
    read_hello,
    socket_path,
)
from highwater.rpc.server import AddressInUseError, free_socket_path
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

SUFFIX = ".append"

# Of a connection, read ahead of what is being appended: as much as a gRPC stream does. A larger message comes whole.
READ_AHEAD_BYTES = 4 << 20
READ_AHEAD_REQUESTS = 64
STOP_GRACE_S = 0.5  # for what has been read when the service stops

_log = get_logger("log_storage.append_socket")


class AppendSocket:
    """`start` listens, beside each of the `unix:` addresses; `stop` ends it. `append` is called with each connection
    that is let in; `refusal` gives the reason to let none in, or is empty.
    """

    def __init__(
        self,
        append: Callable[[AppendConnection], Awaitable[None]],
        incarnation: str,
        refusal: Callable[[], str],
        supervisor: TaskSupervisor,
        metrics: Metrics,
    ) -> None:
        self.append = append
        self.incarnation = incarnation
        self.refusal = refusal
        self.supervisor = supervisor
        self.connections: set[AppendConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self.stopping = False
        metrics.gauge("append_connections", "Connections to the append socket").set_function(
            lambda: len(self.connections)
        )

    async def start(self, addresses: Sequence[str]) -> None:
        """Raises `AddressInUseError`."""
        for address in addresses:
            path = socket_path(address, SUFFIX)
            if path is not None:
                self._servers.append(await self._listen(path))

    async def _listen(self, path: Path) -> asyncio.Server:
        free_socket_path(path)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
        except OSError as error:
            listener.close()
            raise AddressInUseError(f"cannot listen on unix:{path}: {error.strerror or error}") from error
        self._paths.append(path)
        return await asyncio.get_running_loop().create_unix_server(lambda: AppendConnection(self), sock=listener)

    async def stop(self) -> None:
        """Takes no more connections and no more requests; what has been read is answered within `STOP_GRACE_S`."""
        self.stopping = True
        for path in self._paths:  # as gRPC does: a start as another user could not tell whether somebody listens there
            path.unlink(missing_ok=True)
        self._paths.clear()
        for server in self._servers:
            server.close()
        answering = [call for connection in self.connections if (call := connection.stop_reading()) is not None]
        if answering:
            await asyncio.wait(answering, timeout=STOP_GRACE_S)
        for connection in [*self.connections]:
            connection.abort()


class AppendConnection(asyncio.BufferedProtocol):
    """One stream, from the HELLO on. `has_request`, `read` and `write` are for the call."""

    def __init__(self, owner: AppendSocket) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._call: asyncio.Task[None] | None = None
        self._greeting: asyncio.TimerHandle | None = None  # the limit of the wait for HELLO
        self._requests: deque[bytes | bytearray] = deque()
        self._read_ahead_bytes = 0
        self._reading = True  # from the socket
        self._stopping = False  # no more requests are taken
        self._arrived: asyncio.Future[None] | None = None  # `read` waits for it
        self._drained: asyncio.Future[None] | None = None  # while the peer does not take its answers

    # The call's side

    @property
    def has_request(self) -> bool:
        """Tells whether `read` does not wait."""
        return bool(self._requests)

    async def read(self) -> Any:
        """The next request, or `grpc.aio.EOF`."""
        while not self._requests:
            if self._stopping:
                return grpc.aio.EOF  # type: ignore[attr-defined]
            self._arrived = self._loop.create_future()
            await self._arrived
        payload = self._requests.popleft()
        self._read_ahead_bytes -= len(payload)
        self._read_on()
        try:
            return log_storage_pb2.AppendRequest.FromString(payload)  # type: ignore[arg-type]  # it takes a bytearray
        except DecodeError:
            self.fail("a message that is no AppendRequest")
            return grpc.aio.EOF  # type: ignore[attr-defined]

    async def write(self, response: log_storage_pb2.AppendResponse) -> None:
        """Returns when the peer has taken enough of what was answered before."""
        while self._drained is not None:
            await self._drained
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(Kind.MESSAGE, response.SerializeToString()))

    # The socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.connections.add(self)
        if self._owner.stopping:  # it was taken in the very turn of `stop`
            transport.abort()
            return
        self._greeting = self._loop.call_later(HELLO_TIMEOUT_S, self.fail, "no HELLO")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for kind, payload in self._reader.received(nbytes):
                self._take(kind, payload)
        except FrameError as error:
            self.fail(str(error))

    def _take(self, kind: Kind, payload: bytes | bytearray) -> None:
        if self._transport is None or self._stopping:
            return
        if kind is Kind.MESSAGE:
            self._requests.append(payload)
            self._read_ahead_bytes += len(payload)
            self._wake()
            self._read_on()
        elif kind is Kind.HELLO:
            self._greeted(self._transport, read_hello(payload)[0])
        else:
            raise FrameError(f"{kind.name} from a client")

    def _greeted(self, transport: asyncio.Transport, version: int) -> None:
        refusal = self._owner.refusal()
        transport.write(frame(Kind.REFUSED, refusal.encode()) if refusal else hello(self._owner.incarnation))
        if refusal or version != VERSION:
            self.close()
            return
        if self._greeting is not None:
            self._greeting.cancel()
        self._call = self._owner.supervisor.run_once("append-connection", self._run)

    async def _run(self) -> None:
        try:
            await self._owner.append(self)
        finally:
            self.close()

    def _read_on(self) -> None:
        """Reads from the socket, or does not while enough has been read ahead."""
        size, count = self._read_ahead_bytes, len(self._requests)
        if self._transport is None:
            return
        if self._reading:
            if size >= READ_AHEAD_BYTES or count >= READ_AHEAD_REQUESTS:
                self._reading = False
                self._transport.pause_reading()
        elif 2 * size <= READ_AHEAD_BYTES and 2 * count <= READ_AHEAD_REQUESTS:
            self._reading = True
            self._transport.resume_reading()

    def stop_reading(self) -> asyncio.Task[None] | None:
        """Takes no more requests. The call that answers those that were taken."""
        self._stopping = True
        self._wake()
        return self._call

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def fail(self, reason: str) -> None:
        """Ends the connection of a peer that is not one of ours, or has failed."""
        if self._transport is not None and not self._transport.is_closing():
            _log.warning("a connection to the append socket was closed %s", pairs(reason=repr(reason)))
        self.abort()

    def close(self) -> None:
        """Ends the connection, after what was answered."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._owner.connections.discard(self)
        if self._greeting is not None:
            self._greeting.cancel()
        if self._call is not None:
            self._call.cancel()
        self._requests.clear()
        self._stopping = True
        self.resume_writing()
