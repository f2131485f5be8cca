"""RULES 8.3: what ends a registration before its lease does, and what does not."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from highwater.controller.term.broker_liveness import BARRED_MS, REFUSED_MS, Attempt, BrokerProbe, FastPath, connect


def connected_once() -> FastPath:
    path = FastPath()
    path.registered(10)
    path.connected()
    return path


def test_refusals_for_some_hundred_ms_after_a_broken_connection_end_it() -> None:
    path = connected_once()
    assert not path.refused(1_000)
    assert not path.refused(1_000 + REFUSED_MS - 1)
    assert path.refused(1_000 + REFUSED_MS)


def test_a_broker_that_never_took_a_connection_is_left_to_its_lease() -> None:
    path = FastPath()
    path.registered(10)
    assert not path.refused(0)
    assert not path.refused(10_000)


def test_a_connection_or_a_time_out_in_between_begins_the_count_anew() -> None:
    for interrupt in (FastPath.connected, FastPath.unreachable):
        path = connected_once()
        assert not path.refused(0)
        interrupt(path)
        assert not path.refused(REFUSED_MS)
        assert path.refused(2 * REFUSED_MS)


def test_one_that_registers_again_while_it_refuses_loses_the_fast_path_for_a_minute() -> None:
    path = connected_once()
    path.refused(0)
    assert path.refused(REFUSED_MS)
    path.registered(11)
    assert not path.refused(1_000)
    path.connected()
    assert not path.refused(2_000)
    assert not path.refused(1_000 + BARRED_MS - 1)
    assert path.refused(1_000 + BARRED_MS)


def test_one_that_registers_again_and_answers_keeps_it() -> None:
    path = connected_once()
    path.refused(0)
    assert path.refused(REFUSED_MS)
    path.registered(11)
    path.connected()
    assert not path.refused(1_000)
    assert path.refused(1_000 + REFUSED_MS)


async def test_a_connection_is_taken_refused_or_out_of_reach(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        taken = await connect(f"127.0.0.1:{port}")
        assert isinstance(taken, socket.socket)
        taken.close()
    assert await connect(f"127.0.0.1:{port}") is Attempt.REFUSED
    assert await connect(f"localhost:{port}") is Attempt.REFUSED
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        taken = await connect(f"unix:{path}")
        assert isinstance(taken, socket.socket)
        taken.close()
    assert await connect(f"unix:{path}") is Attempt.REFUSED  # the file outlives the process
    path.unlink()
    assert await connect(f"unix:{path}") is Attempt.REFUSED
    assert await connect("host.invalid:1") is Attempt.UNREACHABLE


async def test_the_probe_ends_the_registration_once() -> None:
    expelled = []
    listening = socket.create_server(("127.0.0.1", 0))
    path = FastPath()
    path.registered(10)

    async def expel() -> None:
        expelled.append(10)

    loop = asyncio.get_running_loop()
    probe = BrokerProbe(f"127.0.0.1:{listening.getsockname()[1]}", path, expel, lambda: round(loop.time() * 1000))
    listening.setblocking(False)
    running = asyncio.create_task(probe.run())
    accepted, _ = await loop.sock_accept(listening)
    listening.close()
    accepted.close()  # as the kernel does for a killed process
    async with asyncio.timeout(5):
        await running
    assert expelled == [10]


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:port", "127.0.0.1:99999", f"{'x' * 70}.example:1", ""])
async def test_an_address_that_is_none_is_out_of_reach(address: str) -> None:
    """A registration says what it likes; the controller of all the others must live with it."""
    assert await connect(address) is Attempt.UNREACHABLE
