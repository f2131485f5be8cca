"""Which written states are elections, and of which kind."""

from __future__ import annotations

import pytest

from highwater.controller.state_machines.actions import WriteState
from highwater.controller.term.election_metrics import ElectionMetrics, election_of
from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.model.partition import PartitionKey
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.reporters import samples_of

LED = PartitionState(leader=1, leader_epoch=3, leader_broker_epoch=5, isr=(1, 2))
LEADERLESS = LED.with_(leader=NO_LEADER, leader_epoch=4)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, LED, ""),
        (LED, LED.with_(isr=(1,)), ""),
        (LED, LED.with_(leader=2, leader_epoch=4), "clean"),
        (LED, LED.with_(leader_broker_epoch=9, leader_epoch=4), "clean"),  # registered anew
        (LED, LEADERLESS, ""),
        (LEADERLESS, LEADERLESS.with_(leader=2, leader_epoch=5), "clean"),
        (LEADERLESS, LEADERLESS.with_(leader=2, leader_epoch=5, isr=(2,), unclean_epoch=5), "unclean"),
        (LED.with_(unclean_epoch=3), LED.with_(leader=2, leader_epoch=4, unclean_epoch=3), "clean"),
    ],
)
def test_the_kind_of_an_election(before: PartitionState | None, after: PartitionState, kind: str) -> None:
    assert election_of(before, after) == kind


def test_elections_are_counted_and_those_decided_together_timed_once() -> None:
    metrics = Metrics("controller")
    elections = ElectionMetrics(metrics)
    write = WriteState("t", PartitionKey(bytes(16), 0), LED.with_(leader=2, leader_epoch=4), 7)
    elections.written([(write, LED), (write, LED), (write, None)], 0.25)
    elections.written([(write, None)], 0.5)
    found = {(sample.name, sample.labels): sample.value for sample in samples_of(metrics.registry)}
    assert found[("highwater_controller_elections_total", "kind=clean")] == 2
    assert found[("highwater_controller_elections_total", "kind=unclean")] == 0
    assert found[("highwater_controller_election_seconds_count", "")] == 1
    assert found[("highwater_controller_election_seconds_sum", "")] == 0.25
