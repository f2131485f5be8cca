"""A server's end of a connection is closed by the name of its peer, and no other one's is."""

from __future__ import annotations

import socket

import pytest

from highwater.rpc.hang_up import hang_up, parse_peer


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
        assert not hang_up(name(client), others.getsockname()[1])
        assert hang_up(name(client), server.getsockname()[1])
        client.settimeout(5)
        assert client.recv(1) == b""
        others.sendall(b"x")
        other.settimeout(5)
        assert other.recv(1) == b"x"


@pytest.mark.parametrize("peer", ["", "unix:", "unix:/tmp/socket", "ipv4:127.0.0.1", "ipv4:192.0.2.1:1", "ipv6:x:y"])
def test_who_is_not_connected_is_not_found(peer: str) -> None:
    assert not hang_up(peer, 1)


def test_two_connections_from_one_port_to_two_listeners_are_told_apart() -> None:
    with socket.socket() as one, socket.socket() as two:
        for listener in (one, two):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        clients = []
        for listener in (one, two):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            client.bind(clients[0].getsockname() if clients else ("127.0.0.1", 0))
            client.connect(listener.getsockname())
            client.settimeout(5)
            clients.append(client)
        with clients[0], clients[1], one.accept()[0] as first, two.accept()[0]:
            assert name(clients[0]) == name(clients[1])
            assert hang_up(name(clients[1]), two.getsockname()[1])
            assert clients[1].recv(1) == b""
            first.sendall(b"x")
            assert clients[0].recv(1) == b"x"


@pytest.mark.parametrize("scope", ["%251", "%25251", "%25lo", "%2525lo"])
def test_a_link_local_peer_is_found_by_its_interface(scope: str) -> None:
    peer = parse_peer(f"ipv6:%5Bfe80::1{scope}%5D:4711")
    assert peer is not None
    interface = socket.if_nametoindex("lo")
    assert interface == 1
    assert peer.is_at(("fe80::1%lo", 4711, 0, interface))
    assert not peer.is_at(("fe80::1%lo", 4711, 0, 77))
    assert not peer.is_at(("fe80::2%lo", 4711, 0, interface))
    assert not peer.is_at(("fe80::1%lo", 4712, 0, interface))


def test_a_mapped_address_is_that_of_ipv4() -> None:
    peer = parse_peer("ipv4:127.0.0.1:4711")
    assert peer is not None
    assert peer.is_at(("::ffff:127.0.0.1", 4711, 0, 0))
