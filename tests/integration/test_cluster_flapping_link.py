"""A broker on a host of its own, at the end of a link that flaps: real processes, a network namespace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_namespace import Namespace, network_namespace
from running_cluster import deployment, traffic

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings

UP_S = 0.2  # between two outages
AWAY = 3  # the broker at the other end
BACK_WITHIN_S = 4.0  # as seen by polls of etcd, on a busy machine


class PartedCluster(LocalCluster):
    """One broker's processes run in the namespace, all others outside."""

    def __init__(self, data: Path, namespace: Namespace, settings: dict[str, str]) -> None:
        super().__init__(LocalClusterSettings(data, host=namespace.outside, port=0, settings=settings))
        self.namespace = namespace

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        if name.endswith(f"-{AWAY}"):
            here, there = self.namespace.outside, self.namespace.address
            for key in ("listen", "advertised.listener"):
                if key in settings:
                    settings = {**settings, key: settings[key].replace(here, there)}
        super()._add_service(name, package, settings)

    def _add(self, name: str, command: list[str]) -> None:
        super()._add(name, [*self.namespace.exec, *command] if name.endswith(f"-{AWAY}") else command)

    def _all_serve(self) -> bool:
        *others, away = self.bootstrap.split(",")
        self.bootstrap = ",".join([*others, away.replace(self.namespace.outside, self.namespace.address)])
        return super()._all_serve()


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartedCluster]:
    with network_namespace() as namespace:
        settings = {"broker.session.timeout.ms": "6000"}
        cluster = PartedCluster(tmp_path_factory.mktemp("parted"), namespace, settings)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.kill()


@pytest.mark.parametrize("downs_s", [(3.0,), (2.5, 2.5, 2.5), (9.0,)], ids=["once", "flapping", "past the lease"])
async def test_a_follower_is_back_in_the_isr_soon_after_its_link(
    parted: PartedCluster, downs_s: tuple[float, ...], request: pytest.FixtureRequest
) -> None:
    topic = request.node.callspec.id.replace(" ", "-")
    async with deployment(parted) as deployed:
        await deployed.create_topic(topic, [[1, 2, AWAY]])
        await deployed.healed(topic)
        async with traffic(f"{parted.bootstrap.split(',')[0]}", topic) as flow:
            try:
                for down_s in downs_s:
                    parted.namespace.down()
                    await asyncio.sleep(down_s)
                    parted.namespace.up()
                    await asyncio.sleep(UP_S)
            finally:
                parted.namespace.up()
            healed_s = time.monotonic()
            await flow.until_acked(100)  # where it has not left the ISR, nothing is acknowledged without it
            await deployed.healed(topic)
            took_s = time.monotonic() - healed_s
            print(f"{topic}: {took_s:.1f} s")
    assert took_s < BACK_WITHIN_S
