"""The word of a member in its init container to the others, over HTTP on the port where its etcd will serve its
peers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from highwater.errors import UserError
from highwater.kube.etcd_member.first_start import Answer, Heard
from highwater.kube.etcd_member.volume import Held

PATH = "/highwater/etcd-member"
ASK_TIMEOUT_S = 2.0
_LONGEST = 64 << 10


@dataclass(frozen=True, slots=True)
class Word:
    name: str
    initial_cluster: str
    """The cluster that it would start. Members that would start different ones must not start any."""
    held: Held


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Contexts for `https` peer URLs, from the files that etcd uses for its peers."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


@contextlib.contextmanager
def answering(
    listen_url: str, word: Callable[[], Word], told: Callable[[Word], None], tls: PeerTls | None
) -> Iterator[None]:
    """Answers with `word()`, and hands over what those that ask say of themselves. Both are called in other threads.
    Raises `UserError` where it cannot listen."""

    class Handler(BaseHTTPRequestHandler):
        timeout = ASK_TIMEOUT_S

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path != PATH:
                self.send_error(404)
                return
            with contextlib.suppress(ValueError, KeyError, IndexError):
                asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
                told(Word(asked["name"], asked["initial_cluster"], Held(asked["held"])))
            body = _encoded(word())
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: every member asks every half second."""

    where = urlsplit(listen_url)
    assert where.hostname is not None
    kind = type("_PeerServer", (_Server,), {"address_family": socket.AF_INET6}) if ":" in where.hostname else _Server
    try:
        server = kind((where.hostname, where.port or 2380), Handler)
    except OSError as error:
        raise UserError(f"cannot listen on {listen_url} to answer the other members: {error.strerror}") from error
    if tls is not None:
        # The handshake is made in the connection's own thread: one that stalls keeps nobody waiting.
        server.socket = tls.server.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="peer-word", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


async def ask(peer_url: str, own: Word, tls: PeerTls | None) -> Answer | Word:
    """Asks the peer URL, and returns what answers there: a member's word, `Heard.ETCD` for anything else that speaks
    HTTP, or `Heard.SILENCE`. Tells it `own` at the same time."""
    return await asyncio.to_thread(_ask, peer_url, own, tls)


def _ask(peer_url: str, own: Word, tls: PeerTls | None) -> Answer | Word:
    where = urlsplit(peer_url)
    assert where.hostname is not None
    if where.scheme == "https":
        assert tls is not None
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            where.hostname, where.port or 2380, timeout=ASK_TIMEOUT_S, context=tls.client
        )
    else:
        connection = http.client.HTTPConnection(where.hostname, where.port or 2380, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", f"{PATH}?{urlencode(json.loads(_encoded(own)))}", headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(_LONGEST)
    except (OSError, http.client.HTTPException):
        return Heard.SILENCE
    finally:
        connection.close()
    if response.status == 200:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(body)
            return Word(str(found["name"]), str(found["initial_cluster"]), Held(found["held"]))
    return Heard.ETCD


def _encoded(word: Word) -> bytes:
    said = {"name": word.name, "initial_cluster": word.initial_cluster, "held": word.held.value}
    return json.dumps(said).encode()
