"""The replica-manager's gRPC servers: one for each listener, so that by which one a call came in is a fact of the
connection and nothing that a caller could claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from highwater.rpc.listeners import advertised_addresses, with_tls, without_tls
from highwater.rpc.server import NO_LIMITS, PEERS, Health, RpcServer, ServerLimits, health_server

if TYPE_CHECKING:
    import grpc.aio

    Interceptor = grpc.aio.ServerInterceptor[Any, Any]


class ListenerServers:
    """`listeners` are the addresses to bind and `advertised` those that others use where they differ, by name. Health
    checks and reflection are answered by all, and at `health_listen` (empty: none). `limits` are those of each listener
    that clients use; `trusted` names the one that they do not (empty: there is none). `credentials` are of those that
    speak TLS, by name; `interceptors` gives those of a listener."""

    def __init__(
        self,
        listeners: Mapping[str, str],
        advertised: Mapping[str, str],
        health_listen: str,
        limits: ServerLimits = NO_LIMITS,
        trusted: str = "",
        credentials: Mapping[str, grpc.ServerCredentials] | None = None,
        interceptors: Callable[[str], Sequence[Interceptor]] = lambda _: (),
    ) -> None:
        secured = credentials or {}
        self._listeners = dict(listeners)
        self._advertised = dict(advertised)
        self._health = Health()
        self._servers = {
            name: RpcServer(
                [with_tls(address) if name in secured else address],
                health=self._health,
                limits=PEERS if name == trusted else limits,
                credentials=secured.get(name),
                interceptors=interceptors(name),
            )
            for name, address in listeners.items()
        }
        self._health_servers = [health_server(health_listen, self._health)] if health_listen else []

    def __getitem__(self, name: str) -> RpcServer:
        return self._servers[name]

    @property
    def addresses(self) -> dict[str, str]:
        """The bound address of each listener, once it is started."""
        return {name: without_tls(server.addresses[0]) for name, server in self._servers.items()}

    def port(self, name: str) -> int:
        """The bound TCP port of a listener, once it is started; 0: it is a unix socket."""
        address = self.addresses[name]
        return 0 if address.startswith("unix:") else int(address.rpartition(":")[2])

    @property
    def advertised(self) -> dict[str, str]:
        """The address of each listener that others are told, once it is started."""
        return advertised_addresses(self._listeners, self._advertised, self.addresses)

    async def start(self, service_names: Mapping[str, Sequence[str]]) -> None:
        """Serves these services, by listener; none before every address is bound. Raises `AddressInUseError`."""
        for name, server in self._servers.items():
            server.bind(service_names[name])
        for server in self._health_servers:
            server.bind([])
        for server in self._all():
            await server.serve()

    async def set_serving(self, serving: bool) -> None:
        await self._health.set_serving(serving)

    async def set_status(self, name: str, serving: bool) -> None:
        await self._health.set_status(name, serving)

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._all()))

    def _all(self) -> list[RpcServer]:
        return [*self._servers.values(), *self._health_servers]
