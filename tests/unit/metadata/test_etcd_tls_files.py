"""Files for TLS to etcd: what is wrong with them is one sentence that names the file and the cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from highwater.errors import UserError
from highwater.metadata.store.connections import Connections
from highwater.metadata.store.tls import TlsSettings
from highwater.rpc.connections.tls import LOOK_S, Certificates


@pytest.fixture
def files(tmp_path: Path) -> TlsSettings:
    write(tmp_path)
    return TlsSettings(tmp_path / "ca.pem", tmp_path / "tls.pem", tmp_path / "key.pem")


def write(directory: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("client.test")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "tls.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")


def without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def holding(name: str, content: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_text(content) and None


def a_directory(directory: Path) -> None:
    (directory / "ca.pem").unlink()
    (directory / "ca.pem").mkdir()


def another_key(directory: Path) -> None:
    trustme.CA().issue_cert("client.test").private_key_pem.write_to_path(directory / "key.pem")


def damaged(name: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        lines = (directory / name).read_text().splitlines()
        lines[2] = "A" * len(lines[2])
        (directory / name).write_text("\n".join(lines))

    return damage


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (without("ca.pem"), "etcd.ca.file {}/ca.pem cannot be read (No such file or directory): name a file"),
        (without("tls.pem"), "etcd.certificate.file {}/tls.pem cannot be read"),
        (without("key.pem"), "etcd.key.file {}/key.pem cannot be read"),
        (a_directory, "etcd.ca.file {}/ca.pem cannot be read (Is a directory): name a file"),
        (holding("ca.pem", "nonsense"), "etcd.ca.file {}/ca.pem holds no certificate in PEM: give"),
        (holding("ca.pem", ""), "etcd.ca.file {}/ca.pem holds no certificate in PEM: give"),
        (holding("tls.pem", "nonsense"), "etcd.certificate.file {}/tls.pem holds no certificate in PEM: give"),
        (holding("key.pem", "nonsense"), "etcd.key.file {}/key.pem holds no private key in PEM: give"),
        (
            holding("key.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"),
            "etcd.key.file {}/key.pem is encrypted: give a key without",
        ),
        (another_key, "etcd.key.file {}/key.pem is not the key of etcd.certificate.file {}/tls.pem: give the two"),
        (damaged("tls.pem"), "etcd.certificate.file {}/tls.pem or etcd.key.file {}/key.pem is damaged ("),
        (damaged("key.pem"), "etcd.certificate.file {}/tls.pem or etcd.key.file {}/key.pem is damaged ("),
    ],
)
def test_a_file_that_will_not_do_is_named(
    files: TlsSettings, tmp_path: Path, wrong: Callable[[Path], None], told: str
) -> None:
    wrong(tmp_path)
    with pytest.raises(UserError) as error:
        Connections(["127.0.0.1:1"], files)
    assert str(error.value).startswith(told.replace("{}", str(tmp_path)))
    assert "\n" not in str(error.value)


def test_certificate_and_key_come_together_and_tls_with_http_does_not(files: TlsSettings) -> None:
    with pytest.raises(UserError, match="etcd.certificate.file is set without etcd.key.file: set both, or neither"):
        Connections(["127.0.0.1:1"], TlsSettings(files.ca_file, files.certificate_file))
    with pytest.raises(UserError, match="etcd.key.file is set without etcd.certificate.file: set both, or neither"):
        Connections(["127.0.0.1:1"], TlsSettings(files.ca_file, None, files.key_file))
    with pytest.raises(UserError, match="etcd names http://b:1, and TLS is set: write https://"):
        Connections(["a:1", "http://b:1"], files)
    with pytest.raises(UserError, match="etcd names http://b:1, and TLS is set: write https://"):
        Connections(["https://a:1", "http://b:1"], None)


def test_replaced_files_count_when_they_are_whole_and_are_looked_at_now_and_then(
    files: TlsSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    certificates = Certificates(files, lambda: now_s)
    certificates.credentials()
    now_s += LOOK_S
    assert not certificates.replaced()

    key = (tmp_path / "key.pem").read_bytes()
    write(tmp_path)
    later = (tmp_path / "key.pem").read_bytes()
    (tmp_path / "key.pem").write_bytes(key)
    assert not certificates.replaced()  # it does not look again so soon
    for _ in range(3):
        now_s += LOOK_S
        assert not certificates.replaced()
    assert len(caplog.records) == 1

    (tmp_path / "key.pem").write_bytes(later)
    assert not certificates.replaced()
    now_s += LOOK_S
    assert certificates.replaced()
    now_s += LOOK_S
    assert not certificates.replaced()


def test_files_that_are_written_anew_as_they_were_change_nothing(files: TlsSettings, tmp_path: Path) -> None:
    now_s = 100.0
    certificates = Certificates(files, lambda: now_s)
    (tmp_path / "tls.pem").write_bytes((tmp_path / "tls.pem").read_bytes())
    now_s += LOOK_S
    assert not certificates.replaced()
