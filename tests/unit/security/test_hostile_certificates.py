"""Connections whose certificates, or first bytes, no honest client has. Each is served as who it says it is, or
refused; never as somebody else, and everybody else is served all the while."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from highwater.rpc.connections.tls import Certificates, TlsFiles, server_credentials
from highwater.rpc.server import RpcServer
from highwater.security.call_identity import IdentifyCalls
from highwater.security.mapping_rules import MappingRules
from highwater.security.principal import principal_of

WHO = "/test.Who/Am"
HONEST = "honest"
DEADLINE_S = 10.0
EXAMPLES = 100
_KEY = ec.generate_private_key(ec.SECP256R1())  # theirs: whose it is does not matter
_NOW = datetime.datetime.now(datetime.UTC)

_names = st.one_of(
    st.sampled_from(
        [HONEST, f"{HONEST},OU=x", f"x,CN={HONEST}", f"{HONEST}\0", f"\0{HONEST}", f"{HONEST}\n", " ", "/"]
    ),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=64),
)
_attributes = st.lists(
    st.tuples(
        st.sampled_from([NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME]), _names
    ),
    max_size=4,
)
_extensions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
                ExtensionOID.NAME_CONSTRAINTS,
                ExtensionOID.CERTIFICATE_POLICIES,
                x509.ObjectIdentifier("1.3.6.1.4.1.55555.1"),
            ]
        ),
        st.booleans(),
        st.binary(max_size=200),
    ),
    max_size=3,
    unique_by=lambda each: each[0],
)
_days = st.sampled_from([(-1, 365), (-400, -1), (1, 400), (-10_000, 10_000)])
_first_bytes = st.one_of(
    st.binary(max_size=600),
    st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=40)),  # of a ClientHello, changed from there on
)


class Authority:
    """That which the server trusts, and which signs whatever is asked of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        made = trustme.CA()
        self._certificate = x509.load_pem_x509_certificate(made.cert_pem.bytes())
        self._key: Any = load_pem_private_key(made.private_key_pem.bytes(), None)
        self._write("ca", made.cert_pem.bytes())
        for name, issued in (("server", made.issue_cert("127.0.0.1")),):
            self._write(name, issued.cert_chain_pems[0].bytes())
            self._write(f"{name}-key", issued.private_key_pem.bytes())
        self.honest = self.sign([(NameOID.COMMON_NAME, HONEST)], [], (-1, 365))

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / f"{name}.pem"
        path.write_bytes(content)
        return path

    @property
    def server(self) -> Certificates:
        return Certificates(TlsFiles(*(self._directory / f"{name}.pem" for name in ("ca", "server", "server-key"))))

    def sign(self, subject: Any, extensions: Any, days: tuple[int, int]) -> grpc.ChannelCredentials:
        begin, end = (_NOW + datetime.timedelta(days=number) for number in days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(oid, name) for oid, name in subject]))
            .issuer_name(self._certificate.subject)
            .public_key(_KEY.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        )
        for oid, critical, content in extensions:
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, content), critical=critical)
        signed = builder.sign(self._key, hashes.SHA256())
        key = _KEY.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        trusted = (self._directory / "ca.pem").read_bytes()
        return grpc.ssl_channel_credentials(trusted, key, signed.public_bytes(serialization.Encoding.PEM))


class World:
    def __init__(self, loop: asyncio.AbstractEventLoop, authority: Authority, address: str) -> None:
        self.authority = authority
        self.address = address.removeprefix("ssl:")
        self._loop = loop
        self._honest = self.run(self._connected())

    def run(self, what: Any) -> Any:
        return self._loop.run_until_complete(what)

    async def _connected(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self.address, self.authority.honest)

    async def principal(self, credentials: grpc.ChannelCredentials) -> str | None:
        """None: it is not served."""
        async with grpc.aio.secure_channel(self.address, credentials) as channel:
            try:
                return bytes(await channel.unary_unary(WHO)(b"", timeout=DEADLINE_S)).decode()
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED):
                    raise
                return None

    async def honest_is_served(self) -> None:
        """By the connection that it had before, and by a new one."""
        answer = await self._honest.unary_unary(WHO)(b"", timeout=DEADLINE_S)
        assert answer == f"User:CN={HONEST}".encode()
        assert await self.principal(self.authority.honest) == f"User:CN={HONEST}"

    async def close(self) -> None:
        await self._honest.close()


@asynccontextmanager
async def serving(certificates: Certificates) -> AsyncIterator[str]:
    server = RpcServer(
        ["ssl:127.0.0.1:0"],
        interceptors=[IdentifyCalls(MappingRules(), None)],
        credentials=server_credentials(certificates, require=True),
    )

    async def am(_: bytes, context: Any) -> bytes:
        return str(principal_of(context)).encode()

    handlers = {"Am": grpc.unary_unary_rpc_method_handler(am)}
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", handlers),))
    await server.start([])
    try:
        yield server.addresses[0]
    finally:
        await server.stop(0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    loop = asyncio.new_event_loop()
    server = serving(authority.server)
    found = World(loop, authority, loop.run_until_complete(server.__aenter__()))
    try:
        yield found
    finally:
        loop.run_until_complete(found.close())
        loop.run_until_complete(server.__aexit__(None, None, None))
        loop.close()


_few = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


@_few
@example(subject=[(NameOID.ORGANIZATION_NAME, "x"), (NameOID.COMMON_NAME, HONEST)], extensions=[], days=(-1, 365))
@example(subject=[(NameOID.COMMON_NAME, HONEST), (NameOID.ORGANIZATION_NAME, "x")], extensions=[], days=(-1, 365))
@example(subject=[(NameOID.COMMON_NAME, f"{HONEST},O=x")], extensions=[], days=(-1, 365))
@example(subject=[(NameOID.COMMON_NAME, f"x,CN={HONEST}")], extensions=[], days=(-1, 365))
@given(subject=_attributes, extensions=_extensions, days=_days)
def test_whoever_has_a_certificate_is_nobody_else(world: World, subject: Any, extensions: Any, days: Any) -> None:
    """Signed by the authority that counts, with a subject, extensions and times as they come."""
    try:
        credentials = world.authority.sign(subject, extensions, days)
    except ValueError:
        return  # no certificate can have that
    served_as = world.run(world.principal(credentials))
    if subject != [(NameOID.COMMON_NAME, HONEST)]:
        assert served_as != f"User:CN={HONEST}"
    if not days[0] < 0 < days[1]:
        assert served_as is None, "it does not count yet, or any more"
    world.run(world.honest_is_served())


@_few
@given(first=_first_bytes)
def test_bytes_that_begin_no_connection(world: World, first: Any) -> None:
    if isinstance(first, tuple):
        position, changed = first
        hello = bytearray(_client_hello())
        position = min(position, len(hello) - 1)
        hello[position : position + len(changed)] = changed
        first = bytes(hello)

    async def connect() -> None:
        host, port = world.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        with contextlib.suppress(OSError, TimeoutError):
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 0.2)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    world.run(connect())
    world.run(world.honest_is_served())


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()
