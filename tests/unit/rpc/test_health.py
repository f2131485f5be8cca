"""`highwater health`: one line, and an exit status that a probe understands."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
import trustme
from typer.testing import CliRunner

from highwater.cli.app import app
from highwater.rpc.connections.tls import Certificates, TlsFiles, server_credentials
from highwater.rpc.health import NOT_SERVING, SERVING, UNREACHABLE, main
from highwater.rpc.process.local_process import free_ports
from highwater.rpc.server import RpcServer

NAME = "highwater.v1.Broker"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[RpcServer]:
    server = RpcServer(["127.0.0.1:0", f"unix:{tmp_path}/s"])
    await server.start([NAME])
    yield server
    await server.stop(0)


class Said:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """The exit status, and what stands on stdout and stderr."""
        status = await asyncio.to_thread(main, arguments)
        return status, *self._capsys.readouterr()


@pytest.fixture
def health(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


async def test_a_server_that_serves_and_one_that_does_not(server: RpcServer, health: Said) -> None:
    for address in server.addresses:
        await server.set_serving(False)
        assert await health(address) == (NOT_SERVING, "", f"{address}: NOT_SERVING\n")
        assert await health(address, "--service", "live") == (SERVING, f"{address} live: SERVING\n", "")
        await server.set_serving(True)
        assert await health(address) == (SERVING, f"{address}: SERVING\n", "")
        assert await health(address, "--service", NAME) == (SERVING, f"{address} {NAME}: SERVING\n", "")


async def test_a_name_that_the_server_does_not_know_is_not_served(server: RpcServer, health: Said) -> None:
    address = server.addresses[0]
    assert await health(address, "--service", "raedy") == (NOT_SERVING, "", f"{address} raedy: no such health name\n")


async def test_a_server_without_health(health: Said) -> None:
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        status, out, err = await health(address)
    finally:
        await server.stop(0)
    assert (status, out, err) == (NOT_SERVING, "", f"{address}: the server has no gRPC health service\n")


async def test_nobody_listens(health: Said, tmp_path: Path) -> None:
    for address in (f"127.0.0.1:{free_ports(1)[0]}", f"unix:{tmp_path}/nothing"):
        status, out, err = await health(address, "--timeout", "30")
        assert (status, out) == (UNREACHABLE, "")
        assert err.startswith(f"highwater: {address} cannot be reached: ")
        assert err.count("\n") == 1


async def test_tls_is_spoken_there(health: Said, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.pem")
    certificates = Certificates(TlsFiles(None, tmp_path / "tls.pem", tmp_path / "key.pem"))
    server = RpcServer(
        ["ssl:127.0.0.1:0"],
        health_listen="127.0.0.1:0",
        credentials=server_credentials(certificates, require=False),
    )
    await server.start([NAME])
    try:
        address = server.addresses[0].removeprefix("ssl:")
        told = f"highwater: {address} speaks TLS: ask at its health.listen, where nobody does\n"
        assert await health(address) == (UNREACHABLE, "", told)
        live = await health(server.health_address, "--service", "live")
        assert live == (SERVING, f"{server.health_address} live: SERVING\n", "")
    finally:
        await server.stop(0)


async def test_a_server_that_does_not_answer(health: Said) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = await health(address, "--timeout", "0.3")
    assert said == (UNREACHABLE, "", f"highwater: {address} did not answer within 0.3 s\n")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["localhost"], "'localhost' is not an address: write host:port or unix:/path"),
        (["127.0.0.1:9092", "--timeout", "0"], "'0' is no number of seconds above 0"),
        (["127.0.0.1:9092", "--timeout", "soon"], "'soon' is no number of seconds above 0"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert wrong in capsys.readouterr().err


def test_it_is_one_of_the_commands_and_loads_none_of_the_others() -> None:
    assert "health" in CliRunner().invoke(app, ["--help"]).output
    assert "--timeout" in CliRunner().invoke(app, ["health", "--help"]).output
    address = f"127.0.0.1:{free_ports(1)[0]}"
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['typer', 'rich', 'numpy', 'pyarrow', 'pydantic', 'prometheus_client']))\n"
        "from highwater.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "health", address], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == UNREACHABLE
    assert "cannot be reached" in done.stderr
