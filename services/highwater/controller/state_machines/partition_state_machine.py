"""One partition as the controller knows it, and the write that it wants next. Pure.

    NON_EXISTENT --created--> ONLINE <--elections--> OFFLINE (no leader)

One write is under way at a time (`pending`); whatever happens meanwhile is looked at when it ended. So a decision is
always computed from a state that was read, at the revision that the write compares (RULES 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from highwater.controller.state_machines.actions import WriteState
from highwater.controller.state_machines.election import (
    ElectionPolicy,
    Electorate,
    elect,
    elect_preferred,
    initial_state,
    leader_failed,
    leave_all,
    leave_isr,
)
from highwater.controller.state_machines.replica_state_machine import ReplicaStateMachine, ReplicaStatus
from highwater.metadata.schema.models import NO_LEADER, PartitionState, VersionedState
from highwater.model.partition import PartitionKey


class PartitionStatus(Enum):
    NON_EXISTENT = "non-existent"  # in the assignment, without a state yet (RULES 9.1)
    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The brokers as the controller sees them at one moment; shared by all partitions looked at then."""

    broker_epochs: Mapping[int, int]
    shutting_down: tuple[int, ...]  # in the order in which they began
    released: frozenset[int] = frozenset()  # of those: who may be gone at any moment (RULES 7.8)


@dataclass(slots=True)
class PartitionStateMachine:
    topic: str
    key: PartitionKey
    replicas: tuple[int, ...]  # the assignment, preferred leader first
    versioned: VersionedState | None = None  # the newest state seen
    pending: WriteState | None = None  # the write under way
    unsettled: bool = False  # one of unknown outcome may yet be done over the state that is known (RULES 2.4)
    replica_states: dict[int, ReplicaStateMachine] = field(default_factory=dict)
    offline_changes: int = 0  # counts those of `offline_replicas`

    def __post_init__(self) -> None:
        for broker_id in self.replicas:
            self.replica_states.setdefault(broker_id, ReplicaStateMachine(broker_id))

    @property
    def status(self) -> PartitionStatus:
        if self.versioned is None:
            return PartitionStatus.NON_EXISTENT
        return PartitionStatus.OFFLINE if self.leader == NO_LEADER else PartitionStatus.ONLINE

    @property
    def leader(self) -> int:
        return NO_LEADER if self.versioned is None else self.versioned.state.leader

    def electorate(self, view: BrokerView, tail_lost: frozenset[int] = frozenset()) -> Electorate:
        leader_epoch = -1 if self.versioned is None else self.versioned.state.leader_epoch
        tails = {}
        not_live, damaged = set(), set()
        for broker_id, replica in self.replica_states.items():
            if not replica.live:
                not_live.add(broker_id)
            if replica.kept_damaged:
                damaged.add(broker_id)
            tail = replica.tail_at(view.broker_epochs.get(broker_id), leader_epoch)
            if tail is not None:
                tails[broker_id] = tail
        return Electorate(
            self.replicas,
            view.broker_epochs,
            view.shutting_down,
            frozenset(not_live),
            tail_lost,
            tails,
            view.released,
            frozenset(damaged),
        )

    # What it wants written. Each returns None while another write is under way, or where nothing need change.

    def advance(
        self, view: BrokerView, tail_lost: frozenset[int], policy: ElectionPolicy, controller_epoch: int
    ) -> WriteState | None:
        """Its first state, or the next one by an election."""
        if self.pending is not None:
            return None
        electorate = self.electorate(view, tail_lost)
        if self.versioned is None:
            return self._write(initial_state(electorate, controller_epoch))
        elected = elect(self.versioned.state, electorate, policy, controller_epoch)
        return self._write(elected) or self._let_go(electorate, policy, controller_epoch)

    def _let_go(self, electorate: Electorate, policy: ElectionPolicy, controller_epoch: int) -> WriteState | None:
        """The ISR without a follower whose log is offline or damaged: it copies nothing, and the high watermark would
        wait for it until the leader's patience ends."""
        assert self.versioned is not None
        state = self.versioned.state
        if leader_failed(state, electorate):
            return None
        for broker_id, replica in self.replica_states.items():
            left: PartitionState | None = None
            if replica.status is ReplicaStatus.LOG_OFFLINE:
                left = leave_isr(state, broker_id, electorate, policy, controller_epoch)
            elif replica.status is ReplicaStatus.LOG_DAMAGED:
                left = leave_all(state, broker_id, electorate, policy, controller_epoch)
            if left is not None:
                return self._write(left)
        return None

    def prefer(self, view: BrokerView, policy: ElectionPolicy, controller_epoch: int) -> WriteState | None:
        """The preferred leader's election."""
        if self.pending is not None or self.versioned is None:
            return None
        return self._write(elect_preferred(self.versioned.state, self.electorate(view), policy, controller_epoch))

    def _write(self, state: PartitionState | None) -> WriteState | None:
        if state is None:
            return None
        revision = 0 if self.versioned is None else self.versioned.revision
        self.pending = WriteState(self.topic, self.key, state, revision)
        return self.pending

    # What happened

    def seen(self, versioned: VersionedState) -> bool:
        """Takes a state that was read or watched; older ones change nothing. Returns whether brokers must be told: its
        leader epoch is new, or a write of ours may have made it, of which its leader knows nothing (RULES 2.5)."""
        known = self.versioned
        if known is not None and versioned.revision <= known.revision:
            return False
        assert known is None or versioned.state.leader_epoch >= known.state.leader_epoch  # invariant 5
        ours, self.unsettled = self.unsettled, False
        self.versioned = versioned
        return known is None or versioned.state.leader_epoch > known.state.leader_epoch or ours

    def write_ended(self, write: WriteState) -> None:
        """The write was done, or not, or nobody knows. What it wrote, or what was read after it, has been `seen`: where
        that is what was compared, it may be done yet."""
        if self.pending == write:
            self.pending = None
        if self.versioned is not None and self.versioned.revision == write.compare_revision:
            self.unsettled = True

    @property
    def offline_replicas(self) -> tuple[int, ...]:
        """Those whose logs are offline, or damaged and out of service (RULES 7.7, 7.6)."""
        statuses = (ReplicaStatus.LOG_OFFLINE, ReplicaStatus.LOG_DAMAGED)
        return tuple(replica.broker_id for replica in self.replica_states.values() if replica.status in statuses)

    @property
    def served(self) -> bool:
        """Tells whether its leader has taken up its leadership: a produce works from now on."""
        if self.versioned is None or self.leader == NO_LEADER:
            return False
        state = self.versioned.state
        replica = self.replica_states.get(state.leader)
        return replica is not None and replica.serves(state.leader_broker_epoch, state.leader_epoch)

    @property
    def under_replicated(self) -> bool:
        """Tells whether the ISR is smaller than the assignment."""
        return self.versioned is None or len(self.versioned.state.isr) < len(self.replicas)
