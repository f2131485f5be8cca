"""How gRPC's thread wakes an event loop.

grpc.aio has one thread for a process, which queues what has happened and writes a byte to a socket for each of it. In a
turn in which the socket can be read a loop takes one byte, and then all that is queued. So where turns are long more
bytes wait there than there is queued. With some 280 the socket is full and the thread waits to write another: from then
on one thing happens a turn, be there thousands, for as long as turns are long. A process with hundreds of clients stood
still like that, at a load that it could bear.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")

_MOST = 4096  # bytes that are taken at a time: more than fit
_MANY = 128  # so many waiting: the thread may wait as well, and has more as soon as there is room
_ROUNDS = 8  # of a turn


def with_wake_ups_taken(make: Callable[[], Made]) -> Made:
    """What `make` makes, a channel or a server of grpc.aio. The running loop, if it has none yet, takes all bytes that
    wait. An event loop that is not in Python is left as it is."""
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        return make()
    add_reader = loop.add_reader
    try:
        loop.add_reader = lambda read, callback, *args: add_reader(read, _taking_all(read, callback), *args)
    except AttributeError:
        return make()
    try:
        return make()
    finally:
        del loop.add_reader


def _taking_all(read: socket.socket, take_one: Callable[..., object]) -> Callable[..., None]:
    """`take_one` takes a byte, and all that is queued."""

    def take_all(*args: object) -> None:
        for _ in range(_ROUNDS):
            try:
                waiting = len(read.recv(_MOST, socket.MSG_PEEK))
                if waiting > 1:
                    read.recv(waiting - 1)
                take_one(*args)
            except BlockingIOError:
                return  # a loop of another thread has taken it, and all that was queued
            if waiting < _MANY:
                return

    return take_all
