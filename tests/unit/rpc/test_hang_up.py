"""A server's end of a connection is closed by the name of its peer, and no other one's is."""

from __future__ import annotations

import socket

import pytest

from highwater.rpc.hang_up import hang_up


def connected(family: socket.AddressFamily, host: str) -> tuple[socket.socket, socket.socket]:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.create_connection(listener.getsockname()[:2])
        return client, listener.accept()[0]


def name(client: socket.socket) -> str:
    host, port = client.getsockname()[:2]
    return f"ipv4:{host}:{port}" if client.family is socket.AF_INET else f"ipv6:%5B{host}%5D:{port}"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_connection_of_a_peer_is_closed_and_no_other(family: socket.AddressFamily, host: str) -> None:
    try:
        (client, server), (other, others) = connected(family, host), connected(family, host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with client, server, other, others:
        assert hang_up(name(client))
        client.settimeout(5)
        assert client.recv(1) == b""
        others.sendall(b"x")
        other.settimeout(5)
        assert other.recv(1) == b"x"


@pytest.mark.parametrize("peer", ["", "unix:", "unix:/tmp/socket", "ipv4:127.0.0.1", "ipv4:192.0.2.1:1", "ipv6:x:y"])
def test_who_is_not_connected_is_not_found(peer: str) -> None:
    assert not hang_up(peer)
