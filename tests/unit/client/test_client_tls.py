"""Clients and TLS: which files count, and one sentence, at once, where it does not come about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cluster_double import ClusterDouble

from highwater.client import (
    Admin,
    Consumer,
    InvalidRequestError,
    NetworkError,
    Producer,
    SslAuthenticationError,
    TopicPartition,
)
from highwater.client.cluster.tls import client_certificates
from highwater.client.cluster.tls_options import VARIABLES
from highwater.rpc.connections.tls import Certificates, TlsFiles, server_credentials
from highwater.rpc.server import RpcServer

NONE: dict[str, Any] = dict.fromkeys(("security_protocol", "ssl_ca_file", "ssl_certificate_file", "ssl_key_file"), None)


def write(directory: Path, authority: trustme.CA) -> dict[str, Any]:
    directory.mkdir()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "tls.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return {
        "security_protocol": "SSL",
        "ssl_ca_file": directory / "ca.pem",
        "ssl_certificate_file": directory / "tls.pem",
        "ssl_key_file": directory / "key.pem",
    }


def files_of(options: dict[str, Any]) -> TlsFiles:
    return TlsFiles(options["ssl_ca_file"], options["ssl_certificate_file"], options["ssl_key_file"])


def test_options_go_before_the_environment(tmp_path: Path) -> None:
    given, others = write(tmp_path / "a", trustme.CA()), write(tmp_path / "b", trustme.CA())
    environment = dict(zip(VARIABLES, ("SSL", *(str(each) for each in list(others.values())[1:])), strict=True))
    assert client_certificates(NONE, {}) is None
    assert client_certificates({**NONE, "security_protocol": "PLAINTEXT"}, environment) is None
    assert client_certificates(NONE, {**environment, VARIABLES[0]: "PLAINTEXT"}) is None
    found = client_certificates(NONE, environment)
    assert found is not None
    assert found.files.files == tuple(list(others.values())[1:])
    found = client_certificates({**given, "security_protocol": None}, environment)
    assert found is not None
    assert found.files.files == tuple(list(given.values())[1:])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"security_protocol": "SASL_SSL"}, "security_protocol is 'SASL_SSL'; it can be PLAINTEXT or SSL"),
        ({"ssl_ca_file": "/ca.pem"}, "ssl_ca_file is set, and security_protocol is PLAINTEXT"),
        ({"security_protocol": "SSL", "ssl_ca_file": "/no/ca.pem"}, "ssl_ca_file /no/ca.pem cannot be read"),
        ({"security_protocol": "SSL", "ssl_key_file": "/key"}, "ssl_key_file is set without ssl_certificate_file"),
    ],
)
def test_what_makes_no_sense_is_refused_where_the_client_is_made(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        Producer("127.0.0.1:9092", **options)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[RpcServer, dict[str, Any]]]:
    options = write(tmp_path / "client", trustme.CA())
    credentials = server_credentials(Certificates(files_of(options)), require=True)
    server = RpcServer(["ssl:127.0.0.1:0", "127.0.0.1:0"], credentials=credentials)
    await server.start([])
    yield server, options
    await server.stop(0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (NONE, "speaks TLS: set security_protocol to SSL, and ssl_ca_file"),
        ({"ssl_certificate_file": None, "ssl_key_file": None}, "wants a certificate of its clients: set ssl_cert"),
        ({"ssl_ca_file": None}, "is signed by no public authority .*: set ssl_ca_file"),
    ],
)
async def test_a_client_that_cannot_start_for_tls_says_so_at_once(
    secured: tuple[RpcServer, dict[str, Any]], changes: dict[str, Any], told: str
) -> None:
    server, options = secured
    address = server.addresses[0].removeprefix("ssl:")
    with pytest.raises(SslAuthenticationError, match=told):
        await Admin(address, **{**options, **changes}).start()  # which may try for a minute


async def test_records_go_over_tls_and_who_is_not_let_in_any_more_is_told_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ClusterDouble()
    cluster.create("t")
    broker = cluster.brokers[1]
    options = write(tmp_path / "client", trustme.CA())
    broker.credentials = server_credentials(Certificates(files_of(options)), require=True)
    await broker.start()
    address = broker.address
    async with Producer(address, **options) as producer:
        await (await producer.send("t", b"over TLS"))
        await broker.stop()
        others = write(tmp_path / "others", trustme.CA())
        mixed = TlsFiles(others["ssl_ca_file"], options["ssl_certificate_file"], options["ssl_key_file"])
        broker.credentials = server_credentials(Certificates(mixed), require=True)
        await broker.start(address)
        try:
            refusal = f"{address} refuses ssl_certificate_file {options['ssl_certificate_file']}"
            sending = asyncio.ensure_future(producer.send("unknown", b""))  # for which it asks the brokers
            await cluster.until(lambda: refusal in caplog.text, 30)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        finally:
            await broker.stop()


async def test_another_authority_is_taken_up_also_where_nothing_could_be_reached_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channels that try to connect meanwhile trust the former authority alone."""
    monkeypatch.setattr("highwater.rpc.connections.tls.LOOK_S", 0.1)
    former, new = trustme.CA(), trustme.CA()
    cluster = ClusterDouble()
    cluster.create("t")
    broker = cluster.brokers[1]
    options = write(tmp_path / "client", former)
    broker.credentials = server_credentials(Certificates(files_of(options)), require=True)
    await broker.start()
    address = broker.address
    async with (
        Producer(address, **options) as producer,
        Consumer(bootstrap=address, auto_offset_reset="earliest", **options) as consumer,
        Admin(address, **options) as admin,
    ):
        consumer.assign([TopicPartition("t", 0)])
        await producer.send_and_wait("t", b"1")
        assert [record.value for record in await consumer.poll(5000)] == [b"1"]
        await broker.stop()
        delivery = await producer.send("t", b"2")
        with pytest.raises(NetworkError):
            await admin._cluster.refresh()
        servers = write(tmp_path / "server", new)
        both = former.cert_pem.bytes() + new.cert_pem.bytes()
        for side in (options, servers):
            (tmp_path / "both.pem").write_bytes(both)
            (tmp_path / "both.pem").replace(side["ssl_ca_file"])
        broker.credentials = server_credentials(Certificates(files_of(servers)), require=True)
        await broker.start(address)
        async with asyncio.timeout(10):
            assert (await delivery).offset == 1
            assert [record.value for record in await consumer.poll(9000)] == [b"2"]
            await admin._cluster.refresh()
    await broker.stop()


async def test_a_listener_without_tls_is_told_as_well(secured: tuple[RpcServer, dict[str, Any]]) -> None:
    server, options = secured
    with pytest.raises(SslAuthenticationError, match="does not speak TLS: set security_protocol to PLAINTEXT"):
        await Admin(server.addresses[1], **options).start()
