from __future__ import annotations

import socket
from collections import deque

import pytest

from highwater.rpc.process import local_process
from highwater.rpc.process.local_process import free_ports


def test_ports_are_distinct_free_and_not_of_those_that_are_given_out() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        assert port < 30_000  # Linux gives out 32768 and up to whoever binds port 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        (port,) = free_ports(1)
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(local_process, "_PORTS", range(port, port + 2))
        monkeypatch.setattr(local_process, "_TRIES", 2)
        with pytest.raises(OSError, match="fewer than 2"):
            free_ports(2)


def test_a_port_that_was_given_and_is_not_bound_yet_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_process, "_PORTS", range(11_000, 11_100))
    monkeypatch.setattr(local_process, "_TRIES", 100)
    monkeypatch.setattr(local_process, "_given", deque(maxlen=60))
    given = [port for _ in range(6) for port in free_ports(10, besides=range(11_000, 11_020))]
    assert len(set(given)) == 60
    assert min(given) >= 11_020


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError):
        free_ports(1, "192.0.2.1")
