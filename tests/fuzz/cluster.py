"""The cluster that is fuzzed: two brokers of real processes on loopback, each process with its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings

BROKERS = 2
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
}


class FuzzedCluster(LocalCluster):
    def __init__(self, data: Path) -> None:
        super().__init__(LocalClusterSettings(data, brokers=BROKERS, port=0, settings=SETTINGS))

    @property
    def client_addresses(self) -> list[str]:
        return self.bootstrap.split(",")


@contextmanager
def fuzzed_cluster(data: Path) -> Iterator[FuzzedCluster]:
    """Nothing of it is left afterwards but its directory."""
    cluster = FuzzedCluster(data)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.kill()
