"""Whether a broker may stop is not said by a controller that has heard less than the broker itself (RULES 7.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from highwater.controller.administration import administration
from highwater.controller.administration.acl_administration import AclAdministration
from highwater.controller.administration.administration import Administration, HeldBack
from highwater.controller.settings import ControllerSettings
from highwater.controller.state_machines.actions import Action, WriteState
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.state_machines.pieces import whole
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import (
    BrokerRegistration,
    LiveBroker,
    PartitionState,
    TopicAssignment,
    VersionedState,
    VersionedTopic,
)
from highwater.model.partition import PartitionKey

TOPIC_ID = b"t" * 16
KEY = PartitionKey(TOPIC_ID, 0)


class ActiveController:
    """Whose watch of etcd lags: what it hears of is `heard`, and when it next waits."""

    def __init__(self) -> None:
        self.cluster = Cluster(0, 1, ElectionPolicy(2))
        self.heard: list[Callable[[], list[Action]]] = []
        self.revision = 100

    def perform(self, actions: Sequence[Action]) -> None:
        for write in [action for action in actions if isinstance(action, WriteState)]:
            self.revision += 1
            self.perform(self.cluster.written([write], self.revision))

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        while self.heard and not holds():
            self.perform(self.heard.pop(0)())
        return holds()


@pytest.fixture
def active_controller() -> Iterator[ActiveController]:
    active_controller = ActiveController()
    for broker_id in (1, 2, 3):
        active_controller.perform(active_controller.cluster.broker_seen(registered(broker_id)))
    assignment = TopicAssignment("t", TOPIC_ID, ((2, 3, 1),))
    active_controller.perform(active_controller.cluster.topic_seen(VersionedTopic(assignment, 10, 10), {}))
    active_controller.perform(sees(active_controller, 110, 2, 3))
    yield active_controller
    active_controller.cluster.topics.check_invariants()


def registered(broker_id: int) -> LiveBroker:
    return LiveBroker(BrokerRegistration(broker_id, f"b{broker_id}:1", "x", "y"), broker_epoch=broker_id)


def leaving(broker_id: int, revision: int) -> LiveBroker:
    broker = registered(broker_id)
    return replace(broker, registration=replace(broker.registration, shutting_down=True), revision=revision)


def sees(active_controller: ActiveController, revision: int, *isr: int) -> list[Action]:
    """A leader's change of the ISR."""
    state = PartitionState(leader=2, leader_epoch=0, leader_broker_epoch=2, isr=isr, controller_epoch=1)
    return active_controller.cluster.state_seen("t", 0, VersionedState(state, revision))


def administration_of(active_controller: ActiveController) -> Administration:
    settings = ControllerSettings(controller_id=0, listen=["h:0"], advertised_listener="h:0", etcd=["h:1"])
    acls = AclAdministration(None, Keys("c"))  # type: ignore[arg-type]
    return Administration(active_controller, None, Keys("c"), settings, None, acls, None, ())  # type: ignore[arg-type]


async def ask(active_controller: ActiveController, broker_id: int) -> HeldBack | None:
    asking = administration_of(active_controller).shut_down(broker_id, broker_id)
    return await asyncio.wait_for(asking, administration.MOVE_PATIENCE_S * 3)


async def test_what_came_before_the_mark_is_looked_at_first(active_controller: ActiveController) -> None:
    """Broker 1 came back into the ISR as 3 fell out, then marked its registration, and asks faster than the watch."""
    active_controller.heard = [
        lambda: sees(active_controller, 120, 1, 2),
        lambda: active_controller.cluster.broker_seen(leaving(1, 121)),
    ]
    assert await ask(active_controller, 1) == HeldBack(0, 1, (KEY,))


async def test_nobody_is_let_go_whose_mark_is_not_heard_of(active_controller: ActiveController) -> None:
    assert await ask(active_controller, 1) is None
    active_controller.perform(active_controller.cluster.broker_seen(leaving(1, 121)))
    assert await ask(active_controller, 1) == HeldBack(0, 0, ())


async def test_nobody_is_let_go_by_what_is_half_listed(active_controller: ActiveController) -> None:
    """The watch was lost after the first answer; what is listed anew is read a piece at a time."""
    active_controller.perform(active_controller.cluster.broker_seen(leaving(1, 121)))
    assert await ask(active_controller, 1) == HeldBack(0, 0, ())
    cluster = active_controller.cluster
    brokers = {1: leaving(1, 121), 2: registered(2), 3: registered(3)}
    state = PartitionState(leader=2, leader_epoch=0, leader_broker_epoch=2, isr=(2, 3), controller_epoch=1)
    topic = VersionedTopic(TopicAssignment("t", TOPIC_ID, ((2, 3, 1),)), 10, 10)
    states = {("t", 0): VersionedState(state, 110)}
    listing = ClusterSnapshot(130, brokers, {}, {"t": topic}, states, {}, {"gone": b"g" * 16}, (), None, 1)
    loading = cluster.loading(listing, 0)
    next(loading)
    assert not cluster.listed
    assert await ask(active_controller, 1) is None
    active_controller.perform(whole(loading))
    assert await ask(active_controller, 1) == HeldBack(0, 0, ())


async def test_who_began_first_goes_first_whoever_asks_first(active_controller: ActiveController) -> None:
    active_controller.perform(sees(active_controller, 115, 1, 2, 3))
    active_controller.heard = [
        lambda: active_controller.cluster.broker_seen(leaving(1, 120)),
        lambda: active_controller.cluster.broker_seen(leaving(3, 121)),
    ]
    assert await ask(active_controller, 3) == HeldBack(0, 1, (KEY,))
    assert await ask(active_controller, 1) == HeldBack(0, 0, ())
    assert await ask(active_controller, 3) == HeldBack(0, 1, (KEY,))


@pytest.mark.parametrize("again", [False, True])
async def test_a_later_controller_lets_them_go_in_the_same_order(again: bool) -> None:
    """Broker 1 began first, and is out of one ISR; since then its registration was written anew, or is another."""
    epoch = 30 if again else 1
    first = replace(leaving(1, 35), broker_epoch=epoch)
    first = replace(first, registration=replace(first.registration, leaving_since=20))
    active_controller = ActiveController()
    for broker in (leaving(2, 21), first, registered(3)):
        active_controller.perform(active_controller.cluster.broker_seen(broker))
    assignment = TopicAssignment("t", TOPIC_ID, ((3, 1, 2), (3, 1, 2)))
    active_controller.cluster.topic_seen(VersionedTopic(assignment, 10, 10), {})
    for number, isr in enumerate([(2, 3), (1, 2, 3)]):
        state = PartitionState(leader=3, leader_epoch=0, leader_broker_epoch=3, isr=isr, controller_epoch=1)
        active_controller.perform(active_controller.cluster.state_seen("t", number, VersionedState(state, 22 + number)))
    for partition in active_controller.cluster.topics.partitions():
        partition.pending = None
    held = await ask(active_controller, 2)
    assert held is not None
    assert held.needed_by == 2
    admin = administration_of(active_controller)
    assert await admin.shut_down(1, epoch) == HeldBack(0, 0, ())
