"""Channels with the limits and timings that Highwater expects of a connection."""

from __future__ import annotations

from typing import Any

import grpc.aio

MAX_MESSAGE_BYTES = 128 << 20

COMMON_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that says nothing for 10 s is asked; one that then answers no ping for 5 s is gone. While there are calls:
    # who waits for a peer without a limit of its own is bounded by this. gRPC pings for its window's size as well, and
    # waits a minute for those unless it is told otherwise.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 4 << 20),
)

CHANNEL_OPTIONS = (
    *COMMON_OPTIONS,
    # A broker that was killed is back within seconds: the default back-off (1 s growing to 120 s) would hide it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not a back-off but the time that one attempt to connect may take: a busy machine needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    # Two channels to one address are two connections: a large fetch must not delay an acknowledgement.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to `host:port` or `unix:/path`. It connects when first used and re-connects by itself."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
