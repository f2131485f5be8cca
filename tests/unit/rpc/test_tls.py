"""TLS between servers and channels of ours: who is let in, files that are replaced, and reasons in sentences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from highwater.errors import UserError
from highwater.rpc.connections import tls
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import SERVICES, Certificates, TlsFiles, server_credentials
from highwater.rpc.connections.tls_diagnosis import diagnose
from highwater.rpc.server import LIVE, RpcServer

DEADLINE_S = 10.0


def write(directory: Path, authority: trustme.CA, *trusted: trustme.CA) -> TlsFiles:
    """A certificate of the authority, and those that its holder trusts: the same one by default."""
    directory.mkdir(exist_ok=True)
    issued = authority.issue_cert("127.0.0.1")
    (directory / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (directory / "tls.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    (directory / "ca.pem").write_bytes(b"".join(each.cert_pem.bytes() for each in trusted or (authority,)))
    return TlsFiles(directory / "ca.pem", directory / "tls.pem", directory / "key.pem")


@asynccontextmanager
async def serving(certificates: Certificates, *, require: bool = True) -> AsyncIterator[str]:
    server = RpcServer(["ssl:127.0.0.1:0"], credentials=server_credentials(certificates, require=require))
    await server.start([])
    try:
        yield server.addresses[0]
    finally:
        await server.stop(0)


async def health(channel: grpc.aio.Channel) -> int:
    request = health_pb2.HealthCheckRequest(service=LIVE)
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_S)
    return int(answer.status)


async def refused(address: str, certificates: Certificates | None) -> bool:
    async with open_channel(address, certificates) as channel:
        try:
            return not await health(channel)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_is_let_in_by_a_certificate_that_the_servers_authority_signed(tmp_path: Path) -> None:
    authority = trustme.CA()
    ours = Certificates(write(tmp_path / "server", authority))
    client = write(tmp_path / "client", authority)
    stranger = write(tmp_path / "stranger", trustme.CA(), authority)
    async with serving(ours) as address:
        assert address.startswith("ssl:127.0.0.1:")
        async with open_channel(address, Certificates(client)) as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        for wrong in (None, TlsFiles(client.ca_file), stranger, replace(client, ca_file=None)):
            assert await refused(address, wrong and Certificates(wrong))
        assert await refused(address.removeprefix("ssl:"), None)
    async with (
        serving(ours, require=False) as address,
        open_channel(address, Certificates(TlsFiles(client.ca_file))) as channel,
    ):
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING


async def test_both_ends_take_up_replaced_files_and_what_is_under_way_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    old, new = trustme.CA(), trustme.CA()
    ours = Certificates(write(tmp_path / "server", old))
    theirs = Certificates(write(tmp_path / "client", old))
    write(tmp_path / "late", old)
    late = Certificates(TlsFiles(*(tmp_path / "late" / name for name in ("ca.pem", "tls.pem", "key.pem"))))
    async with serving(ours) as address, open_channel(address, theirs) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=LIVE))
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        for step in ((old, old, new), (new, old, new), (new,)):
            write(tmp_path / "server", *step)
            write(tmp_path / "client", *step)
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        assert (ours.generation, theirs.generation) == (3, 3)
        assert await refused(address, late)
        write(tmp_path / "late", new)
        assert not await refused(address, late)
        assert not watching.done()
        watching.cancel()


async def test_a_channel_that_is_waited_for_takes_them_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    monkeypatch.setattr("highwater.rpc.connections.renewed_channel._LOOK_AGAIN_S", 0.02)
    authority = trustme.CA()
    write(tmp_path / "client", trustme.CA(), authority)
    client = Certificates(TlsFiles(*(tmp_path / "client" / name for name in ("ca.pem", "tls.pem", "key.pem"))))
    async with (
        serving(Certificates(write(tmp_path / "server", authority))) as address,
        open_channel(address, client) as channel,
    ):
        waiting = asyncio.create_task(channel.channel_ready())
        await asyncio.wait((waiting,), timeout=0.2)
        assert not waiting.done()
        write(tmp_path / "client", authority)
        await asyncio.wait_for(waiting, DEADLINE_S)
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING


async def test_files_that_are_not_whole_are_left_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    authority = trustme.CA()
    client = Certificates(write(tmp_path / "client", authority))
    async with (
        serving(Certificates(write(tmp_path / "server", authority))) as address,
        open_channel(address, client) as channel,
    ):
        (tmp_path / "client" / "key.pem").write_bytes(trustme.CA().issue_cert("x.test").private_key_pem.bytes())
        for _ in range(2):
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        assert caplog.text.count("is not the key of ssl.certificate.file") == 1
        assert client.generation == 0


@pytest.mark.parametrize("name", ["ca.pem", "tls.pem", "key.pem"])
def test_a_file_that_goes_once_it_was_read_is_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    files = write(tmp_path / "files", trustme.CA())
    read_bytes = Path.read_bytes

    def read_once(path: Path) -> bytes:
        content = read_bytes(path)
        if path.name == name:
            path.unlink()
        return content

    monkeypatch.setattr(Path, "read_bytes", read_once)
    with pytest.raises(UserError, match="cannot be read"):
        files.context()


@pytest.mark.parametrize("before", range(1, 10))
def test_files_that_are_replaced_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """All at once, as a link that is turned round does: before the nth of them is read."""
    authority = trustme.CA()
    files = write(tmp_path / "0", authority)
    write(tmp_path / "1", authority)
    paths = {path: tmp_path / "current" / path.name for path in files.files}
    linked = TlsFiles(*paths.values())
    (tmp_path / "current").symlink_to("0")
    reads = 0
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        nonlocal reads
        reads += 1
        if reads == before:
            (tmp_path / "next").symlink_to("1")
            (tmp_path / "next").replace(tmp_path / "current")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    _, key, certificate = linked.read()
    monkeypatch.undo()
    pairs = [tuple((tmp_path / each / name).read_bytes() for name in ("key.pem", "tls.pem")) for each in ("0", "1")]
    assert (key, certificate) in pairs


async def test_a_closed_channel_ends_what_is_under_way_on_former_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    authority = trustme.CA()
    client = Certificates(write(tmp_path / "client", authority))
    async with serving(Certificates(write(tmp_path / "server", authority))) as address:
        channel = open_channel(address, client)
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=LIVE))
        await watching.read()
        write(tmp_path / "client", authority)
        await health(channel)
        await channel.close(None)
        assert watching.done()


@pytest.mark.parametrize("certificate", ["none", "another authority's", "none at a plain port"])
async def test_what_is_wrong_is_told_in_a_sentence(tmp_path: Path, certificate: str) -> None:
    authority = trustme.CA()
    server = Certificates(write(tmp_path / "server", authority))
    files = write(tmp_path / "client", trustme.CA(), authority)
    plain = RpcServer(["127.0.0.1:0"])
    await plain.start([])
    try:
        async with serving(server) as address:
            endpoint = address.removeprefix("ssl:")
            match certificate:
                case "none":
                    said = await diagnose(endpoint, TlsFiles(files.ca_file), SERVICES)
                    assert said.startswith(f"{endpoint} wants a certificate of its clients: set ssl.certificate.file")
                    assert (await diagnose(endpoint, None, SERVICES)).startswith(f"{endpoint} speaks TLS: write its")
                case "another authority's":
                    said = await diagnose(endpoint, files, SERVICES)
                    assert said.startswith(f"{endpoint} refuses ssl.certificate.file {files.certificate_file}")
                    (tmp_path / "client" / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
                    said = await diagnose(endpoint, files, SERVICES)
                    assert f"is not signed by an authority in ssl.ca.file {files.ca_file}" in said
                case _:
                    said = await diagnose(plain.addresses[0], files, SERVICES)
                    assert said.startswith(f"{plain.addresses[0]} does not speak TLS: write its address as host:port")
                    assert await diagnose(plain.addresses[0], None, SERVICES) == ""
    finally:
        await plain.stop(0)
