"""A broker that comes back elsewhere under its name, as a pod does, before the name leads there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic

import pytest
from name_server import NameServer
from replica_manager_cluster import eventually
from running_cluster import deployment

from highwater.cli.local_cluster import INTERNAL_LISTENER, LocalCluster, LocalClusterSettings
from highwater.client import Producer
from highwater.rpc.listeners import parse_listeners

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have 127.0.0.1 alone")

BEFORE, AFTER = "127.0.0.2", "127.0.0.3"
NAME = "broker-3.test"
MOVED = 3
NAME_LAGS_S = 3.0
FOUND_WITHIN_S = 6.0  # by the controller, then by a client, then by followers; gRPC alone takes up to half a minute


class MovingCluster(LocalCluster):
    """Broker 3 is known by its name; what tells that its process was killed is its host's address."""

    def __init__(self, data: Path, names: NameServer) -> None:
        super().__init__(LocalClusterSettings(data, port=0, tcp_between_brokers=True))
        self.names = names
        names.addresses[NAME] = self.host = BEFORE
        self.made_of: dict[str, tuple[str, dict[str, str]]] = {}

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        if name.endswith(f"-{MOVED}"):
            self.made_of[name] = package, dict(settings)
        if name == f"fetcher-{MOVED}":  # on the same host
            settings["replica.manager"] = f"{self.host}:{settings['replica.manager'].rpartition(':')[2]}"
        if name == f"replica-manager-{MOVED}":
            bound = parse_listeners(settings["listeners"])
            own = {listener: f"{self.host}:{address.rpartition(':')[2]}" for listener, address in bound.items()}
            named = {listener: self.names.target(NAME, address.rpartition(":")[2]) for listener, address in own.items()}
            settings |= {
                "listeners": _written(own),
                "advertised.listeners": _written(named),
                "host.address": own[INTERNAL_LISTENER],
            }
        super()._add_service(name, package, settings)

    def start_elsewhere(self) -> None:
        self.host = AFTER
        for name in (f"replica-manager-{MOVED}", f"fetcher-{MOVED}"):
            self._add_service(name, *self.made_of[name])
        self.start_broker(MOVED)


def _written(listeners: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in listeners.items())


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
