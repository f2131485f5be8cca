"""An authority of one's own for `highwater up --secure`, and the certificates that it issues. They are for one machine:
the authority's key lies beside them."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from highwater.atomic_file import OWNERS_DIRECTORY, replace_file
from highwater.client.cluster.tls_options import VARIABLES
from highwater.console.output import BOOTSTRAP_VARIABLE
from highwater.rpc.connections.tls import TlsFiles

CLIENT = "client"
ENVIRONMENT = "client.env"
"""The file that a shell reads to be a client."""
_AUTHORITY = "ca"
_AUTHORITY_LIFE = timedelta(days=3650)
_LIFE = timedelta(days=397)
_LEAST_LEFT = timedelta(days=400)  # of the authority's life, where it is to issue another
_BEFORE = timedelta(minutes=5)  # clocks of two machines differ
_NOT_GIVEN = dict.fromkeys(
    (
        *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("encipher_only", "decipher_only"),
    ),
    False,
)


class LocalAuthority:
    """Keeps everything in `directory`, which nobody but its owner may read: `ca.pem`, `ca.key`, and for each name
    `<name>.pem` and `<name>.key`. The authority is made once; certificates are issued anew at each start."""

    def __init__(self, directory: Path) -> None:
        """Raises `OSError`."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(OWNERS_DIRECTORY)
        found = self._kept()
        self._key, self._certificate = found or self._made()

    def issue(self, name: str, hosts: Sequence[str]) -> TlsFiles:
        """A certificate of the common name `name`, for servers at these hosts and for clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(name, self._certificate.subject, key.public_key(), _LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._write(name, key, certificate)
        return self.files(name)

    def files(self, name: str) -> TlsFiles:
        return TlsFiles(self._path(_AUTHORITY, "pem"), self._path(name, "pem"), self._path(name, "key"))

    def client_environment(self) -> dict[str, str]:
        """The variables by which a client is let in."""
        return dict(zip(VARIABLES, ("SSL", *map(str, self.files(CLIENT).files)), strict=True))

    def write_environment(self, bootstrap: str) -> None:
        """Writes the file that a shell reads to be a client of the cluster at these addresses."""
        variables = {BOOTSTRAP_VARIABLE: bootstrap, **self.client_environment()}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        replace_file(self._directory / ENVIRONMENT, "".join(lines).encode())

    def _path(self, name: str, kind: str) -> Path:
        return (self._directory / f"{name}.{kind}").absolute()

    def _kept(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None:
        """None: there is none yet, or it would end before what it issues."""
        try:
            key = serialization.load_pem_private_key(self._path(_AUTHORITY, "key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(self._path(_AUTHORITY, "pem").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            return None
        if certificate.not_valid_after_utc - datetime.now(UTC) < _LEAST_LEFT:
            return None
        return key, certificate

    def _made(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject("highwater up")
        certificate = (
            _builder("highwater up", name, key.public_key(), _AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.KeyUsage(key_cert_sign=True, crl_sign=True, digital_signature=True, **_NOT_GIVEN), critical=True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        self._write(_AUTHORITY, key, certificate)
        return key, certificate

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        unencrypted = serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        replace_file(self._path(name, "key"), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted))
        replace_file(self._path(name, "pem"), certificate.public_bytes(pem))


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + life)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)
