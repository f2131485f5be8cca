"""For tests: an etcd that speaks TLS, wants certificates of its clients, and takes their common names for users."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import grpc.aio
import trustme
from aetcd import rpc
from etcd_proxy import until

from highwater.metadata.local import etcd_healthy, find_etcd
from highwater.metadata.store.tls import TlsSettings
from highwater.metadata.store.watch_stream import prefix_end
from highwater.rpc.process.local_process import free_ports, tied_to_parent


def write_client(directory: Path, authority: trustme.CA, name: str) -> TlsSettings:
    """Files of a client with the common name; those that are there are replaced, the key last."""
    directory.mkdir(exist_ok=True)
    files = TlsSettings(directory / "ca.pem", directory / "tls.pem", directory / "tls-key.pem")
    issued = authority.issue_cert(f"{name}.test", common_name=name)
    assert files.ca_file is not None
    assert files.certificate_file is not None
    assert files.key_file is not None
    authority.cert_pem.write_to_path(files.ca_file)
    issued.cert_chain_pems[0].write_to_path(files.certificate_file)
    issued.private_key_pem.write_to_path(files.key_file)
    return files


class TlsEtcd:
    """One member at 127.0.0.1, whose certificate `authority` signed, as it has to sign its clients'."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self._directory = directory
        self.authority = trustme.CA()
        issued = self.authority.issue_cert(host)
        self.authority.cert_pem.write_to_path(directory / "ca.pem")
        issued.cert_chain_pems[0].write_to_path(directory / "member.pem")
        issued.private_key_pem.write_to_path(directory / "member-key.pem")
        client, peer, metrics = free_ports(3)
        self.address = f"127.0.0.1:{client}"
        self._metrics = f"127.0.0.1:{metrics}"
        self._command = [
            str(find_etcd()),
            "--name=m",
            f"--data-dir={directory / 'data'}",
            f"--listen-client-urls=https://{self.address}",
            f"--advertise-client-urls=https://{self.address}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=m=http://127.0.0.1:{peer}",
            f"--listen-metrics-urls=http://{self._metrics}",
            f"--cert-file={directory / 'member.pem'}",
            f"--key-file={directory / 'member-key.pem'}",
            f"--trusted-ca-file={directory / 'ca.pem'}",
            "--client-cert-auth",
            "--heartbeat-interval=50",
            "--election-timeout=500",
            "--log-level=warn",
            "--unsafe-no-fsync",
        ]

    async def __aenter__(self) -> Self:
        self._start()
        await until(lambda: etcd_healthy(self._metrics), 20.0)
        return self

    def _start(self) -> None:
        with (self._directory / "etcd.log").open("wb") as log:
            self._process = subprocess.Popen(tied_to_parent(self._command), stdout=log, stderr=log)

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self, name: str) -> TlsSettings:
        return write_client(self._directory / name, self.authority, name)

    @asynccontextmanager
    async def administered(self) -> AsyncIterator[Any]:
        """Authorisation, as the user root."""
        channel = grpc.aio.secure_channel(self.address, _credentials(self.client("root")))
        async with channel:
            yield rpc.AuthStub(channel)

    async def limit_users(self, prefixes: dict[str, str]) -> None:
        """Enables authorisation: each of the users may read and write its prefix alone, and has no password."""
        async with self.administered() as auth:
            for user in ("root", *prefixes):
                options = rpc.UserAddOptions(no_password=True)
                await auth.UserAdd(rpc.AuthUserAddRequest(name=user, options=options))
                await auth.RoleAdd(rpc.AuthRoleAddRequest(name=user))
                await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=user))
            for user, prefix in prefixes.items():
                permission = rpc.Permission(
                    permType=rpc.Permission.READWRITE, key=prefix.encode(), range_end=prefix_end(prefix)
                )
                await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name=user, perm=permission))
            await auth.AuthEnable(rpc.AuthEnableRequest())


def _credentials(files: TlsSettings) -> grpc.ChannelCredentials:
    assert files.ca_file is not None
    assert files.certificate_file is not None
    assert files.key_file is not None
    return grpc.ssl_channel_credentials(
        files.ca_file.read_bytes(), files.key_file.read_bytes(), files.certificate_file.read_bytes()
    )
