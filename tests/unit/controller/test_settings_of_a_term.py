"""The settings that a controller's term begins with: those that stand in etcd, whatever its watch has told."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.configuration.entities import CLUSTER, ConfigEntity, EntityKind
from highwater.controller import service as service_module
from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import config_to_json
from highwater.metadata.store.transactions import Entry, Event, Listing
from highwater.rpc.settings import load

STATIC = {
    "controller.id": "1",
    "etcd": "127.0.0.1:1",
    "listen": "127.0.0.1:0",
    "advertised.listener": "127.0.0.1:1",
    "unclean.leader.election.enable": "true",
}


def entry(value: bytes) -> Entry:
    return Entry(Keys("highwater").entity_config(CLUSTER), value, 11, 11, 0)


async def test_no_term_begins_with_what_the_watch_has_not_told_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    service = ControllerService(load(ControllerSettings, STATIC))
    service.configs.view.list(EntityKind.CLUSTER, Listing((), 10))
    service.configs.view.subscribe(service, [EntityKind.CLUSTER])

    async def caught_up(entity: ConfigEntity) -> None:
        put = entry(config_to_json({"unclean.leader.election.enable": "false", "min.insync.replicas": "2"}))
        service.configs.view.apply(entity.kind, [Event(put.key, put, 11)])

    monkeypatch.setattr(service.configs, "caught_up", caught_up)
    policies: list[ElectionPolicy] = []

    class Term:
        """In place of the active controller."""

        def __init__(self, store: Any, keys: Any, term: Any, policy: ElectionPolicy, **_: Any) -> None:
            policies.append(policy)

        async def run(self) -> None:
            """Ends at once."""

    monkeypatch.setattr(service_module, "ActiveController", Term)
    term: Any = None
    await service._act(term)
    assert policies.pop() == ElectionPolicy(2, unclean_leader_election_enable=False)
    await service.stop()


async def test_a_damaged_entry_of_the_cluster_allows_no_unclean_elections() -> None:
    service = ControllerService(load(ControllerSettings, STATIC))
    service.configs.view.list(EntityKind.CLUSTER, Listing((), 10))
    service.configs.view.subscribe(service, [EntityKind.CLUSTER])
    assert service.current_settings.unclean_leader_election_enable
    service.configs.view.apply(EntityKind.CLUSTER, [Event(entry(b"{").key, entry(b"{"), 11)])
    assert not service.current_settings.unclean_leader_election_enable
    service.configs.view.apply(EntityKind.CLUSTER, [Event(entry(b"{").key, None, 12)])
    assert service.current_settings.unclean_leader_election_enable
    await service.stop()
