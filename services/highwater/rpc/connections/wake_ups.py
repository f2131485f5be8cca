"""The bytes by which gRPC wakes an event loop.

grpc.aio has one thread for a process, which queues what has happened and writes a byte to a socket for each of it. In a
turn in which the socket can be read a loop takes one byte, and then all that is queued. So where turns are long more
bytes wait there than there is queued. With some 280 the socket is full and the thread waits to write another: from then
on one thing happens a turn, be there thousands, for as long as turns are long. A process with hundreds of clients stood
still like that, at a load that it could bear. The loops of services are left as they are: their turns are short, and
while one client floods a broker with small requests others are served the better for it.

Loops in several threads share the thread, the socket and the queue. Whoever has taken a byte must take what is queued
afterwards: its event is, and no other byte may come for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")

_MOST = 4096  # bytes that are taken at a time: more than fit
_MANY = 128  # so many waited: the thread may wait as well, and has more as soon as there is room
_ROUNDS = 8  # of a turn


class _ThisThread(threading.local):
    has_taken = False  # the bytes of a round


_this_thread = _ThisThread()


class _WakeUps(socket.socket):
    """gRPC takes what is queued only where it got a byte first: it gets that of a loop that has taken all of them."""

    __slots__ = ()

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        return b"1" if _this_thread.has_taken else super().recv(size, flags)


def with_wake_ups_taken(make: Callable[[], Made]) -> Made:
    """Makes a channel or a server of grpc.aio. The running loop, if it has none yet, takes all bytes that wait. A loop
    that does not let its methods be replaced is left as it is."""
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        return make()
    add_reader = loop.add_reader
    try:
        loop.add_reader = lambda read, callback, *args: add_reader(read, _taking_all(loop, read, callback), *args)
    except AttributeError:
        return make()
    try:
        return make()
    finally:
        del loop.add_reader


def _taking_all(
    loop: asyncio.AbstractEventLoop, read: socket.socket, take_one: Callable[..., object]
) -> Callable[..., object]:
    """`take_one` takes a byte, and all that is queued."""
    if type(read) is socket.socket:
        read.__class__ = _WakeUps
    if type(read) is not _WakeUps:
        return take_one

    def take_all(*args: object) -> None:
        for _ in range(_ROUNDS):
            try:
                taken = len(read.recv(_MOST))
            except BlockingIOError:
                return  # a loop of another thread has taken them, and takes all that was queued
            take_queued(taken, args)
            if taken < _MANY:
                return

    def take_queued(at_most: int, args: tuple[object, ...]) -> None:
        """An event of a loop that was closed raises, and leaves those behind it; so does an interrupt."""
        _this_thread.has_taken = True
        interrupt: BaseException | None = None
        try:
            for _ in range(at_most):
                try:
                    take_one(*args)
                except Exception as error:
                    loop.call_exception_handler({"message": "an event of gRPC was not heard of", "exception": error})
                except BaseException as error:
                    interrupt = error
                else:
                    break
        finally:
            _this_thread.has_taken = False
        if interrupt is not None:
            raise interrupt

    return take_all
