"""What every election keeps, whatever the state and whoever is there. Rule by rule: tests/scenarios/elections-*."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from highwater.controller.state_machines.election import (
    ElectionPolicy,
    Electorate,
    LogTail,
    elect,
    elect_preferred,
    initial_state,
    leader_failed,
    leave_isr,
)
from highwater.metadata.schema.models import NO_LEADER, PartitionState

BROKERS = (1, 2, 3, 4, 5)
subsets = st.frozensets(st.sampled_from(BROKERS))
policies = st.builds(ElectionPolicy, st.integers(1, 4), st.booleans())


@st.composite
def electorates(draw: st.DrawFn) -> Electorate:
    replicas = draw(st.lists(st.sampled_from(BROKERS), min_size=1, unique=True))
    live = draw(subsets)
    tails = {broker: LogTail(draw(st.integers(0, 2)), draw(st.integers(0, 3))) for broker in draw(subsets)}
    return Electorate(
        tuple(replicas),
        {broker: draw(st.integers(10, 12)) for broker in live},
        tuple(draw(st.permutations(sorted(draw(subsets))))),
        draw(subsets),
        draw(subsets) & live,
        tails,
        draw(subsets),
        draw(subsets),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[PartitionState, Electorate]:
    electorate = draw(electorates())
    places = {broker: draw(st.sampled_from(["isr", "elr", "lost", "out"])) for broker in electorate.replicas}
    isr, elr, lost = (tuple(sorted(b for b in places if places[b] == name)) for name in ("isr", "elr", "lost"))
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    state = PartitionState(
        leader=leader,
        leader_epoch=draw(st.integers(0, 9)),
        leader_broker_epoch=0 if leader == NO_LEADER else draw(st.integers(10, 12)),
        isr=isr,
        elr=elr,
        lost=lost,
    )
    if electorate.broker_epochs.get(leader) == state.leader_broker_epoch:
        # A leader elected under its present registration: that election has taken note of its tail.
        electorate = replace(electorate, tail_lost=electorate.tail_lost - {leader})
    return state, electorate


@given(situations(), policies)
def test_an_election_keeps_the_invariants(situation: tuple[PartitionState, Electorate], policy: ElectionPolicy) -> None:
    state, electorate = situation
    new = elect(state, electorate, policy, 7)
    if new is None:
        assert not leader_failed(state, electorate) or state.leader in (NO_LEADER, *electorate.shutting_down)
        return
    assert new.controller_epoch == 7
    # RULES 1.3: a new leader epoch exactly where the leader, or its broker epoch, changed
    changed = (new.leader, new.leader_broker_epoch) != (state.leader, state.leader_broker_epoch)
    assert new.leader_epoch == state.leader_epoch + changed
    # Nobody is in two places at once.
    members = [*new.isr, *new.elr, *new.lost]
    assert len(members) == len(set(members))
    if changed and new.leader != NO_LEADER:
        assert new.leader in electorate.eligible
        assert new.leader_broker_epoch == electorate.broker_epochs[new.leader]
        assert new.leader in new.isr  # invariant 6
        # Everyone else who stays in the ISR is live, and stays or is needed there.
        assert set(new.isr) <= set(electorate.present)
        clean = {*state.isr, *state.elr} - (set(state.lost) | electorate.tail_lost)
        assert (new.unclean_epoch == new.leader_epoch) == (new.leader not in clean)
    if not electorate.tail_lost and not state.lost and not policy.unclean_leader_election_enable:
        # Whoever holds everything committed is not forgotten while too few are in the ISR (RULES 7.3).
        enough = len(new.isr) >= policy.minimum(electorate.replicas)
        assert enough or {*state.isr, *state.elr} <= {*new.isr, *new.elr}
    # Level-triggered: what was written wants no second write.
    assert elect(new, electorate, policy, 7) is None


@given(situations(), policies)
def test_a_damaged_log_leads_only_where_no_sound_member_can(
    situation: tuple[PartitionState, Electorate], policy: ElectionPolicy
) -> None:
    """RULES 7.6. That costs the ISR nobody who is there."""
    state, electorate = situation
    new = elect(state, electorate, policy, 7) or state
    sound = set(electorate.eligible) - electorate.damaged - electorate.tail_lost
    if new.leader in electorate.damaged:
        assert sound.isdisjoint(state.isr)
    if not leader_failed(state, electorate) and new.leader != state.leader:
        staying = set(state.isr) & set(electorate.present) - electorate.tail_lost
        assert {new.leader, state.leader} <= set(new.isr) | set(electorate.shutting_down)
        assert staying - set(electorate.shutting_down) <= set(new.isr)


@given(situations(), policies)
def test_a_leaving_member_is_in_the_isr_exactly_where_that_needs_it(
    situation: tuple[PartitionState, Electorate], policy: ElectionPolicy
) -> None:
    """RULES 7.8."""
    state, electorate = situation
    new = elect(state, electorate, policy, 7) or state
    if new.leader not in state.isr or new.unclean_epoch != state.unclean_epoch:
        return  # an ISR begun anew with its leader
    present = set(electorate.present) - electorate.tail_lost
    leaving = [each for each in electorate.shutting_down if each in present & set(state.isr) and each != new.leader]
    left = [each for each in leaving if each not in new.isr]
    assert left == leaving[: len(left)]  # who began first goes first
    assert not left or electorate.suffice(new.isr, policy)
    if len(left) < len(leaving):
        assert not electorate.suffice(set(new.isr) - {leaving[len(left)]}, policy)


@given(situations(), policies)
def test_nobody_leads_who_may_not(situation: tuple[PartitionState, Electorate], policy: ElectionPolicy) -> None:
    state, electorate = situation
    clean_only = ElectionPolicy(policy.min_insync_replicas, False)
    new = elect(state, electorate, clean_only, 7)
    if new is not None and new.leader not in (NO_LEADER, state.leader):
        members = {*state.isr, *state.elr} - electorate.tail_lost
        everyone_lost = not members and {*state.lost, *electorate.tail_lost} & set(electorate.replicas)
        assert new.leader in members or everyone_lost


@given(electorates())
def test_a_new_partition_is_led_by_its_first_live_replica(electorate: Electorate) -> None:
    state = initial_state(electorate, 7)
    assert state.isr
    assert state.leader == (electorate.eligible[0] if electorate.eligible else NO_LEADER)
    assert set(state.isr) == set(electorate.eligible or electorate.replicas)


@given(situations(), policies)
def test_the_preferred_leader_takes_over_only_from_the_isr(
    situation: tuple[PartitionState, Electorate], policy: ElectionPolicy
) -> None:
    state, electorate = situation
    new = elect_preferred(state, electorate, policy, 7)
    preferred = electorate.replicas[0]
    may = preferred in electorate.eligible and preferred in state.isr and preferred not in electorate.damaged
    if new is None:
        assert not may or state.leader == preferred
    else:
        assert may
        assert new.leader == preferred
        assert new.leader_epoch == state.leader_epoch + 1


@given(situations(), policies, st.sampled_from(BROKERS))
def test_a_follower_leaves_only_an_isr_that_can_spare_it(
    situation: tuple[PartitionState, Electorate], policy: ElectionPolicy, broker: int
) -> None:
    state, electorate = situation
    new = leave_isr(state, broker, electorate, policy, 7)
    if new is not None:
        assert new == state.with_(isr=new.isr, controller_epoch=7)
        assert set(state.isr) - set(new.isr) == {broker} != {state.leader}
        assert len(new.isr) >= policy.minimum(electorate.replicas)
