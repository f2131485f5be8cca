"""Certificates as they lie in a directory, replaced in place, and as a server shows and takes them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from highwater.atomic_file import replace_file
from highwater.cli.local_authority import CLIENT, LocalAuthority
from highwater.rpc.connections.tls import LOOK_S, TlsFiles

HOSTS = ("127.0.0.1", "localhost")
STEP_S = LOOK_S + 1.0
"""In which every service, and every client, has taken up what was replaced."""
_ANSWER_S = 3.0


def place(authority: LocalAuthority, name: str, directory: Path) -> None:
    """Issues a certificate, and puts it where it is read."""
    files = authority.issue(name, HOSTS)
    for source, kind in ((files.key_file, "key"), (files.certificate_file, "pem")):
        target = directory / f"{name}.{kind}"
        assert source is not None
        if source != target:
            replace_file(target, source.read_bytes())


def trust(directory: Path, *authorities: LocalAuthority) -> None:
    """These, and no others."""
    replace_file(directory / "ca.pem", b"".join(map(_certificate_of, authorities)))


def kept(directory: Path, name: str, target: Path) -> TlsFiles:
    """The certificate of now, for when it is replaced."""
    target.mkdir(parents=True)
    files = [target / f"{name}.pem", target / f"{name}.key"]
    for file in files:
        replace_file(file, (directory / file.name).read_bytes())
    return TlsFiles(directory / "ca.pem", *files)


def der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


async def shown(address: str, directory: Path, files: TlsFiles | None = None) -> bytes | None:
    """The server's certificate, to the client's of this directory, or to that of `files`; None: no connection came
    about, or the server ended it at once."""
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    context.set_alpn_protocols(["h2"])
    own = (directory / f"{CLIENT}.pem", directory / f"{CLIENT}.key")
    context.load_cert_chain(*(own if files is None else (files.files[1], files.files[2])))
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                # A server that refuses a certificate says so after the handshake; one that takes it sends settings.
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                if not await reader.read(1):
                    return None
                found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                return bytes(found) if found else None
            finally:
                writer.close()
    except (OSError, ssl.SSLError, TimeoutError):
        return None


def _certificate_of(authority: LocalAuthority) -> bytes:
    ca_file = authority.files(CLIENT).ca_file
    assert ca_file is not None
    return ca_file.read_bytes()
