"""TLS to etcd: the files, what is wrong with them, and what a member's side has against them."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from highwater.errors import UserError
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

LOOK_S = 10.0  # between two looks at the files: replaced ones are taken up so late at most
DIAGNOSIS_S = 1.0
_HTTP2 = "h2"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty SETTINGS, which etcd answers


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files in PEM. Without `ca_file` the public authorities that gRPC brings are trusted; certificate and key come
    together. Where etcd authenticates its users, this one is the certificate's common name (CN)."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.ca_file, self.certificate_file, self.key_file) if path is not None)

    def context(self) -> ssl.SSLContext:
        """Reads the files with Python's own TLS. Raises `UserError`, which names the file and the cure."""
        if self.certificate_file is None and self.key_file is not None:
            raise UserError("etcd.key.file is set without etcd.certificate.file: set both, or neither")
        if self.certificate_file is not None and self.key_file is None:
            raise UserError("etcd.certificate.file is set without etcd.key.file: set both, or neither")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols([_HTTP2])
        if self.ca_file is None:
            context.load_default_certs()
        else:
            _read("etcd.ca.file", self.ca_file)
            try:
                context.load_verify_locations(self.ca_file)
            except ssl.SSLError:
                raise UserError(
                    f"etcd.ca.file {self.ca_file} holds no certificate in PEM: give the certificate of the authority "
                    "that signed those of etcd's members"
                ) from None
        if self.certificate_file is not None and self.key_file is not None:
            self._load_pair(context, self.certificate_file, self.key_file)
        return context

    @staticmethod
    def _load_pair(context: ssl.SSLContext, certificate_file: Path, key_file: Path) -> None:
        if b"-----BEGIN CERTIFICATE-----" not in _read("etcd.certificate.file", certificate_file):
            raise UserError(
                f"etcd.certificate.file {certificate_file} holds no certificate in PEM: give the client's certificate"
            )
        key = _read("etcd.key.file", key_file)
        if b"PRIVATE KEY-----" not in key:
            raise UserError(f"etcd.key.file {key_file} holds no private key in PEM: give that of the certificate")
        if b"ENCRYPTED" in key:
            raise UserError(f"etcd.key.file {key_file} is encrypted: give a key without a passphrase")
        try:
            context.load_cert_chain(certificate_file, key_file)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise UserError(
                    f"etcd.key.file {key_file} is not the key of etcd.certificate.file {certificate_file}: "
                    "give the two that were issued together"
                ) from None
            raise UserError(
                f"etcd.certificate.file {certificate_file} or etcd.key.file {key_file} is damaged "
                f"({_plain(error)}): issue the two again"
            ) from None


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{setting} {path} cannot be read ({error.strerror}): name a file that this process may read"
        ) from None


class Certificates:
    """The certificates of one store: read at first, and again when the files have been replaced."""

    def __init__(self, settings: TlsSettings, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Raises `UserError`, see `TlsSettings.context`."""
        self.settings = settings
        self.generation = 0
        """Counts how often other ones were taken up."""
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._refused = ""
        self._seen = self._identity()
        self._contents: tuple[bytes | None, ...] = self._read()

    def credentials(self) -> grpc.ChannelCredentials:
        authority, key, certificate = self._contents
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def replaced(self) -> bool:
        """True where other ones stand in the files than before; they count from now on. Looks every 10 s at most. Files
        that are not whole (yet) are left for the next look."""
        now_s = self._clock_s()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        seen = self._identity()
        if seen == self._seen:
            return False
        try:
            contents = self._read()
        except UserError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.error("the files for etcd's TLS were replaced, the former ones are used on: %s", error)
            return False
        self._seen, self._refused = seen, ""
        changed, self._contents = contents != self._contents, contents
        self.generation += changed
        return changed

    def _identity(self) -> tuple[tuple[int, int, int], ...]:
        """The identity of each file, through links: Kubernetes replaces a secret's files by turning one round."""
        found = []
        for path in self.settings.files:
            try:
                about = os.stat(path)
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((about.st_ino, about.st_size, about.st_mtime_ns))
        return tuple(found)

    def _read(self) -> tuple[bytes | None, ...]:
        self.settings.context()
        settings = self.settings
        files = (
            ("etcd.ca.file", settings.ca_file),
            ("etcd.key.file", settings.key_file),
            ("etcd.certificate.file", settings.certificate_file),
        )
        return tuple(None if path is None else _read(setting, path) for setting, path in files)


async def diagnose(endpoint: str, settings: TlsSettings | None) -> str:
    """Says in a sentence why TLS does not come about with the member at `host:port`, and the cure; empty where that is
    not the cause. gRPC keeps the reason to itself: a handshake of our own tells it."""
    try:
        async with asyncio.timeout(DIAGNOSIS_S):
            return await (_diagnose_plain(endpoint) if settings is None else _diagnose_tls(endpoint, settings))
    except UserError as error:  # the files have been replaced by others
        return str(error)
    except (OSError, ValueError, TimeoutError):
        return ""


async def _diagnose_plain(endpoint: str) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([_HTTP2])
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        await _first_answer(endpoint, context)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return ""
    return f"{endpoint} speaks TLS: set etcd.ca.file to the authority that signed its certificate"


async def _diagnose_tls(endpoint: str, settings: TlsSettings) -> str:
    try:
        if await _first_answer(endpoint, settings.context()) or settings.certificate_file is not None:
            return ""
        return _certificate_wanted(endpoint)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or "") or isinstance(error, ssl.SSLCertVerificationError):
            return _explained(endpoint, settings, error)
        failed = _explained(endpoint, settings, error)
    except ConnectionResetError:
        failed = ""
    if await _first_answer(endpoint, None):
        return f"{endpoint} does not speak TLS: give etcd a certificate, or unset etcd.ca.file and write no https://"
    return failed


async def _first_answer(endpoint: str, context: ssl.SSLContext | None) -> bytes:
    """The first words of a member to a client of HTTP/2; only after it is a client's certificate known to be good (from
    TLS 1.3 on the handshake ends before that is looked at). Raises `OSError`, `ssl.SSLError` among them."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        writer.write(_PREFACE)
        return await reader.read(1)
    finally:
        writer.transport.abort()


def _explained(endpoint: str, settings: TlsSettings, error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        if "match" in why or "mismatch" in why.lower():
            return f"{why} in the certificate of {endpoint}: name the members in etcd as their certificates do"
        if "expired" in why or "not yet valid" in why:
            return f"the certificate of {endpoint} does not count ({why}): renew it, or set the clock"
        if settings.ca_file is None:
            return (
                f"the certificate of {endpoint} is signed by no public authority ({why}): set etcd.ca.file to the "
                "one that signed it"
            )
        return (
            f"the certificate of {endpoint} is not signed by an authority in etcd.ca.file {settings.ca_file} ({why}): "
            "put the certificate of the one that signed it there"
        )
    if "ALERT" in reason and settings.certificate_file is None:
        return _certificate_wanted(endpoint)
    if "ALERT" in reason:
        return (
            f"{endpoint} refuses etcd.certificate.file {settings.certificate_file} ({_plain(error)}): give one that is "
            "in force, for clients, and signed by the authority in etcd's --trusted-ca-file"
        )
    return f"TLS with {endpoint} fails: {_plain(error)}"


def _certificate_wanted(endpoint: str) -> str:
    return f"{endpoint} wants a certificate of its clients: set etcd.certificate.file and etcd.key.file"


def _plain(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
