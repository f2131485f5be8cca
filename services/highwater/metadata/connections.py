"""Connections to the members of the etcd cluster: which one is used, and when the next one is tried."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aetcd import rpc

from highwater.metadata.etcd_errors import StoreClosed, Unavailable
from highwater.rpc.channel import NAME_OPTIONS, ReplaceableChannel

CONNECT_TIMEOUT_S = 1.0
RETRY_PAUSE_S = 0.05

_OPTIONS: tuple[tuple[str, Any], ...] = (
    *NAME_OPTIONS,
    ("grpc.max_receive_message_length", 64 << 20),
    # etcd drops clients that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # of any ping; gRPC's own is a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # not a back-off: what one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's own retries could send a write twice.
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files in PEM. Without `ca_file` the system's authorities are trusted; certificate and key come together."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("etcd's TLS needs both the client certificate and its key, or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_contents(self.ca_file),
            private_key=_contents(self.key_file),
            certificate_chain=_contents(self.certificate_file),
        )


def _contents(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


class Member:
    """One etcd member: a channel that re-connects by itself, and the calls on it."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._link = ReplaceableChannel(self._open)
        self._make_stubs()

    def _open(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.endpoint, options=_OPTIONS)
        return grpc.aio.secure_channel(self.endpoint, self._credentials, options=_OPTIONS)

    def _make_stubs(self) -> None:
        channel = self._link.channel
        self.kv: Any = rpc.KVStub(channel)
        self.lease: Any = rpc.LeaseStub(channel)
        self.watch: Any = rpc.WatchStub(channel)
        self.maintenance: Any = rpc.MaintenanceStub(channel)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The present one: another may stand in its place after `connected`."""
        return self._link.channel

    async def connected(self, timeout_s: float) -> bool:
        """Whether the connection stands now, or comes to stand before it is refused or the time is over."""
        if self._link.replace_failed():
            self._make_stubs()
        channel = self._link.channel
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    state = channel.get_state(try_to_connect=True)
                    if state is grpc.ChannelConnectivity.READY:
                        return True
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            return False

    async def close(self) -> None:
        await self._link.close()


class Connections:
    """The members in the order given; the current one is used until it fails (`failed`)."""

    def __init__(self, endpoints: Sequence[str], tls: TlsSettings | None) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint was given: name at least one as host:port")
        self.endpoints = tuple(_address(endpoint) for endpoint in endpoints)
        # An endpoint written as https:// without further settings is trusted as the system's authorities say.
        encrypted = tls is None and any(endpoint.startswith("https://") for endpoint in endpoints)
        self.tls = TlsSettings() if encrypted else tls
        self._members: list[Member] = []
        self._current = 0
        self._closed = False

    @property
    def current(self) -> str:
        return self.endpoints[self._current]

    async def member(self, deadline: float) -> Member:
        """A member with a standing connection. Raises `Unavailable` at the `deadline` (of `time.monotonic`), and
        `StoreClosed`.

        A write is sent only over a connection that stood, so that a failure to connect is known to have written
        nothing.
        """
        if not self._members and not self._closed:  # made at first use: a channel belongs to the running event loop
            credentials = None if self.tls is None else self.tls.credentials()
            self._members = [Member(endpoint, credentials) for endpoint in self.endpoints]
        while True:
            for _ in self.endpoints:
                if self._closed:
                    raise StoreClosed("the connection to etcd was closed")
                remaining = deadline - time.monotonic()
                member = self._members[self._current]
                if remaining > 0 and await member.connected(min(remaining, CONNECT_TIMEOUT_S)):
                    return member
                self.failed(member)
            if time.monotonic() + RETRY_PAUSE_S >= deadline:
                raise Unavailable(f"etcd cannot be reached at {', '.join(self.endpoints)}")
            await asyncio.sleep(RETRY_PAUSE_S)

    def failed(self, member: Member) -> None:
        """The next call goes to the next member (unless another call has moved on already)."""
        if self._members and self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    @contextlib.contextmanager
    def closing_told(self) -> Iterator[None]:
        """A closed channel cancels its calls, which looks as if the caller were cancelled: `StoreClosed` instead."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                raise StoreClosed("the connection to etcd was closed") from None
            raise

    async def close(self) -> None:
        self._closed = True
        members, self._members = self._members, []
        for member in members:
            await member.close()


def _address(endpoint: str) -> str:
    """`http://host:port` is accepted too, as etcd's own tools print it."""
    for scheme in ("http://", "https://"):
        endpoint = endpoint.removeprefix(scheme)
    return endpoint.rstrip("/")
