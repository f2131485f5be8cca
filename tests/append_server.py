"""A server of the Append stream for tests of its clients: over gRPC, or over the append socket beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from highwater.log_storage.server.append_socket import AppendSocket
from highwater.supervision import TaskSupervisor
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

GRPC, APPEND_SOCKET = TRANSPORTS = ("gRPC", "append socket")


class AppendServer:
    """`append(None, call)` answers a stream: it awaits `call.read()` and `call.write(response)`. Beside the append
    socket gRPC listens, too, and is asked for no stream."""

    def __init__(
        self,
        address: str,
        transport: str,
        append: Callable[[Any, Any], Awaitable[None]],
        *,
        refusal: Callable[[], str] = lambda: "",
    ) -> None:
        self.grpc_streams = 0
        self._address = address
        self._transport = transport
        self._append = append
        self._refusal = refusal
        self._tasks = TaskSupervisor()
        self._server: grpc.aio.Server | None = None
        self._socket: AppendSocket | None = None

    @property
    def connections(self) -> int:
        """To the append socket."""
        return 0 if self._socket is None else len(self._socket.connections)

    async def start(self) -> None:
        if self._transport == APPEND_SOCKET:
            self._tasks = TaskSupervisor()
            self._socket = AppendSocket(
                lambda connection: self._append(None, connection),
                "incarnation",
                self._refusal,
                self._tasks,
                Metrics("test"),
            )
            await self._socket.start([self._address])
        handler = grpc.stream_stream_rpc_method_handler(
            self._append_by_grpc,
            request_deserializer=log_storage_pb2.AppendRequest.FromString,
            response_serializer=log_storage_pb2.AppendResponse.SerializeToString,
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("highwater.v1.LogStorage", {"Append": handler}),)
        )
        self._server.add_insecure_port(self._address)
        await self._server.start()

    async def stop(self) -> None:
        """As a kill: nothing more is answered."""
        await self._tasks.stop()
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.stop()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def _append_by_grpc(self, request_iterator: Any, context: Any) -> None:
        self.grpc_streams += 1
        assert self._transport == GRPC
        await self._append(request_iterator, context)
