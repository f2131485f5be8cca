"""Closes a connection of this process's gRPC server: gRPC has no call for that."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote

_DESCRIPTORS = "/dev/fd"


def hang_up(peer: str, local_port: int) -> bool:
    """Shuts down the TCP connection of this process's `local_port` with `peer`, as a gRPC context names it
    (`ipv4:10.0.0.1:4711`, `ipv6:%5B::1%5D:4711`): a peer may have one from its same port to another listener. gRPC
    finds it closed, and ends its calls. False: there is none, or it is no TCP connection (the ends of a unix socket
    have no names to find it by)."""
    wanted = parse_peer(peer)
    if wanted is None:
        return False
    for connection in _sockets():
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                found = wanted.is_at(connection.getpeername()) and connection.getsockname()[1] == local_port
            except OSError:  # it listens, or is closed
                continue
            if found:
                with contextlib.suppress(OSError):  # it is closed already
                    connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


@dataclass(frozen=True, slots=True)
class Peer:
    address: IPv4Address | IPv6Address
    port: int
    scope: str  # of a link-local address: the interface, by number or name; empty: none

    def is_at(self, name: tuple[str, int] | tuple[str, int, int, int]) -> bool:
        """Tells whether a socket whose peer has this name (`getpeername`) is connected with it."""
        host, _, _ = name[0].partition("%")
        if name[1] != self.port or _plain(host) != self.address:
            return False
        return not self.scope or len(name) < 4 or self.scope in _names_of(name[3])


def parse_peer(peer: str) -> Peer | None:
    """The peer that a gRPC context names so; None where it is not by TCP."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    address, _, scope = host.strip("[]").partition("%")
    try:
        return Peer(_plain(address), int(port), scope.removeprefix("25"))  # of a `%` that was quoted twice
    except ValueError:
        return None


def _plain(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _names_of(scope_id: int) -> tuple[str, ...]:
    number = str(scope_id)
    # "25" stands for a percent sign before it, or is its beginning.
    numbers = (number, number.removeprefix("25"))
    try:
        return (*numbers, socket.if_indextoname(scope_id))
    except OSError:  # it is gone
        return numbers


def _sockets() -> Iterator[socket.socket]:
    """Duplicates of this process's sockets: what is looked at stays the same one, whatever gRPC closes meanwhile."""
    for name in os.listdir(_DESCRIPTORS):
        try:
            duplicate = os.dup(int(name))
        except OSError:
            continue
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:  # a file
            os.close(duplicate)
            continue
        yield connection
