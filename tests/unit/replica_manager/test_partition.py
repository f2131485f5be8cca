"""A partition's edges that a scenario in text would not show, and the high watermark against what etcd really holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import (
    NO_ACTIONS,
    Action,
    Fence,
    FenceAnswer,
    FetchSession,
    FollowerFetch,
    HighWatermarkAdvanced,
    Instruction,
    LeadershipStarted,
    LiveBrokers,
    PartitionSettings,
    StopFollowing,
    WriteIsr,
)
from highwater.replica_manager.partition.answers import produce_outcome
from highwater.replica_manager.partition.partition import Partition, Phase

KEY = PartitionKey(bytes(16), 0)
ME = 1


def state(leader: int = ME, leader_epoch: int = 5, isr: Sequence[int] = (1, 2), revision: int = 10) -> VersionedState:
    return VersionedState(PartitionState(leader, leader_epoch, 100 + leader, tuple(isr)), revision)


def instruction(versioned: VersionedState, min_insync_replicas: int | None = None) -> Instruction:
    return Instruction(versioned, (1, 2, 3), min_insync_replicas)


def fence_answer(leader_epoch: int = 5, incarnation: str = "storage-1", log_end_offset: int = 0) -> FenceAnswer:
    return FenceAnswer(Role.LEADER, leader_epoch, log_end_offset=log_end_offset, incarnation=incarnation)


def leading(isr: Sequence[int] = (1, 2), min_insync_replicas: int = 2) -> Partition:
    partition = Partition(KEY, "T", ME, PartitionSettings(min_insync_replicas=min_insync_replicas))
    partition.brokers_changed(LiveBrokers({1: 101, 2: 102, 3: 103}), 0)
    assert partition.instruct(instruction(state(isr=isr)), 0).actions == [StopFollowing(), Fence(Role.LEADER, 5)]
    assert partition.fenced(fence_answer(), 0)[0] == LeadershipStarted(5, "storage-1", 0)
    return partition


def fetch(broker: int, acked: int, number: int = 1, leader_epoch: int = 5) -> FollowerFetch:
    return FollowerFetch(FetchSession(broker, 100 + broker, 0, number), leader_epoch, acked, acked, -1)


def proposal(actions: Sequence[Action]) -> WriteIsr:
    (only,) = [action for action in actions if isinstance(action, WriteIsr)]
    return only


def test_the_hot_paths_ask_for_nothing_where_nothing_changes() -> None:
    partition = leading()
    assert partition.appended(5, "storage-1", 10, 0, 1) is NO_ACTIONS
    same = fetch(2, 10)
    assert partition.fetched(same, 2).actions == (HighWatermarkAdvanced(10),)
    assert partition.fetched(same, 3).actions is NO_ACTIONS
    assert partition.appended(5, "storage-1", 10, 0, 4) is NO_ACTIONS


def test_answers_of_another_leadership_count_for_nothing() -> None:
    partition = leading(isr=(1,), min_insync_replicas=1)
    assert partition.appended(4, "storage-1", 10, 0, 1) is NO_ACTIONS
    assert partition.fenced(fence_answer(4), 1) is NO_ACTIONS
    assert partition.fenced(fence_answer(5, log_end_offset=7), 1) is NO_ACTIONS  # a second answer
    assert partition.log_end_offset == 0
    assert partition.append_unknown(4, 1) is NO_ACTIONS
    assert partition.isr_written(99, 11, 1) is NO_ACTIONS


def test_an_append_answered_by_another_incarnation_ends_leadership() -> None:
    partition = leading()
    partition.appended(5, "storage-2", 10, 0, 1)
    assert partition.phase is Phase.RESIGNED
    assert partition.log_end_offset == 0


def test_a_fence_answered_by_a_log_storage_that_is_gone_is_not_taken() -> None:
    partition = Partition(KEY, "T", ME, PartitionSettings())
    partition.log_storage_restarted("storage-2")
    partition.instruct(instruction(state()), 0)
    assert partition.fenced(fence_answer(incarnation="storage-1"), 0) is NO_ACTIONS
    assert partition.phase is Phase.UNFENCED


def test_while_settling_one_fence_is_under_way_at_a_time() -> None:
    partition = leading()
    assert Fence(Role.LEADER, 5) in partition.append_unknown(5, 0)
    assert partition.tick(1_000) is NO_ACTIONS  # not answered yet
    partition.fenced(FenceAnswer(Role.LEADER, 5, ErrorCode.LOG_STORAGE_ERROR), 1_000)
    assert partition.tick(1_000) is NO_ACTIONS
    assert partition.tick(1_250) == (Fence(Role.LEADER, 5),)
    assert partition.tick(2_000) is NO_ACTIONS
    assert partition.fenced(fence_answer(log_end_offset=7), 2_000) == (LeadershipStarted(5, "storage-1", 7),)
    assert partition.phase is Phase.LEADER


def test_a_log_that_was_cut_behind_its_leader_s_back_is_not_led_on() -> None:
    """log-storage's port trusts whoever reaches it: a log may be gone, and made anew, under its leader (RULES 3.5)."""
    partition = leading()
    partition.appended(5, "storage-1", 10, 0, 0)
    partition.append_unknown(5, 0)
    partition.fenced(fence_answer(log_end_offset=9), 1)
    assert partition.phase is Phase.RESIGNED


def test_a_late_outcome_of_an_earlier_leadership_s_proposal_is_not_taken_for_a_new_one_s() -> None:
    partition = leading(isr=(1,), min_insync_replicas=1)
    old = proposal(partition.fetched(fetch(2, 0), 1).actions)
    partition.instruct(instruction(state(leader_epoch=6, isr=(1,), revision=20)), 2)
    partition.fenced(fence_answer(6), 2)
    new = proposal(partition.fetched(fetch(2, 0, leader_epoch=6), 3).actions)
    assert new.proposal_id > old.proposal_id
    assert partition.isr_written(old.proposal_id, 15, 4) is NO_ACTIONS
    assert partition.committed == state(leader_epoch=6, isr=(1,), revision=20)
    partition.isr_written(new.proposal_id, 25, 5)
    committed = partition.committed
    assert committed is not None
    assert (committed.state.isr, committed.revision) == ((1, 2), 25)


def test_an_older_watch_event_changes_nothing() -> None:
    partition = leading()
    assert partition.state_seen(state(leader_epoch=4, isr=(3,), revision=9), 1) is NO_ACTIONS
    partition.state_seen(state(isr=(1,), revision=8), 1)
    assert partition.committed == state()


def test_leading_outside_the_own_isr_is_refused() -> None:
    partition = Partition(KEY, "T", ME, PartitionSettings())
    assert partition.instruct(instruction(state(isr=(2, 3))), 0).error is ErrorCode.INVALID_REQUEST
    assert partition.phase is Phase.OFFLINE


def test_another_leader_under_the_same_epoch_is_refused_and_changes_nothing() -> None:
    partition = leading()
    verdict = partition.instruct(instruction(state(leader=2, isr=(1, 2, 3), revision=11), min_insync_replicas=1), 0)
    assert verdict == (ErrorCode.INVALID_REQUEST, NO_ACTIONS)
    assert partition.leader == ME
    assert partition.instruct(instruction(state(revision=11)), 0).error is ErrorCode.NONE


def test_a_produce_of_another_epoch_or_after_the_end_of_leadership_fails() -> None:
    partition = leading()
    partition.appended(5, "storage-1", 10, 0, 1)
    assert produce_outcome(partition, 5, 10) is None
    assert produce_outcome(partition, 4, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.fetched(fetch(2, 10), 2)
    assert produce_outcome(partition, 5, 10) is ErrorCode.NONE
    partition.resign()
    assert produce_outcome(partition, 5, 10) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_produce_that_completes_below_the_minimum_says_so() -> None:
    partition = leading()
    partition.appended(5, "storage-1", 10, 0, 1)
    partition.fetched(fetch(2, 10), 2)
    partition.state_seen(state(isr=(1,), revision=11), 3)
    assert produce_outcome(partition, 5, 10) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_the_minimum_is_capped_at_the_assigned_replicas_and_defaults_to_the_broker_s() -> None:
    partition = leading(min_insync_replicas=2)
    assert partition.min_insync_replicas == 2
    partition.instruct(instruction(state(), 9), 1)
    assert partition.min_insync_replicas == 3
    partition.instruct(instruction(state()), 1)
    assert partition.min_insync_replicas == 2


def test_the_low_watermark_waits_for_every_registered_replica() -> None:
    partition = leading()
    leadership = partition.leadership
    assert leadership is not None
    partition.appended(5, "storage-1", 10, 6, 1)
    partition.fetched(fetch(2, 10)._replace(log_start_offset=4), 2)
    assert leadership.low_watermark() == -1
    partition.brokers_changed(LiveBrokers({1: 101, 2: 102}), 3)
    assert leadership.low_watermark() == 4


@pytest.mark.parametrize("acked", [-1, 11])
def test_an_acked_offset_that_cannot_be_is_refused(acked: int) -> None:
    partition = leading()
    partition.appended(5, "storage-1", 20, 0, 1)
    verdict = partition.fetched(fetch(2, 10)._replace(acked_offset=acked), 2)
    assert verdict.error is ErrorCode.INVALID_REQUEST
    assert partition.followers[2].log_end_offset == -1


class AgainstEtcd(RuleBasedStateMachine):
    """One leader, and an etcd that it sees only by the outcomes and reads it is given. Whatever is lost or late: every
    member of the ISR and of the elr that etcd really holds has acknowledged all below the high watermark."""

    BROKERS = (2, 3)

    @initialize(min_insync_replicas=st.integers(1, 2), isr=st.sets(st.sampled_from(BROKERS)))
    def start(self, min_insync_replicas: int, isr: set[int]) -> None:
        self.now_ms = 0
        self.revision = 10
        self.etcd = PartitionState(ME, 5, 101, (ME, *sorted(isr)))
        self.epochs = {broker: 100 + broker for broker in (ME, *self.BROKERS)}
        self.acked = dict.fromkeys(self.BROKERS, 0)  # what each log holds; it may be more than the leader knows
        self.numbers = dict.fromkeys(self.BROKERS, 1)
        self.log_end = 0
        self.in_flight: WriteIsr | None = None
        self.late: list[WriteIsr] = []
        self.shown: list[VersionedState] = []
        lag = PartitionSettings(replica_lag_time_max_ms=2000)
        self.partition = Partition(KEY, "T", ME, lag)
        self.brokers_changed()
        self.instruct(min_insync_replicas)
        self.carry_out(self.partition.fenced(fence_answer(), self.now_ms))

    def carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, WriteIsr):
                assert self.in_flight is None
                self.in_flight = action

    def session(self, broker: int) -> FetchSession:
        return FetchSession(broker, self.epochs[broker], 0, self.numbers[broker])

    def brokers_changed(self) -> None:
        self.carry_out(self.partition.brokers_changed(LiveBrokers(dict(self.epochs)), self.now_ms))

    def instruct(self, min_insync_replicas: int) -> None:
        versioned = VersionedState(self.etcd, self.revision)
        self.carry_out(
            self.partition.instruct(
                Instruction(versioned, (ME, *self.BROKERS), min_insync_replicas), self.now_ms
            ).actions
        )

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.log_end += count
        self.carry_out(self.partition.appended(5, "storage-1", self.log_end, 0, self.now_ms))

    @rule(broker=st.sampled_from(BROKERS), count=st.integers(0, 20))
    def replicate(self, broker: int, count: int) -> None:
        acked = self.acked[broker] = min(self.log_end, self.acked[broker] + count)
        made = FollowerFetch(self.session(broker), 5, acked, acked, 5 if acked else -1)
        verdict = self.partition.fetched(made, self.now_ms)
        assert verdict.error is ErrorCode.NONE
        assert verdict.diverging is None
        self.carry_out(verdict.actions)

    @rule(broker=st.sampled_from(BROKERS))
    def close(self, broker: int) -> None:
        self.carry_out(self.partition.session_closed(self.session(broker), self.now_ms))
        self.numbers[broker] += 1

    def restart(self, broker: int, known: bool) -> None:
        self.epochs[broker] += 100
        self.numbers[broker] += 1
        if known:
            self.brokers_changed()

    @rule(duration_ms=st.sampled_from([100, 600, 2500]))
    def tick(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.carry_out(self.partition.tick(self.now_ms))

    def compare_and_put(self, made: WriteIsr) -> bool:
        holds = made.compare_revision == self.revision
        holds &= all(self.epochs[broker] == epoch for broker, epoch in made.broker_epochs.items())
        if holds:
            self.put(made.state)
        return holds

    def put(self, written: PartitionState) -> None:
        self.revision += 1
        self.etcd = written
        self.shown.append(VersionedState(written, self.revision))

    @rule(how=st.sampled_from(["known", "unknown", "late"]))
    def outcome(self, how: str) -> None:
        if self.in_flight is None:
            return
        made, self.in_flight = self.in_flight, None
        if how == "late":
            self.late.append(made)
            self.carry_out(self.partition.isr_unknown(made.proposal_id, self.now_ms))
            return
        written = self.compare_and_put(made)
        if how == "unknown":
            self.carry_out(self.partition.isr_unknown(made.proposal_id, self.now_ms))
        elif written:
            self.carry_out(self.partition.isr_written(made.proposal_id, self.revision, self.now_ms))
        else:
            self.carry_out(self.partition.isr_refused(made.proposal_id, self.now_ms))

    @rule()
    def late_write(self) -> None:
        if self.late:
            self.compare_and_put(self.late.pop())

    @rule()
    def read(self) -> None:
        self.carry_out(self.partition.state_seen(VersionedState(self.etcd, self.revision), self.now_ms))

    @rule(
        what=st.sampled_from(["restart", "restart unseen", "remove", "minimum 1", "minimum 2", "minimum 3"]),
        broker=st.sampled_from(BROKERS),
    )
    def rarer(self, what: str, broker: int) -> None:
        if what.startswith("restart"):
            self.restart(broker, known=what == "restart")
        elif what == "remove":
            self.controller_removes(broker)
        else:
            self.instruct(int(what[-1]))

    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        """Any state that there ever was, as late as it likes."""
        if self.shown:
            self.carry_out(self.partition.state_seen(data.draw(st.sampled_from(self.shown)), self.now_ms))

    def controller_removes(self, broker: int) -> None:
        isr = tuple(member for member in self.etcd.isr if member != broker)
        self.put(self.etcd.with_(isr=isr, elr=tuple(set(self.etcd.elr) - {broker}), lost=(broker,)))

    @invariant()
    def members_hold_what_is_committed(self) -> None:
        self.partition.check_invariants()
        for broker in (*self.etcd.isr, *self.etcd.elr):
            assert broker == ME or self.acked[broker] >= self.partition.high_watermark  # invariant 2; RULES 7.3
        assert ME in self.etcd.isr


TestAgainstEtcd = AgainstEtcd.TestCase
TestAgainstEtcd.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
