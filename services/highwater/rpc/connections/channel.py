"""Channels with the limits and timings that Highwater expects of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import grpc
import grpc.aio

from highwater.rpc.connections.renewed_channel import RenewedChannel
from highwater.rpc.connections.tls import Certificates, TlsFiles
from highwater.rpc.listeners import speaks_tls, without_tls

MAX_MESSAGE_BYTES = 128 << 20
SILENCE_MS = 15_000
"""After so long it is known that a peer with which there are calls says nothing any more."""
_PING_TIMEOUT_MS = 5_000

COMMON_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that says nothing for 10 s is asked; one that then answers no ping for 5 s is gone. While there are calls:
    # who waits for a peer without a limit of its own is bounded by this. gRPC pings for its window's size as well, and
    # waits a minute for those unless it is told otherwise.
    ("grpc.keepalive_time_ms", SILENCE_MS - _PING_TIMEOUT_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 4 << 20),
)

# RULES 8.8. A name may lead elsewhere from one moment to the next: a pod that is started again has another address.
# gRPC looks it up when it cannot connect, and without this at most every 30 s. It tries to connect once a second at
# most: more look-ups would not find more.
NAME_OPTIONS: tuple[tuple[str, Any], ...] = (("grpc.dns_min_time_between_resolutions_ms", 1_000),)

# A channel that cannot connect is replaced after so long, where it is used. What was asked over it a moment before has
# failed, and is told so within the grace: a closed channel cancels its calls, as if the caller were cancelled.
REPLACE_AFTER_S = 2.0
CLOSE_GRACE_S = 1.0

CHANNEL_OPTIONS = (
    *COMMON_OPTIONS,
    *NAME_OPTIONS,
    # A broker that was killed is back within seconds: the default back-off (1 s growing to 120 s) would hide it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not a back-off but the time that one attempt to connect may take: a busy machine needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    # Two channels to one address are two connections: a large fetch must not delay an acknowledgement.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, certificates: Certificates | None = None) -> grpc.aio.Channel:
    """A channel to `host:port`, `ssl:host:port` or `unix:/path`. It connects when first used and re-connects by itself.

    TLS goes by the `certificates`, and by others when those have been replaced (`RenewedChannel`); None: public
    authorities are trusted, and no certificate is shown. Raises `UserError` where the machine has none."""
    if not speaks_tls(address):
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    target, held = without_tls(address), certificates or Certificates(TlsFiles())
    return RenewedChannel(held, lambda: grpc.aio.secure_channel(target, held.credentials(), options=CHANNEL_OPTIONS))


class ReplaceableChannel:
    """A channel that is replaced where it cannot connect. A kept one waits longer and longer before it looks a name up
    again that did not resolve (1 s, 1.6 s, up to two minutes), and so would miss for as long that the name is back.

    Calls that wait for a connection (`wait_for_ready`) fail where it is replaced meanwhile.
    """

    def __init__(self, open_one: Callable[[], grpc.aio.Channel]) -> None:
        self._open = open_one
        self._closing: set[asyncio.Task[None]] = set()
        self._opened_s = monotonic()
        self.channel = open_one()

    def cannot_connect(self) -> bool:
        """Tells whether the last attempt failed, and none has succeeded since."""
        return self.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def replace_failed(self) -> bool:
        """Replaces a channel that is `REPLACE_AFTER_S` old and cannot connect. Whether it did: stubs are to be made
        anew."""
        if monotonic() - self._opened_s < REPLACE_AFTER_S or not self.cannot_connect():
            return False
        self.replace()
        return True

    def replace(self) -> None:
        """Opens another channel; what is under way on the present one fails."""
        before, self.channel = self.channel, self._open()
        self._opened_s = monotonic()
        closing = asyncio.create_task(before.close(CLOSE_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        await asyncio.gather(self.channel.close(None), *self._closing)
