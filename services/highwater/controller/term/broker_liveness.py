"""The fast path of failure detection: a killed process refuses connections at once (RULES 8.3).

`FastPath` decides and is pure; `BrokerProbe` keeps the connection. Time-outs and unreachable hosts are left to the
lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from enum import Enum

from highwater.rpc.listeners import without_tls

REFUSED_MS = 300
BARRED_MS = 60_000
RECONNECT_PAUSE_MS = 50
CONNECT_TIMEOUT_S = 1.0
READ_BYTES = 4096
MAX_PORT = 65_535


class FastPath:
    """One broker id, through its registrations.

    A registration is ended where its address took a connection, that broke, and for `REFUSED_MS` every new one was
    refused. After that, a registration that begins with refusals shows that the broker lives and is only out of this
    controller's reach: for `BARRED_MS` it is left to its lease.
    """

    def __init__(self) -> None:
        self._broker_epoch = 0
        self._connected = False  # under this registration, at some time
        self._refused_since_ms: int | None = None
        self._expelled = False  # the registration before this one was ended here
        self._barred_until_ms: int | None = None

    def registered(self, broker_epoch: int) -> None:
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self._connected = False
            self._refused_since_ms = None

    def connected(self) -> None:
        self._connected = True
        self._expelled = False
        self._refused_since_ms = None

    def refused(self, now_ms: int) -> bool:
        """Tells whether the registration is to be ended now."""
        if not self._connected:
            if self._expelled:
                self._barred_until_ms = now_ms + BARRED_MS
                self._expelled = False
            return False
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        barred = self._barred_until_ms is not None and now_ms < self._barred_until_ms
        if barred or now_ms - self._refused_since_ms < REFUSED_MS:
            return False
        self._expelled = True
        self._connected = False
        return True

    def unreachable(self) -> None:
        """A time-out, no route, an unknown name: nothing is known of the process."""
        self._refused_since_ms = None


class Attempt(Enum):
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


class BrokerProbe:
    """Keeps a connection to one registration's process, and calls `expel` when the fast path says so; `expel` returns
    when the registration has ended.

    The address is to be the process's own. A Kubernetes Service without endpoints refuses connections for a broker that
    lives, and what takes connections for the process (a mesh, a load balancer) does so for one that is gone."""

    def __init__(
        self,
        address: str,
        fast_path: FastPath,
        expel: Callable[[], Awaitable[None]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._address = address
        self._fast_path = fast_path
        self._expel = expel
        self._clock_ms = clock_ms

    async def run(self) -> None:
        """Returns when it has ended the registration."""
        while True:
            connection = await connect(self._address)
            if isinstance(connection, socket.socket):
                self._fast_path.connected()
                await _until_broken(connection)
                continue  # the first attempt after a break is made at once
            if connection is Attempt.UNREACHABLE:
                self._fast_path.unreachable()
            elif self._fast_path.refused(self._clock_ms()):
                await self._expel()
                return
            await asyncio.sleep(RECONNECT_PAUSE_MS / 1000)


async def connect(address: str) -> socket.socket | Attempt:
    """One attempt at every address that `host:port` or `unix:/path` stands for; REFUSED where all of them refused."""
    try:
        places = await _places(address)
    except (OSError, ValueError):  # no such host, or what a broker registered is no address
        return Attempt.UNREACHABLE
    refusals = 0
    for family, place in places:
        candidate = socket.socket(family, socket.SOCK_STREAM)
        candidate.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(candidate, place)
        except (ConnectionRefusedError, FileNotFoundError):
            # A socket file that is gone refuses as well as one that nobody listens at.
            refusals += 1
            candidate.close()
        except (OSError, TimeoutError):
            candidate.close()
        except BaseException:
            candidate.close()
            raise
        else:
            return candidate
    return Attempt.REFUSED if places and refusals == len(places) else Attempt.UNREACHABLE


async def _places(address: str) -> list[tuple[socket.AddressFamily, str | tuple[str, int]]]:
    """Raises `OSError`, `ValueError`."""
    if address.startswith("unix:"):
        return [(socket.AF_UNIX, address.removeprefix("unix:"))]
    host, _, port = without_tls(address).rpartition(":")
    if int(port) > MAX_PORT:
        raise ValueError(f"{address!r} has no such port")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(family, (str(place[0]), int(place[1]))) for family, _, _, _, place in found]


async def _until_broken(connection: socket.socket) -> None:
    """Reads until the peer is gone. What it says (a gRPC server greets) is of no interest; that it closes a connection
    which never speaks, after two minutes, costs one more connect."""
    loop = asyncio.get_running_loop()
    with contextlib.closing(connection), contextlib.suppress(OSError):
        while await loop.sock_recv(connection, READ_BYTES):
            pass
