"""A name server of the test's own, so that a name can move: gRPC asks it for targets that `target` makes."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

_A = 1  # the type of an IPv4 address
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_HEADER_BYTES = 12
_ANSWER = struct.Struct(">HHHIH4s")  # name (a pointer to the question's), type, class, seconds to live, length, address
_QUESTIONS_NAME = 0xC000 | _HEADER_BYTES


class NameServer:
    """`addresses` may be changed at any time: a name that is not in it does not exist."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.looked_up_s: dict[str, list[float]] = defaultdict(list)  # when each name was
        server = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                question, answers = self.request
                answers.sendto(server._answer(question), self.client_address)

        self._server = socketserver.UDPServer(("127.0.0.1", 0), Handler)

    def target(self, name: str, port: int | str) -> str:
        """The address of a port of that name, for gRPC alone: it is `host:port` to who does not look closer."""
        return f"dns://127.0.0.1:{self._server.server_address[1]}/{name}:{port}"

    def _answer(self, data: bytes) -> bytes:
        labels, at = [], _HEADER_BYTES
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        (kind,) = struct.unpack_from(">H", data, at + 1)
        question = data[_HEADER_BYTES : at + 5]
        name = ".".join(labels)
        address = self.addresses.get(name)
        answer = b""
        if kind == _A:
            self.looked_up_s[name].append(monotonic())
            if address is not None:
                answer = _ANSWER.pack(_QUESTIONS_NAME, _A, 1, 0, 4, socket.inet_aton(address))
        flags = 0x8580 | (_NO_SUCH_NAME if address is None else _NO_ERROR)
        return data[:2] + struct.pack(">HHHHH", flags, 1, 1 if answer else 0, 0, 0) + question + answer

    @contextmanager
    def running(self) -> Iterator[NameServer]:
        """In a thread, so that it answers while the test waits."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
