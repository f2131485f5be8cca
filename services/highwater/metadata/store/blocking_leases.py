"""Renewals of leases for a thread without an event loop (RULES 8.2).

Over a channel of gRPC's blocking stack: all event loops of a process share one queue of answers in `grpc.aio`, so a
loop in a second thread would be woken for every answer to the first one, and a busy first one hold up its answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc
from aetcd import rpc

from highwater.metadata.store.connections import RETRY_PAUSE_S, Connections, channel_options
from highwater.metadata.store.etcd_errors import LeaseNotFound, StoreClosed, StoreError, Unavailable, classify
from highwater.metadata.store.watch_stream import HAS_LEADER

# A stream of renewals by etcd's contract. One request, one answer and the end of both is a unary call on the wire.
_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"

_Call = Callable[..., rpc.LeaseKeepAliveResponse]


class BlockingLeases:
    """Beside a `Store`: the same members, its present one first, under the same certificates. One thread calls `renew`;
    any other may `close` it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._current = connections.endpoints.index(connections.current)
        self._generation = 0
        self._closed = threading.Event()
        self._opening = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._call: _Call | None = None

    def renew(self, lease: int, timeout_s: float) -> int:
        """Renews a lease and returns its seconds. Raises `LeaseNotFound` when it is gone, `Unavailable` where no member
        has answered in time, `Refused`, and `StoreClosed` once `close` was called."""
        deadline = time.monotonic() + timeout_s
        while True:
            remaining_s = max(deadline - time.monotonic(), 0.001)
            # With several members, one that hangs may use up half of the time only.
            attempt_s = remaining_s if len(self._connections.endpoints) == 1 else remaining_s / 2
            try:
                return self._attempt(lease, attempt_s)
            except Unavailable:
                self._move_on()
                if time.monotonic() + RETRY_PAUSE_S >= deadline:
                    raise
            self._closed.wait(RETRY_PAUSE_S)

    def _attempt(self, lease: int, timeout_s: float) -> int:
        try:
            call = self._connected()
            answer = call(rpc.LeaseKeepAliveRequest(ID=lease), timeout=timeout_s, metadata=HAS_LEADER)
        except grpc.RpcError as broken:
            raise self._closed_error() or classify(broken, wrote=False) from broken
        except ValueError as closed:  # the channel was closed before the call
            raise self._closed_error() or Unavailable("the connection to etcd was closed") from closed
        if answer.TTL <= 0:
            raise LeaseNotFound(f"lease {lease:x} has expired or was revoked")
        return int(answer.TTL)

    def _closed_error(self) -> StoreError | None:
        return StoreClosed("the renewals of the lease were ended") if self._closed.is_set() else None

    def _connected(self) -> _Call:
        """The call on a channel that has the present certificates. Connecting is part of the call's time."""
        generation = self._connections.certificates_generation
        with self._opening:
            if self._closed.is_set():
                raise ValueError
            if self._call is None or generation != self._generation:
                self._close_channel()
                self._channel, self._generation = self._open(), generation
                self._call = self._channel.unary_unary(
                    _KEEP_ALIVE,
                    request_serializer=rpc.LeaseKeepAliveRequest.SerializeToString,
                    response_deserializer=rpc.LeaseKeepAliveResponse.FromString,
                )
            return self._call

    def _open(self) -> grpc.Channel:
        endpoint, credentials = self._connections.endpoints[self._current], self._connections.credentials()
        if credentials is None:
            return grpc.insecure_channel(endpoint, options=channel_options())
        return grpc.secure_channel(endpoint, credentials, options=channel_options())

    def _move_on(self) -> None:
        """To the next member, by a new connection: the name is looked up again, and what hangs is left (RULES 8.8)."""
        with self._opening:
            self._close_channel()
            self._current = (self._current + 1) % len(self._connections.endpoints)

    def _close_channel(self) -> None:
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Ends the call under way, which raises `StoreClosed`; returns at once."""
        self._closed.set()
        with self._opening:
            self._close_channel()
