"""A broker on a host of its own, at the end of a link that flaps: real processes, a network namespace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_namespace import Namespace, network_namespace
from running_cluster import deployment

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import Producer

SETTLE_S = 1.0  # until the followers do nothing but wait
OUTAGE_S = 1.0  # shorter than the leases
AWAY = 3  # the broker at the other end
BACK_WITHIN_S = 4.0  # the fetcher's limit is 2 s, from when it last asked


class PartedCluster(LocalCluster):
    """One broker's processes run in the namespace, all others outside."""

    def __init__(self, data: Path, namespace: Namespace, settings: dict[str, str]) -> None:
        super().__init__(
            LocalClusterSettings(
                data,
                host=namespace.outside,
                port=0,
                settings=settings,
                tcp_between_brokers=True,
                metrics_port=None,  # at its own address each, which the test does not care for
            )
        )
        self.namespace = namespace

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        if name.endswith(f"-{AWAY}"):
            here, there = self.namespace.outside, self.namespace.address
            for key in ("listeners", "replica.manager"):
                if key in settings:
                    settings = {**settings, key: settings[key].replace(here, there)}
        super()._add_service(name, package, settings)

    def _add(self, name: str, command: list[str]) -> None:
        super()._add(name, [*self.namespace.exec, *command] if name.endswith(f"-{AWAY}") else command)


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartedCluster]:
    with network_namespace() as namespace:
        settings = {"broker.session.timeout.ms": "10000"}
        cluster = PartedCluster(tmp_path_factory.mktemp("parted"), namespace, settings)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.kill()


async def test_a_follower_fetches_again_soon_after_its_link_is_back(parted: PartedCluster) -> None:
    """While the link is down the leader gives its end of the stream up, and what tells the follower of it is lost. All
    replicas have to have a record: it is acknowledged when the follower fetches again. Nothing else is under way: what
    waits to be sent again would tell the follower that its connection is gone."""
    async with deployment(parted) as deployed:
        await deployed.create_topic("flapping", [[1, 2, AWAY]], min_insync_replicas=3)
        async with Producer(parted.bootstrap.split(",")[0], acks="all") as producer:
            await (await producer.send("flapping", b"before"))
            await asyncio.sleep(SETTLE_S)
            parted.namespace.down()
            parted.namespace.forget_connections()
            await asyncio.sleep(OUTAGE_S)
            parted.namespace.up()
            healed_s = time.monotonic()
            await (await producer.send("flapping", b"after"))
            took_s = time.monotonic() - healed_s
    assert took_s < BACK_WITHIN_S
