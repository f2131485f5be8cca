"""A gRPC server with health and reflection, and the main of a service's process."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from highwater.errors import UserError
from highwater.rpc.connections.channel import COMMON_OPTIONS, MAX_MESSAGE_BYTES
from highwater.rpc.listeners import speaks_tls, with_tls, without_tls
from highwater.rpc.process.collector import CalmCollector
from highwater.rpc.process.malloc import keep_freed_memory
from highwater.rpc.process.open_files import allow_open_files
from highwater.telemetry.loop_idle import TimedEventLoop
from highwater.telemetry.undecodable import leave_out_undecodable

LIVE = "live"
"""The health name that says that the process is at work, be it only to wait for etcd or to recover its logs."""

NO_LIMIT = 2**31 - 2
"""The highest number that gRPC takes."""

_PROBE_S = 1.0

SERVER_OPTIONS = (
    *COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second server behind it
    # A client may ping as it likes: a server that counts strikes hangs up on it (ENHANCE_YOUR_CALM, too_many_pings).
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # gRPC would widen the window of every stream to what the fastest connection has moved: of a stream that nobody
    # reads it then holds four times what `lookahead_bytes` says, and of hundreds of them gigabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_concurrent_streams", 1_000),  # one connection does not take all the calls that there may be
)


class ServerLimits(NamedTuple):
    """Bounds of the memory that a server's requests take, which gRPC holds before anybody knows of them: `max_calls` of
    `max_message_bytes` each. A larger message, and a call too many, is RESOURCE_EXHAUSTED, and not read. A connection
    too many is closed; so is one that had no call for `max_idle_ms`, and one that has not begun to speak HTTP/2 within
    `max_silent_ms`. A channel connects anew when it is next used."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_calls: int | None = None
    max_connections: int = NO_LIMIT
    max_idle_ms: int = NO_LIMIT
    max_silent_ms: int = 120_000  # gRPC's own

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        return (
            *((name, value) for name, value in SERVER_OPTIONS if name != _RECEIVE_LIMIT),
            (_RECEIVE_LIMIT, self.max_message_bytes),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_connection_idle_ms", self.max_idle_ms),
            ("grpc.server_handshake_timeout_ms", self.max_silent_ms),
        )


_RECEIVE_LIMIT = "grpc.max_receive_message_length"
NO_LIMITS = ServerLimits()
PEERS = ServerLimits(max_calls=20_000)
"""Of a server that Highwater's own processes use: twice what clients may have open at a broker, which a read of its
log-storage may stand behind."""
_HEALTH = ServerLimits(max_message_bytes=64 << 10, max_calls=1_000)


class AddressInUseError(Exception):
    """A service cannot listen where it was told to."""


class Health:
    """The status that one process tells of itself, the same on every server that it has: one status a name."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._service_names: set[str] = set()

    def add_to(self, server: grpc.aio.Server, service_names: Sequence[str]) -> None:
        """`service_names` are those that the server serves; their status is `set_serving`'s."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._service_names.update(service_names)

    async def set_serving(self, serving: bool) -> None:
        for name in ("", *self._service_names):
            await self.set_status(name, serving)

    async def set_status(self, name: str, serving: bool) -> None:
        """The health of one name of its own, for example `ready`."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._servicer.set(name, status)

    async def stop(self) -> None:
        await self._servicer.enter_graceful_shutdown()


class RpcServer:
    """A gRPC server: a process's only one, or one of several that share their `health`. Add servicers to `grpc`, then
    `start`.

    `listen` holds `host:port` (port 0: a free one), `ssl:host:port` and `unix:/path` addresses; `addresses` the bound
    ones, in order. At `health_listen` (empty: none) a second server answers health checks and reflection alone, without
    TLS. Every call at `listen`, health checks too, goes by the `interceptors`. `credentials` are for the addresses that
    speak TLS.
    """

    def __init__(
        self,
        listen: Sequence[str],
        *,
        health: Health | None = None,
        health_listen: str = "",
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
        limits: ServerLimits = NO_LIMITS,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._credentials = credentials
        self.grpc = grpc.aio.server(
            interceptors=interceptors, options=limits.options, maximum_concurrent_rpcs=limits.max_calls
        )
        self.addresses: list[str] = []
        self._listen = list(listen)
        self._health = health or Health()
        self._health_server = health_server(health_listen, self._health) if health_listen else None

    async def start(self, service_names: Sequence[str]) -> None:
        """Binds and serves. `service_names` are the full names (`highwater.v1.Broker`) for health and reflection; they
        report NOT_SERVING until `set_serving`, the name `live` SERVING from now on. Raises `AddressInUseError`."""
        self.bind(service_names)
        await self.serve()

    def bind(self, service_names: Sequence[str]) -> None:
        """The first half of `start`: the ports are taken, and nobody is answered yet. Raises `AddressInUseError`."""
        self._health.add_to(self.grpc, service_names)
        reflection.enable_server_reflection([*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.grpc)
        for address in self._listen:
            self.addresses.append(self._bind(address))
        if self._health_server is not None:
            self._health_server.bind([])

    async def serve(self) -> None:
        """The second half of `start`."""
        await self.set_serving(False)
        await self.set_status(LIVE, True)
        await self.grpc.start()
        if self._health_server is not None:
            await self._health_server.serve()

    @property
    def health_address(self) -> str:
        """As bound; empty: there is none."""
        return "" if self._health_server is None else self._health_server.addresses[0]

    def _bind(self, address: str) -> str:
        if address.startswith("unix:"):
            free_socket_path(Path(address.removeprefix("unix:")))
        secure, address = speaks_tls(address), without_tls(address)
        try:
            if secure:
                assert self._credentials is not None, f"{address} is to speak TLS, and there are no credentials"
                port = self.grpc.add_secure_port(address, self._credentials)
            else:
                port = self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressInUseError(
                f"cannot listen on {address}: it is taken or not an address of this host"
            ) from error
        if address.startswith("unix:"):
            return address
        bound = f"{address.rsplit(':', 1)[0]}:{port}"
        return with_tls(bound) if secure else bound

    async def set_serving(self, serving: bool) -> None:
        await self._health.set_serving(serving)

    async def set_status(self, name: str, serving: bool) -> None:
        """The health of one name of its own, for example `ready`."""
        await self._health.set_status(name, serving)

    async def stop(self, grace_s: float = 0.5) -> None:
        await self._health.stop()
        if self._health_server is not None:
            await self._health_server.stop(grace_s)
        await self.grpc.stop(grace_s)


def health_server(listen: str, health: Health) -> RpcServer:
    """Answers health checks and reflection alone."""
    return RpcServer([listen], health=health, limits=_HEALTH)


def free_socket_path(path: Path) -> None:
    """Makes way for a socket there: one of a process that listens is not taken from it (RULES 8.7). Raises
    `AddressInUseError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if _listens(path):
        raise AddressInUseError(f"cannot listen on unix:{path}: another process does")
    path.unlink(missing_ok=True)  # a socket file outlives a killed process


def _listens(path: Path) -> bool:
    """Tells whether a process takes connections there, or would if it were not paused."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # its queue is full, or it is no socket: binding will tell
            return path.is_socket()
    return True


def run_service(main: Callable[[asyncio.Event], Coroutine[None, None, None]]) -> None:
    """Runs a service's main until SIGTERM or SIGINT sets its event. What the user can mend is one sentence on
    stderr and exit status 1; anything else is a bug and keeps its traceback."""

    keep_freed_memory()
    allow_open_files()
    for handler in logging.getLogger().handlers:
        handler.filters.insert(0, leave_out_undecodable)  # before its lines are counted as others are

    async def supervised() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        CalmCollector().start()
        await main(stop)

    try:
        with asyncio.Runner(loop_factory=TimedEventLoop) as runner:
            runner.run(supervised())
    except (AddressInUseError, UserError) as error:
        logging.getLogger("highwater").error("%s", error)
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


class Service(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


async def serve(service: Service, stop: asyncio.Event) -> None:
    """For `run_service`, of a service that starts at once, whatever its peers do."""
    try:
        await service.start()
        await stop.wait()
    finally:
        await service.stop()
