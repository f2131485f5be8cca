"""The HTTP endpoint of a process's metrics, in threads of its own: the event loop has no part in it."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from highwater.telemetry.politely import AT_ONCE, politely

PATH = "/metrics"
MAX_REQUESTS = 4  # at a time; who comes besides is hung up on
TIMEOUT_S = 5.0  # of a client that neither asks nor reads


class _OneFamily:
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def exposition(registry: CollectorRegistry) -> bytes:
    """All metrics in Prometheus's text format, made with pauses: there may be thousands of values."""
    return b"".join(piece for family in registry.collect() for piece in politely(_pieces(family), at_once=1))


def _pieces(family: Metric) -> Iterator[bytes]:
    """The text of a family, some values at a time."""
    samples = family.samples
    if len(samples) <= AT_ONCE:
        yield generate_latest(_OneFamily(family))
        return
    for first in range(0, len(samples), AT_ONCE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        part.samples = samples[first : first + AT_ONCE]
        text = generate_latest(_OneFamily(part))
        yield text if first == 0 else _without_comments(text)


def _without_comments(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))


class MetricsServer:
    """Answers GET /metrics on `listen`, `host:port` (no host: 127.0.0.1; port 0: a free one), until `close`. Raises
    `OSError` where it cannot listen there."""

    def __init__(self, listen: str, registry: CollectorRegistry) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if not port.isdecimal() or int(port) > 65535:  # getaddrinfo takes what is left of it
            raise OSError(errno.EINVAL, "write host:port, with a port of at most 65535")
        family, _, _, _, address = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._server = _Server(family, address, registry)
        bound = self._server.server_address[1]
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    def __init__(self, family: int, address: Any, registry: CollectorRegistry) -> None:
        self.address_family = family
        self.registry = registry
        self._room = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks its own name up in DNS.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client has hung up: nobody has to know."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(404, "text/plain; charset=utf-8", f"metrics are at {PATH}\n".encode())
            return
        self._answer(200, CONTENT_TYPE_LATEST, exposition(self.server.registry))

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a line for each scrape would be most of the log."""
