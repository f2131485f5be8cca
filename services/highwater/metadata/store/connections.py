"""Connections to the members of the etcd cluster: which one is used, and when the next one is tried.

A member whose host or link is gone without a word keeps its connection, as far as this end knows. So while watches hang
on a member it is asked for a sign of life, once for all of them. One that gives none loses them to the next member.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
from aetcd import rpc
from grpc.aio import AioRpcError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from highwater.errors import UserError
from highwater.metadata.store.etcd_errors import StoreClosed, Unavailable
from highwater.metadata.store.tls import ETCD, TlsSettings
from highwater.rpc.connections.channel import NAME_OPTIONS, ReplaceableChannel
from highwater.rpc.connections.tls import Certificates, TlsFiles
from highwater.rpc.connections.tls_diagnosis import diagnose
from highwater.supervision import UnaskedCancellationError, is_cancelled, uncancelled
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

CONNECT_TIMEOUT_S = 1.0
RETRY_PAUSE_S = 0.05
ASK_S = 1.0  # between two questions for a sign of life
SILENT_S = 2.0  # without an answer to one
DIAGNOSE_AGAIN_S = 10.0

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


def channel_options() -> Sequence[tuple[str, Any]]:
    """The limits and timings of every connection to etcd."""
    return _OPTIONS


class Stream(Protocol):
    def cancel(self) -> object: ...


class Retired(Exception):  # noqa: N818
    """The connection that a call or a stream was on is not used any more: the next one has what is to come."""


class Member:
    """One etcd member: a channel that re-connects by itself, and the calls on it."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._link = ReplaceableChannel(self._open)
        self._make_stubs()
        self.calls = 0  # under way
        self.streams: set[Stream] = set()
        self.asking: asyncio.Task[None] | None = None
        """Runs while there are streams."""
        self.retired = False

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
        self._health: Any = health_pb2_grpc.HealthStub(channel)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The present one: another may stand in its place after `connected`."""
        return self._link.channel

    async def answers(self) -> bool:
        """True where it gives a sign of life within 2 s. A refusal is one; so is what ends the connection, which ends
        its streams as well, and its replacement (RULES 8.8). Time in which this process stood still tells nothing of
        the member."""
        asked_s = time.monotonic()
        try:
            await uncancelled(self._health.Check(health_pb2.HealthCheckRequest(), timeout=SILENT_S))
        except UnaskedCancellationError:
            return True
        except AioRpcError as broken:
            silent = broken.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return not silent or time.monotonic() - asked_s > 1.5 * SILENT_S
        return True

    async def connected(self, timeout_s: float) -> bool:
        """True where the connection stands now, or comes to stand before it is refused or the time is over."""
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
        """Raises `UserError` where files for TLS are missing, broken, or do not go together."""
        if not endpoints:
            raise ValueError("no etcd endpoint was given: name at least one as host:port")
        self.endpoints = tuple(_address(endpoint) for endpoint in endpoints)
        # An endpoint written as https:// without further settings is trusted as the public authorities say.
        if tls is None and any(endpoint.startswith("https://") for endpoint in endpoints):
            tls = TlsSettings()
        plain = [endpoint for endpoint in endpoints if endpoint.startswith("http://")]
        if tls is not None and plain:
            raise UserError(f"etcd names {plain[0]}, and TLS is set: write https:// there, or leave http:// out")
        self._certificates = None if tls is None else Certificates(tls)
        self._members: list[Member] = []
        self._retired: set[Member] = set()  # with calls under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._current = 0
        self._closed = False
        self._diagnosis = ""
        self._diagnosed_s = -DIAGNOSE_AGAIN_S

    @property
    def tls(self) -> TlsFiles | None:
        return None if self._certificates is None else self._certificates.files

    @property
    def current(self) -> str:
        return self.endpoints[self._current]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of the present certificates; None without TLS. Any thread may ask."""
        return None if self._certificates is None else self._certificates.credentials()

    @property
    def certificates_generation(self) -> int:
        """Another number after the files have been replaced: what was opened before is to be opened anew."""
        return 0 if self._certificates is None else self._certificates.generation

    async def member(self, deadline: float) -> Member:
        """A member with a standing connection. Raises `Unavailable` at the `deadline` (of `time.monotonic`), and
        `StoreClosed`.

        A write is sent only over a connection that stood, so that a failure to connect is known to have written
        nothing.
        """
        if not self._members and not self._closed:  # made at first use: a channel belongs to the running event loop
            self._members = [self._new_member(endpoint) for endpoint in self.endpoints]
        while True:
            self._take_up_certificates()
            for _ in self.endpoints:
                if self._closed:
                    raise StoreClosed("the connection to etcd was closed")
                remaining = deadline - time.monotonic()
                member = self._members[self._current]
                if remaining > 0 and await member.connected(min(remaining, CONNECT_TIMEOUT_S)) and not member.retired:
                    self._diagnosis = ""
                    return member
                self.failed(member)
            if time.monotonic() + RETRY_PAUSE_S >= deadline:
                why = self._diagnosis or "see that it runs, or name its members in the setting etcd"
                raise Unavailable(f"etcd cannot be reached at {', '.join(self.endpoints)}: {why}")
            self._begin_diagnosis()
            await asyncio.sleep(RETRY_PAUSE_S)

    def _take_up_certificates(self) -> None:
        if self._certificates is not None and self._certificates.replaced():
            for member in tuple(self._members):
                self._replace(member)

    def _new_member(self, endpoint: str) -> Member:
        return Member(endpoint, self.credentials())

    def _begin_diagnosis(self) -> None:
        """Beside those who wait, every 10 s at most: what TLS has against it is told when their time is over."""
        now_s = time.monotonic()
        if now_s - self._diagnosed_s >= DIAGNOSE_AGAIN_S:
            self._diagnosed_s = now_s
            self._in_background(self._diagnose())

    async def _diagnose(self) -> None:
        found = await asyncio.gather(*(diagnose(endpoint, self.tls, ETCD) for endpoint in self.endpoints))
        self._diagnosis = next((each for each in found if each), "")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("looking after the connections to etcd failed", exc_info=error)

    def failed(self, member: Member) -> None:
        """The next call goes to the next member (unless another call has moved on already)."""
        if self._members and self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    @contextlib.contextmanager
    def using(self, member: Member, stream: Stream | None = None) -> Iterator[None]:
        """Around a call, or around all that is done with a stream, which is ended with `Retired` where the member is
        not used any more: it gives no sign of life, or was connected to with certificates that have been replaced.
        Calls keep the time that they have: an answer may yet come.

        A closed channel cancels its calls, which looks as if the caller were cancelled: `StoreClosed` instead, and
        `Retired` where the channel was replaced, as that of a member that says goodbye and goes: its streams live on
        while nothing new can connect."""
        member.calls += 1
        if stream is not None:
            member.streams.add(stream)
            if member.asking is None:
                member.asking = self._in_background(self._ask(member))
        try:
            yield
        except asyncio.CancelledError:
            if not is_cancelled():
                if self._closed:
                    raise StoreClosed("the connection to etcd was closed") from None
                raise Retired(f"the connection to etcd's member {member.endpoint} was replaced") from None
            raise
        finally:
            member.calls -= 1
            if stream is not None:
                member.streams.discard(stream)
            if not member.streams and member.asking is not None:
                member.asking.cancel()
                member.asking = None
            if member.retired:
                self._close_unused(member)

    async def _ask(self, member: Member) -> None:
        while True:
            if not await member.answers():
                break
            self._take_up_certificates()  # nothing else may be asked of the store for long
            await asyncio.sleep(ASK_S)
        if not self._closed and member in self._members:
            _log.warning(
                "etcd's member %s has not answered for %g s: its watches go on elsewhere", member.endpoint, SILENT_S
            )
            self.failed(member)
            self._replace(member)

    def _replace(self, member: Member) -> None:
        """Puts one with a connection of its own in its place, so that nothing waits for the old one."""
        self._members[self._members.index(member)] = self._new_member(member.endpoint)
        member.retired = True
        self._retired.add(member)
        for stream in tuple(member.streams):
            stream.cancel()
        self._close_unused(member)

    def _close_unused(self, member: Member) -> None:
        if not member.calls and not self._closed:
            self._retired.discard(member)
            self._in_background(member.close())

    async def close(self) -> None:
        self._closed = True
        members, self._members = self._members, []
        for member in (*members, *self._retired):
            await member.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _address(endpoint: str) -> str:
    """`http://host:port` is accepted too, as etcd's own tools print it."""
    for scheme in ("http://", "https://"):
        endpoint = endpoint.removeprefix(scheme)
    return endpoint.rstrip("/")
