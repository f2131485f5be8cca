"""The cluster under test: log-storages on disks that may fail, each broker on a machine of its own where there are
network namespaces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from highwater.cli.local_cluster import SERVICES, LocalCluster, LocalClusterSettings
from soak import log_storage_launcher
from soak.disks import BrokerDisks
from soak.volumes import Volumes
from soak.world import CLIENTS, Network

CONTROLLERS = 2
BROKERS = 3


class SoakCluster(LocalCluster):
    def __init__(self, data: Path, settings: dict[str, str], network: Network | None, *, secure: bool = False) -> None:
        super().__init__(
            LocalClusterSettings(
                data,
                brokers=BROKERS,
                host=network.address(CLIENTS) if network else "127.0.0.1",
                port=0,
                settings=settings,
                controllers=CONTROLLERS,
                log_dirs=2,
                tcp_between_brokers=network is not None,
                secure=secure,
            )
        )
        self.network = network
        self.volumes = Volumes() if network else None
        self.disks = {
            broker: BrokerDisks(data / "disks" / str(broker), self.log_dirs(broker)) for broker in range(1, BROKERS + 1)
        }
        for directory in [each for disks in self.disks.values() for each in disks.directories]:
            if self.volumes is not None:
                self.volumes.mount(directory)

    def services(self, broker: int) -> list[str]:
        """The names of its processes."""
        return [f"{service}-{broker}" for service in SERVICES]

    def _host(self, process: str) -> str:
        return super()._host(process) if self.network is None else self.network.address(machine_of(process))

    def _add(self, name: str, command: list[str]) -> None:
        if name.startswith("log-storage"):
            control = self.disks[int(name.rpartition("-")[2])].control
            command = [sys.executable, log_storage_launcher.__file__, str(control), *command[3:]]
        if self.network is not None:
            command = self.network.inside(machine_of(name), command)
        super()._add(name, command)


def machine_of(process: str) -> str:
    """`broker-2` for `log-storage-2`; etcd and each controller have one of their own."""
    for service in SERVICES:
        if process.startswith(service):
            return f"broker{process.removeprefix(service)}"
    return process


@contextmanager
def running(
    data: Path, settings: dict[str, str], network: Network | None, *, secure: bool = False
) -> Iterator[SoakCluster]:
    """No process and no volume is left afterwards; what was in the volumes is in their directories."""
    cluster = SoakCluster(data, settings, network, secure=secure)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        if cluster.volumes is not None:
            cluster.volumes.close()
