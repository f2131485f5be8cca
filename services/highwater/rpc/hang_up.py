"""Closes a connection of this process's gRPC server: gRPC has no call for that."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import unquote

_DESCRIPTORS = "/dev/fd"


def hang_up(peer: str) -> bool:
    """Shuts down the TCP connection of this process with `peer`, as a gRPC context names it (`ipv4:10.0.0.1:4711`,
    `ipv6:%5B::1%5D:4711`). gRPC finds it closed, and ends its calls. False: there is none, or it is no TCP connection
    (the ends of a unix socket have no names to find it by)."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return False
    wanted = (host.strip("[]"), int(port))
    for connection in _sockets():
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and _peer(connection) == wanted:
                with contextlib.suppress(OSError):  # it is closed already
                    connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


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


def _peer(connection: socket.socket) -> tuple[str, int] | None:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # it listens, or is closed
        return None
    return str(host).removeprefix("::ffff:"), port
