"""How long a connection may take to come about."""

from __future__ import annotations

import socket

import grpc
import pytest

from highwater.rpc.connections.channel import open_channel


async def test_a_busy_server_has_time_to_accept_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:  # the kernel connects, the server says nothing yet
        host, port = busy.getsockname()
        async with open_channel(f"{host}:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary("/any/Call")(b"", timeout=0.5)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # UNAVAILABLE: it was given up before
