"""When a cluster that lost its leases is whole again."""

from __future__ import annotations

from bench.scale.bent import missing
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.schema.models import (
    NO_LEADER,
    BrokerRegistration,
    LiveBroker,
    PartitionState,
    VersionedState,
)

BROKERS = {broker: LiveBroker(BrokerRegistration(broker, "h:1", "a", "b"), 10 + broker) for broker in (1, 2, 3)}
LED = PartitionState(1, 3, 11, (1, 2, 3))


def snapshot(*states: PartitionState) -> ClusterSnapshot:
    placed = {("t", number): VersionedState(state, 20) for number, state in enumerate(states)}
    return ClusterSnapshot(30, BROKERS, {}, {}, placed, {}, {}, (), None, 1)


def test_it_is_whole_with_registered_leaders_and_full_isrs() -> None:
    assert missing(snapshot(LED, LED), 2) == ""
    assert missing(snapshot(LED), 2) == "1 of 2 have no leader that is registered"
    assert missing(snapshot(LED, PartitionState(1, 3, 11, (1, 2))), 2) == "1 of 2 have replicas outside their ISRs"


def test_a_leader_that_lost_its_registration_is_none() -> None:
    """Although the state names it still, and it may be registered anew."""
    for leader, epoch in ((NO_LEADER, 0), (2, 11), (4, 14)):
        state = PartitionState(leader, 3, epoch, (1, 2, 3))
        assert missing(snapshot(LED, state), 2) == "1 of 2 have no leader that is registered"
