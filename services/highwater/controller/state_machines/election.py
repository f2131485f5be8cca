"""Elections: the next leader of a partition, and its next state in etcd (RULES 7.1 to 7.4, 1.3). Pure.

`elect` is level-triggered: it looks at a state and at who is there, and answers with the state that should be written
next, or None where the present one stands. Calling it again after the write gives None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.model.damaged_replicas import fewest_sound
from highwater.model.leader_epochs import NO_EPOCH


class LogTail(NamedTuple):
    """The end of a replica's log; the greater one holds more (RULES 7.4)."""

    last_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Electorate:
    """The candidates for the leadership of one partition, as the controller knows them."""

    replicas: tuple[int, ...]  # the assignment, preferred leader first
    broker_epochs: Mapping[int, int]  # registered brokers, under which broker epoch (RULES 1.4)
    shutting_down: tuple[int, ...] = ()  # under their present broker epoch, in the order in which they began
    not_live: frozenset[int] = frozenset()  # replicas that do not serve this partition (RULES 7.7)
    tail_lost: frozenset[int] = frozenset()  # registered as tail lost, and not yet taken out of this partition (7.2)
    tails: Mapping[int, LogTail] = field(default_factory=dict)  # answered under the state's leader epoch (RULES 7.4)
    released: frozenset[int] = frozenset()  # of those that shut down: who may be gone at any moment (RULES 7.8)
    damaged: frozenset[int] = frozenset()  # they serve, and part of what they hold cannot be read (RULES 7.6)

    @property
    def eligible(self) -> tuple[int, ...]:
        """Assigned replicas that are live and staying, in order of preference."""
        return tuple(replica for replica in self.present if replica not in self.shutting_down)

    @property
    def present(self) -> tuple[int, ...]:
        """Assigned replicas that are live, the leaving among them, in order of preference."""
        return tuple(
            replica for replica in self.replicas if replica in self.broker_epochs and replica not in self.not_live
        )

    def suffice(self, members: Iterable[int], policy: ElectionPolicy) -> bool:
        """Tells whether an ISR of these has the minimum, without those of them that are gone, or may be at any
        moment."""
        sure = set(self.present) - self.released
        return len(sure.intersection(members)) >= policy.minimum(self.replicas)


@dataclass(frozen=True, slots=True)
class ElectionPolicy:
    """The topic's configuration as far as elections go."""

    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False

    def minimum(self, replicas: tuple[int, ...]) -> int:
        """RULES 5.2: min(configured, assigned replicas), everywhere."""
        return min(self.min_insync_replicas, len(replicas))


def initial_state(electorate: Electorate, controller_epoch: int) -> PartitionState:
    """The state that a partition is created with (RULES 9.1): led by its first live replica, ISR of the live ones.

    Where none is live it has no leader and every replica is in the ISR: all of them hold the same, nothing.
    """
    live = electorate.eligible
    leader = live[0] if live else NO_LEADER
    return PartitionState(
        leader=leader,
        leader_epoch=0,
        leader_broker_epoch=electorate.broker_epochs[leader] if live else 0,
        isr=_sorted(live or electorate.replicas),
        controller_epoch=controller_epoch,
    )


def elect(
    state: PartitionState, electorate: Electorate, policy: ElectionPolicy, controller_epoch: int
) -> PartitionState | None:
    """The state to write next, or None where the present one stands.

    The leader epoch grows where the leader or its broker epoch changes, and only there (RULES 1.3). A new leader is
    sought where the present one has failed (7.1): in the ISR, then in `elr`, then by log among those who lost their
    tail (7.4), then anywhere if the topic allows unclean elections. Where nobody is found the partition has no leader
    and its ISR stays; a leader that is merely shutting down goes on leading until it is gone. A follower that is leaves
    the ISR as soon as that can spare it (7.8). A leader with a damaged log gives way to a member without (7.6).
    """
    cleaned = _without_lost_tails(state, electorate)
    if not leader_failed(state, electorate) and not _gives_way(cleaned, electorate):
        return _changed(state, _without_leaving(cleaned, electorate, policy), controller_epoch)
    elected = _elect_clean(cleaned, electorate, policy)
    if elected is None and _only_shutting_down(state, electorate):
        return _changed(state, _without_leaving(cleaned, electorate, policy), controller_epoch)
    if elected is None:
        elected = _elect_outside(cleaned, electorate, policy)
    if elected is None:
        elected = _leaderless(cleaned)
    return _changed(state, elected, controller_epoch)


def elect_preferred(
    state: PartitionState, electorate: Electorate, policy: ElectionPolicy, controller_epoch: int
) -> PartitionState | None:
    """Moves leadership to the first assigned replica; None where it leads already, or may not, or had to give way."""
    preferred = electorate.replicas[0]
    eligible = preferred in electorate.eligible and preferred not in electorate.damaged
    if state.leader == preferred or not eligible or preferred not in state.isr:
        return None
    return _from_isr(state, preferred, electorate, policy).with_(controller_epoch=controller_epoch)


def leave_isr(
    state: PartitionState, broker_id: int, electorate: Electorate, policy: ElectionPolicy, controller_epoch: int
) -> PartitionState | None:
    """Takes a follower whose log is offline out of the ISR, under the same leader epoch, so that the high watermark
    does not wait for it; None where it leads, is not in the ISR, or too few would remain in it."""
    remaining = [member for member in state.isr if member != broker_id]
    if broker_id in (state.leader, NO_LEADER) or len(remaining) == len(state.isr):
        return None
    if len(remaining) < policy.minimum(electorate.replicas):
        return None
    return state.with_(isr=_sorted(remaining), controller_epoch=controller_epoch)


def leave_all(
    state: PartitionState, broker_id: int, electorate: Electorate, policy: ElectionPolicy, controller_epoch: int
) -> PartitionState | None:
    """Takes a follower whose log is damaged out of ISR and `elr`, so that it may drop what is damaged (RULES 7.6; 7.3:
    it enters none); None where it leads or is in neither, or where too few would be left of those that hold everything
    committed: of two brokers neither knows, when it begins to leave, that the other does."""
    if broker_id in (state.leader, NO_LEADER) or broker_id not in (*state.isr, *state.elr):
        return None
    isr, elr = set(state.isr) - {broker_id}, set(state.elr) - {broker_id}
    assert isr  # invariant 6: the leader is in it
    if len(isr | elr) < fewest_sound(policy.min_insync_replicas, electorate.replicas):
        return None
    return state.with_(isr=_sorted(isr), elr=_sorted(elr), controller_epoch=controller_epoch)


def leader_failed(state: PartitionState, electorate: Electorate) -> bool:
    """RULES 7.1: no leader, one that is not registered, that restarted, that is leaving, or that does not serve."""
    return state.leader not in electorate.eligible or _restarted(state, electorate)


def _gives_way(state: PartitionState, electorate: Electorate) -> bool:
    """RULES 7.6: what the leader cannot read no other replica could copy, nor any client read."""
    sound = set(electorate.eligible) - electorate.damaged
    return state.leader in electorate.damaged and not sound.isdisjoint(state.isr)


def _restarted(state: PartitionState, electorate: Electorate) -> bool:
    return electorate.broker_epochs.get(state.leader) != state.leader_broker_epoch


def _only_shutting_down(state: PartitionState, electorate: Electorate) -> bool:
    """Tells whether the leader still serves and fails by nothing but its wish to stop."""
    return (
        state.leader in electorate.replicas
        and state.leader in electorate.shutting_down
        and state.leader not in electorate.not_live
        and not _restarted(state, electorate)
    )


def _without_lost_tails(state: PartitionState, electorate: Electorate) -> PartitionState:
    """RULES 7.2: whoever registered with its tail lost leaves ISR and `elr` for `lost`, be it the last member.

    Not so a leader elected under that very registration: its election has been through here already.
    """
    lost = electorate.tail_lost & {*state.isr, *state.elr}
    if not _restarted(state, electorate):
        lost -= {state.leader}
    if not lost:
        return state
    return state.with_(
        isr=_sorted(set(state.isr) - lost), elr=_sorted(set(state.elr) - lost), lost=_sorted({*state.lost, *lost})
    )


def _elect_clean(state: PartitionState, electorate: Electorate, policy: ElectionPolicy) -> PartitionState | None:
    """RULES 7.1: the first eligible of the ISR, else of `elr`. Both hold everything committed; whoever cannot read some
    of it comes last (7.6)."""
    eligible = sorted(electorate.eligible, key=lambda replica: replica in electorate.damaged)  # stable
    for replica in eligible:
        if replica in state.isr:
            return _from_isr(state, replica, electorate, policy)
    for replica in eligible:
        if replica in state.elr:
            return _led_by(state, replica, electorate).with_(
                isr=(replica,), elr=_sorted({*state.elr, *state.isr} - {replica})
            )
    return None


def _from_isr(state: PartitionState, leader: int, electorate: Electorate, policy: ElectionPolicy) -> PartitionState:
    """The electing write takes the dead out of the ISR (7.1) and keeps them in mind (7.3); the leaving, too, where the
    minimum is kept without them (7.8)."""
    staying = set(state.isr) & set(electorate.present)
    staying -= _spared(staying, leader, electorate, policy)
    assert leader in staying  # invariant 6: never to empty
    below_minimum = len(staying) < policy.minimum(electorate.replicas)
    leaving = set(state.isr) - staying if below_minimum else set()
    return _led_by(state, leader, electorate).with_(isr=_sorted(staying), elr=_sorted({*state.elr, *leaving} - staying))


def _without_leaving(state: PartitionState, electorate: Electorate, policy: ElectionPolicy) -> PartitionState:
    """RULES 7.8, under the same leader epoch."""
    spared = _spared(state.isr, state.leader, electorate, policy)
    return state.with_(isr=_sorted(set(state.isr) - spared)) if spared else state


def _spared(isr: Iterable[int], leader: int, electorate: Electorate, policy: ElectionPolicy) -> set[int]:
    """Members that are shutting down and that the ISR can do without, one after the other: what is left of it has the
    minimum by those alone who are sure to stay until they are let go themselves (RULES 7.8)."""
    remaining, spared = set(isr), set[int]()
    for member in electorate.shutting_down:
        if member not in remaining or member == leader:
            continue
        if not electorate.suffice(remaining - {member}, policy):
            break  # those that began later wait until it has gone, or each might wait for the other's return
        remaining.remove(member)
        spared.add(member)
    return spared


def _elect_outside(state: PartitionState, electorate: Electorate, policy: ElectionPolicy) -> PartitionState | None:
    """RULES 7.4: by log, where all who might hold more came back without their tails; else unclean, if allowed."""
    leader = _longest_log(state, electorate)
    if leader is None and policy.unclean_leader_election_enable:
        by_trust = sorted(electorate.eligible, key=lambda replica: replica in state.lost)  # stable: then by preference
        leader = by_trust[0] if by_trust else None
    if leader is None:
        return None
    elected = _led_by(state, leader, electorate)
    return elected.with_(isr=(leader,), elr=(), lost=(), unclean_epoch=elected.leader_epoch)


def _longest_log(state: PartitionState, electorate: Electorate) -> int | None:
    """The greatest (last epoch, LEO), once ISR and `elr` are empty and every member of `lost` answered with its own.

    Live replicas outside `lost` stand too: one that had merely fallen behind may hold more than a replaced volume.
    """
    if state.isr or state.elr or not state.lost:
        return None
    eligible = electorate.eligible
    if not set(state.lost) <= set(eligible):
        return None
    if len(eligible) == 1:
        return eligible[0]
    if not set(state.lost) <= set(electorate.tails):
        return None
    known = [replica for replica in eligible if replica in electorate.tails]
    return max(known, key=lambda replica: electorate.tails[replica])  # max keeps the first of equals: the preferred


def _leaderless(state: PartitionState) -> PartitionState:
    if state.leader == NO_LEADER:
        return state
    return state.with_(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, leader_broker_epoch=0)


def _led_by(state: PartitionState, leader: int, electorate: Electorate) -> PartitionState:
    return state.with_(
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        leader_broker_epoch=electorate.broker_epochs[leader],
    )


def _changed(old: PartitionState, new: PartitionState, controller_epoch: int) -> PartitionState | None:
    if new == old:
        return None
    assert new.leader_epoch >= old.leader_epoch  # invariant 5
    assert new.isr or new.leader == NO_LEADER  # invariant 6
    assert new.unclean_epoch == NO_EPOCH or new.unclean_epoch <= new.leader_epoch
    return new.with_(controller_epoch=controller_epoch)


def _sorted(brokers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(brokers)))
