"""An election of thousands of partitions lets others have their turn of the controller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from test_asking_to_stop import ActiveController, administration_of, registered

from highwater.controller.administration import administration
from highwater.controller.administration.administration import TopicOutcome
from highwater.controller.administration.servicer import ControllerServicer
from highwater.controller.state_machines.actions import Action, WriteState
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, TopicAssignment, VersionedState, VersionedTopic
from highwater.rpc.process import loop_turn
from highwater.v1 import common_pb2, controller_pb2

MANY = 60
NOTHING: Any = None


class Turns:
    """How often others had the event loop since it began."""

    def __init__(self) -> None:
        self.count = 0
        self.taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


def controller_of_many() -> ActiveController:
    """Of a topic whose every third partition is led by broker 1, its preferred leader, and the others by 2."""
    active_controller = ActiveController()
    cluster = active_controller.cluster
    for broker_id in (1, 2):
        active_controller.perform(cluster.broker_seen(registered(broker_id)))
    assignment = TopicAssignment("t", b"t" * 16, ((1, 2),) * MANY)
    active_controller.perform(cluster.topic_seen(VersionedTopic(assignment, 10, 10), {}))
    for number in range(MANY):
        leader = 2 if number % 3 else 1
        state = PartitionState(leader, 5, leader, (1, 2), controller_epoch=1)
        active_controller.perform(cluster.state_seen("t", number, VersionedState(state, 1_000 + number)))
    active_controller.revision = 2_000
    return active_controller


def servicer(acting: Any) -> ControllerServicer:
    return ControllerServicer(lambda: acting, lambda: None, lambda: None, lambda: "c")


@pytest.mark.parametrize("named", [True, False], ids=["named", "all"])
async def test_of_leaders(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    active_controller = controller_of_many()
    request = controller_pb2.ElectLeadersRequest(type=controller_pb2.ELECTION_TYPE_PREFERRED, timeout_ms=5_000)
    if named:
        for number in range(MANY + 1):  # the last is not there
            request.partitions.add(topic="t", partition=number)
    others = Turns()
    response = await servicer(administration_of(active_controller)).ElectLeaders(request, NOTHING)
    others.taking.cancel()
    needless, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    expected = [0 if number % 3 else int(needless) for number in range(MANY)] + [int(unknown)] * named
    assert [each.error.code for each in response.results] == expected
    assert [each.partition.partition for each in response.results] == list(range(MANY + named))
    assert {each.leader for each in active_controller.cluster.topics.partitions()} == {1}
    assert others.count >= (3.5 if named else 2.5) * MANY


async def test_they_are_decided_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is 40 us; what is decided is handed out at once, so that a request which is given up leaves none pending."""
    monkeypatch.setattr(administration, "AT_ONCE", 20)
    active_controller = controller_of_many()
    performed: list[int] = []
    perform = active_controller.perform

    def counting(actions: Sequence[Action]) -> None:
        performed.append(sum(isinstance(action, WriteState) for action in actions))
        perform(actions)

    monkeypatch.setattr(active_controller, "perform", counting)
    outcomes = await administration_of(active_controller).elect_preferred([], timeout_s=5)
    assert [each for each in performed if each] == [13, 13, 14]
    assert {each.error for each in outcomes} == {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}


async def test_a_deadline_that_has_passed_leaves_none_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "AT_ONCE", 20)
    active_controller = controller_of_many()
    monkeypatch.setattr(active_controller, "perform", lambda actions: None)  # nothing is written
    outcomes = await administration_of(active_controller).elect_preferred([], timeout_s=0)
    expected = [ErrorCode.REQUEST_TIMED_OUT if number % 3 else ErrorCode.ELECTION_NOT_NEEDED for number in range(MANY)]
    assert [each.error for each in outcomes] == expected


async def test_one_that_is_never_written_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state in etcd cannot be read, say: the write waits for somebody to put that right."""
    monkeypatch.setattr(administration, "AT_ONCE", 20)
    active_controller = controller_of_many()
    waited_s = 0.0
    decided: list[tuple[int, float]] = []  # how many, and what had been waited before
    perform = active_controller.perform

    def writing(actions: Sequence[Action]) -> None:
        writes = [action for action in actions if isinstance(action, WriteState)]
        if writes:
            decided.append((len(writes), waited_s))
        perform([write for write in writes if write.key.partition != 1])

    async def until(holds: Callable[[], bool], timeout_s: float) -> bool:
        nonlocal waited_s
        waited_s += 0 if holds() else timeout_s
        return holds()

    monkeypatch.setattr(active_controller, "perform", writing)
    monkeypatch.setattr(active_controller, "until", until)
    outcomes = await administration_of(active_controller).elect_preferred([], timeout_s=30)
    assert [number for number, _ in decided] == [13, 13, 14]
    assert [before <= 1 for _, before in decided] == [True, True, True]
    assert 29 < waited_s < 31  # it is answered when all is done, or at the deadline
    assert [number for number, each in enumerate(outcomes) if each.error is ErrorCode.REQUEST_TIMED_OUT] == [1]


async def test_of_topics_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)

    class Administration:
        async def create_topics(self, topics: Any, **_: Any) -> list[TopicOutcome]:
            return [TopicOutcome(each.topic, ErrorCode.INVALID_TOPIC) for each in topics]

    request = controller_pb2.CreateTopicsRequest()
    for number in range(MANY):
        request.topics.add(topic=f"t{number}")
    others = Turns()
    response = await servicer(Administration()).CreateTopics(request, NOTHING)
    others.taking.cancel()
    assert [each.topic for each in response.results] == [f"t{number}" for number in range(MANY)]
    assert {each.error.code for each in response.results} == {common_pb2.Error(code=ErrorCode.INVALID_TOPIC).code}  # type: ignore[arg-type]
    assert others.count >= 1.9 * MANY
