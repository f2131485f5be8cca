"""Drops all that this pod sends, for some seconds: the argument. Nothing refuses, nothing answers, as with a dead link.

A queue without room is put before the interface of the default route, and taken away again. Needs NET_ADMIN.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading

NEWQDISC, DELQDISC = 36, 37
REQUEST, ACK, REPLACE, CREATE = 0x1, 0x4, 0x100, 0x400
ERROR = 2
ROOT = 0xFFFFFFFF
KIND, OPTIONS = 1, 2


def interface() -> str:
    """Of the default route; by default the first that is not the loopback."""
    with open("/proc/net/route") as lines:
        for line in list(lines)[1:]:
            name, destination = line.split()[:2]
            if destination == "00000000":
                return name
    return next(name for _, name in socket.if_nameindex() if name != "lo")


def attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("HH", size, kind) + data + bytes(-size % 4)


def change(message: int, flags: int, index: int, attributes: bytes) -> None:
    """Raises `OSError`."""
    body = struct.pack("BxHiIII", socket.AF_UNSPEC, 0, index, 0, ROOT, 0) + attributes
    header = struct.pack("IHHII", 16 + len(body), message, REQUEST | ACK | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        netlink.send(header + body)
        answer = netlink.recv(4096)
    kind = struct.unpack_from("IHHII", answer)[1]
    number = -struct.unpack_from("i", answer, 16)[0] if kind == ERROR else 0
    if number:
        raise OSError(number, os.strerror(number))


def main(arguments: list[str]) -> None:
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    name = interface()
    index = socket.if_nametoindex(name)
    no_room = attribute(KIND, b"pfifo\0") + attribute(OPTIONS, struct.pack("I", 0))
    try:
        change(NEWQDISC, REPLACE | CREATE, index, no_room)
    except OSError as error:
        sys.exit(f"the network of {name} cannot be cut: {error}")
    try:
        print(f"{name} is cut off", flush=True)
        over.wait(float(arguments[0]))
    finally:
        change(DELQDISC, 0, index, b"")
    print(f"{name} is back", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
