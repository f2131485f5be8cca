"""A broker that comes back elsewhere under its name, as a pod does, before the name leads there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from name_server import NameServer
from replica_manager_cluster import eventually
from running_cluster import deployment

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import Producer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have 127.0.0.1 alone")

BEFORE, AFTER = "127.0.0.2", "127.0.0.3"
NAME = "broker-3.test"
MOVED = 3
NAME_LAGS_S = 3.0
FOUND_WITHIN_S = 6.0  # by the controller, then by a client, then by followers; gRPC alone takes up to half a minute


class MovingCluster(LocalCluster):
    """Broker 3 is known by its name; what tells that its process was killed is its host's address."""

    def __init__(self, data: Path, names: NameServer) -> None:
        super().__init__(LocalClusterSettings(data, port=0))
        self.names = names
        names.addresses[NAME] = self.host = BEFORE
        self.made_of: dict[str, str] = {}

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        if name == f"replica-manager-{MOVED}":
            self.made_of = dict(settings)
            address = settings["advertised.listener"]
            port = address.rpartition(":")[2]
            own = f"{self.host}:{port}"
            settings["listen"] = settings["listen"].replace(address, own)
            settings |= {"advertised.listener": self.names.target(NAME, port), "host.address": own}
        super()._add_service(name, package, settings)

    def start_elsewhere(self) -> None:
        self.host = AFTER
        self._add_service(f"replica-manager-{MOVED}", "replica_manager", self.made_of)
        self.start_broker(MOVED)


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[MovingCluster]:
    with NameServer().running() as names:
        cluster = MovingCluster(tmp_path, names)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.kill()


async def test_everybody_finds_a_broker_at_its_other_address(moving: MovingCluster) -> None:
    async with deployment(moving) as deployed, Producer(moving.bootstrap, acks="all") as producer:
        await deployed.create_topic("alone", [[MOVED]], min_insync_replicas=1)
        await deployed.create_topic("copied", [[MOVED, 1, 2]])
        await deployed.preferred_lead("copied")
        for topic in ("alone", "copied"):
            await producer.send_and_wait(topic, b"before")
        moving.kill_broker(MOVED)
        await deployed.replaced(MOVED, "copied")
        moving.start_elsewhere()
        await deployed.registered()
        await asyncio.sleep(NAME_LAGS_S)
        moving.names.addresses[NAME] = AFTER
        begun = monotonic()
        await producer.send_and_wait("alone", b"after")  # the controller has told the broker to lead
        found_s = monotonic() - begun
        await deployed.healed("copied")
        await deployed.preferred_lead("copied")

        async def followed() -> bool:
            (state,) = await deployed.states("copied")
            return state.leader == MOVED and len(state.isr) == 3

        await eventually(followed, "the moved broker leads, and the others follow it")
        await producer.send_and_wait("copied", b"after")
        all_s = monotonic() - begun
    assert found_s <= all_s < FOUND_WITHIN_S
