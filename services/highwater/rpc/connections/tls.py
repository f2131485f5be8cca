"""TLS's files: those of one end of a connection, what is wrong with them, and whether they have been replaced."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from highwater.errors import UserError
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

LOOK_S = 10.0  # between two looks at the files: replaced ones are taken up so late at most
HTTP2 = "h2"
_READS = 10

Contents = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class TlsNames:
    """The words by which the one who set the files knows them, for sentences that name the cure."""

    authority: str
    certificate: str
    key: str
    peers: str
    """Those whose certificates the authority signed."""
    owner: str
    """The one whose certificate it is."""
    use: str
    to_turn_on: str
    to_turn_off: str
    to_name_peers: str
    peers_authority: str


SERVICES = TlsNames(
    "ssl.ca.file",
    "ssl.certificate.file",
    "ssl.key.file",
    peers="the other services and of the clients",
    owner="this service",
    use="TLS",
    to_turn_on="write its address as ssl:host:port, and set ssl.ca.file to the authority that signed its certificate",
    to_turn_off="write its address as host:port, or have it listen by TLS",
    to_name_peers="advertise services by the names that stand in their certificates",
    peers_authority="its ssl.ca.file",
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM. Without `ca_file` the public authorities that gRPC brings are trusted; certificate and key come
    together."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    names: TlsNames = field(default=SERVICES, kw_only=True)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.ca_file, self.certificate_file, self.key_file) if path is not None)

    def context(self) -> ssl.SSLContext:
        """Reads the files with Python's own TLS. Raises `UserError`, which names the file and the cure."""
        names = self.names
        if self.certificate_file is None and self.key_file is not None:
            raise UserError(f"{names.key} is set without {names.certificate}: set both, or neither")
        if self.certificate_file is not None and self.key_file is None:
            raise UserError(f"{names.certificate} is set without {names.key}: set both, or neither")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols([HTTP2])
        if self.ca_file is None:
            context.load_default_certs()
        else:
            _read(names.authority, self.ca_file)
            try:
                context.load_verify_locations(self.ca_file)
            except ssl.SSLError:
                raise UserError(
                    f"{names.authority} {self.ca_file} holds no certificate in PEM: give the certificate of the "
                    f"authority that signed those of {names.peers}"
                ) from None
            except OSError as error:  # it went since it was read
                raise _unreadable(names.authority, self.ca_file, error) from None
        if self.certificate_file is not None and self.key_file is not None:
            self._load_pair(context, self.certificate_file, self.key_file)
        return context

    def _load_pair(self, context: ssl.SSLContext, certificate_file: Path, key_file: Path) -> None:
        names = self.names
        if b"-----BEGIN CERTIFICATE-----" not in _read(names.certificate, certificate_file):
            raise UserError(
                f"{names.certificate} {certificate_file} holds no certificate in PEM: give the certificate of "
                f"{names.owner}"
            )
        key = _read(names.key, key_file)
        if b"PRIVATE KEY-----" not in key:
            raise UserError(f"{names.key} {key_file} holds no private key in PEM: give that of the certificate")
        if b"ENCRYPTED" in key:
            raise UserError(f"{names.key} {key_file} is encrypted: give a key without a passphrase")
        try:
            context.load_cert_chain(certificate_file, key_file)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise UserError(
                    f"{names.key} {key_file} is not the key of {names.certificate} {certificate_file}: "
                    "give the two that were issued together"
                ) from None
            raise UserError(
                f"{names.certificate} {certificate_file} or {names.key} {key_file} is damaged "
                f"({plain_reason(error)}): issue the two again"
            ) from None
        except OSError as error:  # one of them went since it was read
            raise _unreadable(f"{names.certificate} or {names.key}", certificate_file, error) from None

    def read(self) -> Contents:
        """The contents: authority, key, certificate, which belong together, also where the files are replaced just now.
        Raises `UserError`, see `context`."""
        contents = self._contents()
        for _ in range(_READS):
            checked, refusal = contents, None
            try:
                self.context()
            except UserError as error:
                refusal = error
            contents = self._contents()
            if contents == checked:
                if refusal is not None:
                    raise refusal
                return checked
        raise UserError(f"the files for {self.names.use} are replaced faster than they can be read: do it more rarely")

    def _contents(self) -> Contents:
        """None in the place of what there is not, or cannot be read."""
        authority, key, certificate = (
            None if path is None else _if_there(path) for path in (self.ca_file, self.key_file, self.certificate_file)
        )
        return authority, key, certificate


def _if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(setting, path, error) from None


def _unreadable(setting: str, path: Path, error: OSError) -> UserError:
    return UserError(f"{setting} {path} cannot be read ({error.strerror}): name a file that this process may read")


class Certificates:
    """The contents of the files: read at first, and again when the files have been replaced. Any thread may ask."""

    def __init__(self, files: TlsFiles, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Raises `UserError`, see `TlsFiles.context`."""
        self.files = files
        self.generation = 0
        """Counts how often other ones were taken up."""
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._looking = threading.Lock()
        self._refused = ""
        self._seen = self._identity()
        self._contents = files.read()

    def credentials(self) -> grpc.ChannelCredentials:
        """Those of the end that connects."""
        authority, key, certificate = self._contents
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def server_configuration(self, *, require: bool) -> grpc.ServerCertificateConfiguration:
        """That of the end that listens; with `require` clients have to show a certificate."""
        authority, key, certificate = self._contents
        assert key is not None, "there is no certificate to listen with"
        assert certificate is not None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority if require else None)

    def replaced(self) -> bool:
        """Looks, and tells whether other ones count from now on."""
        before = self.generation
        self.look()
        return self.generation != before

    def look(self) -> None:
        """Takes up what stands in the files, where that is not what stood there before. Looks every 10 s at most. Files
        that are not whole (yet) are left for the next look."""
        if self._clock_s() - self._looked_s < LOOK_S:
            return
        with self._looking:
            if self._clock_s() - self._looked_s < LOOK_S:
                return
            self._looked_s = self._clock_s()
            self._take_up()

    def _take_up(self) -> None:
        seen = self._identity()
        if seen == self._seen:
            return
        use = self.files.names.use
        try:
            contents = self.files.read()
        except UserError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.error("the files for %s were replaced, the former ones are used on: %s", use, error)
            return
        self._seen, self._refused = seen, ""
        if contents != self._contents:
            self._contents = contents
            self.generation += 1
            _log.info("the files for %s were replaced: connections made from now on go by what they hold", use)

    def _identity(self) -> tuple[tuple[int, int, int], ...]:
        """The identity of each file, through links: Kubernetes replaces a secret's files by turning one round."""
        found = []
        for path in self.files.files:
            try:
                about = os.stat(path)
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((about.st_ino, about.st_size, about.st_mtime_ns))
        return tuple(found)


def server_credentials(certificates: Certificates | None, *, require: bool) -> grpc.ServerCredentials | None:
    """Credentials of listeners, which take up replaced files by themselves: connections made from then on are served
    with them. With `require` clients have to show a certificate. None: there is no certificate to listen with."""
    if certificates is None or certificates.files.certificate_file is None:
        return None
    given = certificates.generation

    def replaced() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        certificates.look()
        if given == certificates.generation:
            return None
        given = certificates.generation
        return certificates.server_configuration(require=require)

    return grpc.dynamic_ssl_server_credentials(
        certificates.server_configuration(require=require),
        replaced,  # type: ignore[arg-type]  # None, as gRPC says: no change
        require,
    )


def plain_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
