"""Known bugs, put back into the production code one at a time. The simulation must find each (`test_mutants.py`).

A mutant changes as little as makes the mistake; where two layers guard against it, both are taken away. `bias` turns
the seeds' settings towards what the mistake needs, so that it is met within few of them; the code as it is must
pass the very same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest.mock import patch

from highwater.controller.sending.metadata_outbox import MetadataBatch, MetadataOutbox
from highwater.controller.state_machines import election
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.controlled_shutdown import ControlledShutdowns
from highwater.errors import ErrorCode
from highwater.fetcher.follower import actions as fetcher_actions
from highwater.fetcher.follower.follower import Follower, FollowerState
from highwater.fetcher.follower_throttle import FollowerThrottle
from highwater.log_storage.fence import Fence, FenceVerdict
from highwater.log_storage.fence import propose as real_propose
from highwater.log_storage.files import boot_record
from highwater.log_storage.files.boot_record import Boot, BootRecord
from highwater.log_storage.files.boot_record import tail_lost as real_tail_lost
from highwater.metadata.schema.models import PartitionState
from highwater.metadata.store import etcd_errors
from highwater.model.fence_role import Role
from highwater.quotas.replication_quota import ReplicationQuota
from highwater.quotas.token_bucket import TokenBucket
from highwater.replica_manager.partition.actions import FAR_MS, FenceAnswer, HighWatermarkAdvanced, WriteIsr
from highwater.replica_manager.partition.isr import IsrProposals
from highwater.replica_manager.partition.leadership import Leadership
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.partition.replica import Replica
from highwater.replica_manager.replicas import hosted_partition
from highwater.replica_manager.replicas.damaged_logs import DamagedLogs
from highwater.replica_manager.replicas.following import Following
from highwater.replica_manager.replicas.following_log import FollowingLog
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.session_fetch import SessionFetch
from highwater.replica_manager.storage.append_pipeline import AppendPipeline

from . import biases, storage
from .groups import mutants as groups
from .replica_control import Control
from .run import Result, run_seed
from .settings import Settings, drain_alone, draw
from .world import STEPS

real_start_following = Partition._start_following
real_since, real_publish = FollowingLog.since, FollowingLog.publish

Patches = Callable[[], list[Any]]


@dataclass(frozen=True)
class Mutant:
    name: str
    rule: str
    patches: Patches
    caught_by: tuple[str, ...]  # the beginnings of the invariants that may catch it
    bias: Callable[[Settings], None]

    def settings(self, seed: int) -> Settings:
        settings = draw(Random(seed * 7919 + 1))
        settings.unclean = False
        settings.groups = None
        self.bias(settings)
        return settings

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.patches():
                stack.enter_context(change)
            yield

    def run(self, seed: int, verbose: bool = False) -> Result:
        with self.applied():
            return run_seed(seed, STEPS, verbose, self.settings(seed), f' --mutant "{self.name}"')

    def run_without(self, seed: int, verbose: bool = False) -> Result:
        """The same seed, settings and all, of the code as it is."""
        return run_seed(seed, STEPS, verbose, self.settings(seed), f' --bias "{self.name}"')


# (a) 5.1


def _shrunken() -> list[Any]:
    def isr(proposals: IsrProposals) -> frozenset[int]:
        in_flight = proposals.in_flight
        return frozenset((proposals.committed.state if in_flight is None else in_flight.state).isr)

    return [
        patch.object(IsrProposals, "maximal_isr", property(isr)),
        patch.object(Leadership, "check_invariants", lambda _: None),  # what etcd holds is to find it
    ]


# (b) 2.4


def _union_dropped() -> list[Any]:
    def failed(self: IsrProposals, proposal_id: int, *, refused: bool) -> bool:
        if self._awaited_id != proposal_id:
            return False
        self._awaited_id = None
        self.in_flight = None
        self._refused_isr = frozenset(self.committed.state.isr)  # read again, and forget what was proposed
        return True

    return [
        patch.object(IsrProposals, "failed", failed),
        patch.object(Leadership, "check_invariants", lambda _: None),  # what etcd holds is to find it
    ]


# (c) 4.3


def _truncation_to_high_watermark() -> list[Any]:
    real = Follower.fenced

    def fenced(self: Follower, answer: fetcher_actions.FenceAnswer, now_ms: int) -> list[fetcher_actions.Action]:
        actions = real(self, answer, now_ms)
        log, followed = answer.log, self.followed
        if self.state is FollowerState.FETCHING and log is not None and followed is not None and not actions:
            cut_for = getattr(self, "_cut_for_epoch", -1)
            self._cut_for_epoch = followed.leader_epoch  # type: ignore[attr-defined]
            if cut_for != followed.leader_epoch and log.high_watermark < log.log_end_offset:
                self.state = FollowerState.TRUNCATING
                return [
                    fetcher_actions.TruncateTo(
                        self.generation,
                        followed.leader_epoch,
                        log.high_watermark,
                        followed.unclean_epoch,
                        log.log_end_offset,
                        log.last_epoch,
                    )
                ]
        return actions

    return [patch.object(Follower, "fenced", fenced)]


# (d), (e) 3.1


def _no_fence() -> list[Any]:
    return [
        patch.object(storage, "admission", lambda *_: ErrorCode.NONE),
        patch.object(storage, "propose", lambda *_: FenceVerdict.RAISED),
    ]


def _forgetful_fence() -> list[Any]:
    real = storage.LogStorage.__init__

    def start(self: storage.LogStorage, scheduler: Any, disk: storage.Disk, history: Any, incarnation: str) -> None:
        disk.fences.clear()
        real(self, scheduler, disk, history, incarnation)

    return [patch.object(storage.LogStorage, "__init__", start)]


# (f), (g) 4.2, 4.5


def _credulous() -> list[Any]:
    real = Leadership.fetched

    def fetched(self: Leadership, fetch: Any, now_ms: int) -> Any:
        return real(self, fetch._replace(leader_epoch=self.leader_epoch, last_epoch=-1), now_ms)

    return [patch.object(Leadership, "fetched", fetched)]


def _acknowledged_by_fetch_offset() -> list[Any]:
    real = Leadership.fetched

    def fetched(self: Leadership, fetch: Any, now_ms: int) -> Any:
        return real(self, fetch._replace(acked_offset=fetch.fetch_offset), now_ms)

    return [patch.object(Leadership, "fetched", fetched)]


# (h) 2.3


def _old_broker_epoch() -> list[Any]:
    real = IsrProposals.propose

    def propose(self: IsrProposals, state: Any, joining: Any) -> WriteIsr:
        del joining
        return real(self, state, {})

    def joins(self: Leadership, replica: Any) -> bool:
        caught_up = replica.log_end_offset >= max(self.high_watermark, self.epoch_start)
        return caught_up and replica.session_open and replica.fetched_since_leaving

    return [patch.object(IsrProposals, "propose", propose), patch.object(Leadership, "_joins", joins)]


# (i) 5.4


def _surviving_produce() -> list[Any]:
    def interrupted(self: HostedPartition) -> None:
        self._tail.unbind()
        if self.pipeline is not None:
            pipeline, self.pipeline = self.pipeline, None
            pipeline.close()
        self.wake_all()

    real = hosted_partition.produce_outcome

    def outcome(partition: Partition, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        del leader_epoch
        return real(partition, partition.leader_epoch, required_offset)

    return [
        patch.object(HostedPartition, "interrupted", interrupted),
        patch.object(hosted_partition, "produce_outcome", outcome),
    ]


# (j) 4.1


def _kept_acked_offset() -> list[Any]:
    real_position, real_fetched = Follower.position, Leadership.fetched

    def position(self: Follower) -> fetcher_actions.FetchPosition | None:
        found = real_position(self)
        if found is None:
            return None
        kept = max(getattr(self, "_kept", 0), found.acked_offset)
        self._kept = kept  # type: ignore[attr-defined]
        return replace(found, acked_offset=kept)

    def fetched(self: Leadership, fetch: Any, now_ms: int) -> Any:
        """Without the refusal of an acked offset above the fetch offset."""
        verdict = real_fetched(self, fetch._replace(acked_offset=min(fetch.acked_offset, fetch.fetch_offset)), now_ms)
        if verdict.error is ErrorCode.NONE and verdict.diverging is None and fetch.acked_offset > fetch.fetch_offset:
            replica = self.followers[fetch.session.broker_id]
            replica.log_end_offset = min(fetch.acked_offset, self.log_end_offset)
            if self._advance_high_watermark(now_ms):
                return verdict._replace(actions=(*verdict.actions, HighWatermarkAdvanced(self.high_watermark)))
        return verdict

    return [patch.object(Follower, "position", position), patch.object(Leadership, "fetched", fetched)]


# (k) 3.5


def _old_epoch_again() -> list[Any]:
    def propose(current: Fence | None, proposed: Fence) -> FenceVerdict:
        verdict = real_propose(current, proposed)
        again = current is not None and (current.leader_epoch, current.role) == (proposed.leader_epoch, proposed.role)
        return FenceVerdict.RAISED if again else verdict

    def admission(fence: Fence | None, role: Role, leader_epoch: int, incarnation: str) -> ErrorCode:
        del incarnation
        if fence is None:
            return ErrorCode.UNKNOWN_FENCE
        return ErrorCode.NONE if (fence.leader_epoch, fence.role) == (leader_epoch, role) else ErrorCode.STALE_FENCE

    return [
        patch.object(storage, "propose", propose),
        patch.object(storage, "admission", admission),
        patch.object(election, "_restarted", lambda *_: False),
    ]


# 7.6


def _counting_and_dropped() -> list[Any]:
    return [patch.object(DamagedLogs, "_counts", lambda self, state: False)]


def _back_too_soon() -> list[Any]:
    def joins(self: Leadership, replica: Any) -> bool:
        return bool(replica.session_open and self.live.epochs.get(replica.broker_id) == replica.broker_epoch)

    return [patch.object(Leadership, "_joins", joins)]


def _counted_by_what_was_cut() -> list[Any]:
    real_bind, real_fetched = Replica.bind, Replica.fetched

    def bind(self: Replica, session: Any, leader_end_offset: int) -> None:
        before = self.log_end_offset
        real_bind(self, session, leader_end_offset)
        self.log_end_offset = before

    def fetched(self: Replica, acked_offset: int, *more: Any) -> None:
        real_fetched(self, max(acked_offset, self.log_end_offset), *more)

    return [patch.object(Replica, "bind", bind), patch.object(Replica, "fetched", fetched)]


def _end_kept() -> list[Any]:
    return [patch.object(Follower, "registered_anew", lambda self: [])]


def _taken_up_by_a_fence_under_way() -> list[Any]:
    def fence_answered(self: ReplicaManager, was_offline: bool, key: Any, answer: FenceAnswer) -> None:
        del was_offline
        self.fenced(key, answer)

    return [patch.object(ReplicaManager, "_fence_answered", fence_answered)]


# 3.4: appends that land late


def _parked() -> list[Any]:
    def holds(self: AppendPipeline, item: Any, answer: Any) -> bool:
        del answer
        return self._log_end_offset != item.expected_offset + item.offsets

    return [patch.object(AppendPipeline, "_holds", holds)]


def _deaf_to_duplicates() -> list[Any]:
    return [patch.object(HostedPartition, "log_ended", lambda *_: None)]


# 5.6: what a tick looks at


def _never_due() -> list[Any]:
    return [patch.object(Leadership, "_next_tick_ms", lambda self, now_ms: FAR_MS)]


# 4.10, 4.11


def _answered_too_early() -> list[Any]:
    """A place is answered by the request before the one that named it."""
    real = SessionFetch._look

    async def look(self: SessionFetch, params: Any) -> Any:
        for place in self._places.values():
            place.request = 0
        return await real(self, params)

    return [patch.object(SessionFetch, "_look", look)]


def _heard_by_name_alone() -> list[Any]:
    return [patch.object(Replica, "fetched_since_leaving", property(lambda self: self._fetched_since_leaving))]


def _grown_in_silence() -> list[Any]:
    return [patch.object(SessionFetch, "grown", lambda *_: None)]


# 1.2


def _campaign_ended_by_a_refusal() -> list[Any]:
    """The task of the campaign ends where etcd refuses, and nobody begins it anew."""
    return [patch.object(etcd_errors, "may_pass", lambda error: not isinstance(error, etcd_errors.Refused))]


# 8.4


def _metadata_lost() -> list[Any]:
    real = MetadataOutbox.failed

    def failed(self: MetadataOutbox, batch: MetadataBatch, now_ms: int) -> None:
        real(self, MetadataBatch(), now_ms)

    return [patch.object(MetadataOutbox, "failed", failed)]


def _relisted_in_silence() -> list[Any]:
    """What is found changed is taken, and told to nobody."""
    real = Cluster.loading

    def loading(self: Cluster, snapshot: Any, now_ms: int) -> Any:
        for name, config in snapshot.topic_configs.items():
            topic = self.topics.named(name)
            if topic is not None:
                topic.config = config
        return real(self, snapshot, now_ms)

    return [patch.object(Cluster, "loading", loading)]


# 4.12


def _removals_untold() -> list[Any]:
    def since(self: FollowingLog, version: int, *, whole: bool = False) -> Following | None:
        following = real_since(self, version, whole=whole)
        return following if following is None else replace(following, removed=())

    return [patch.object(FollowingLog, "since", since)]


def _carried_over() -> list[Any]:
    def publish(self: FollowingLog, broker_epoch: int, incarnation: str, changes: Any) -> None:
        if self._registration is not None:
            self._registration = (broker_epoch, incarnation)
        real_publish(self, broker_epoch, incarnation, changes)

    return [patch.object(FollowingLog, "publish", publish)]


# 4.14


def _awaited_and_throttled() -> list[Any]:
    return [patch.object(Leadership, "awaits", lambda *_: False)]


def _throttles_itself_in_sync() -> list[Any]:
    def held_back_ms(self: FollowerThrottle, follower: Follower) -> int:
        return self.owed_ms() if follower.key in self._replicas else 0

    return [patch.object(FollowerThrottle, "held_back_ms", held_back_ms)]


def _held_for_ever() -> list[Any]:
    return [patch.object(SessionFetch, "_let_go", lambda _: None)]


def _never_paid() -> list[Any]:
    return [patch.object(TokenBucket, "_refill", lambda *_: None)]


def _never_charged() -> list[Any]:
    return [patch.object(ReplicationQuota, "moved", lambda *_: None)]


# 7.2


def _believed_by_its_boot() -> list[Any]:
    def tail_lost(record: BootRecord | None, present: Boot, clean: bool) -> bool:
        return real_tail_lost(None if record is None else replace(record, tail_lost=False), present, clean)

    return [
        patch.object(boot_record, "tail_lost", tail_lost),
        patch.object(boot_record, "recovery_shows_loss", lambda *found: ""),
        patch.object(Control, "_doubt", staticmethod(lambda remembered, incarnation: None)),
    ]


def _believed_as_recovered() -> list[Any]:
    return [patch.object(boot_record, "recovery_shows_loss", lambda *found: "")]


def _spoken_for() -> list[Any]:
    return [patch.object(boot_record, "flushes_every_append", lambda flush_messages: True)]


# 7.4


def _old_lineage() -> list[Any]:
    def start_following(self: Partition, state: PartitionState, answer: FenceAnswer) -> Any:
        known = max(self._high_watermark, answer.high_watermark, answer.log_start_offset)
        actions = real_start_following(self, state, answer)
        self._high_watermark = min(known, answer.log_end_offset)
        return actions

    return [patch.object(Partition, "_start_following", start_following)]


# 7.8


def _let_go_all() -> list[Any]:
    return [patch.object(election.Electorate, "suffice", lambda *_: True)]


def _released_at_once() -> list[Any]:
    def release(self: ControlledShutdowns, broker_id: int) -> bool:
        return broker_id in self.leaving

    return [patch.object(ControlledShutdowns, "release", release)]


MUTANTS = (
    Mutant("HW from the shrunken ISR before etcd agreed", "5.1", _shrunken, ("1", "2"), biases.busy),
    Mutant(
        "the union dropped after a CAS of unknown outcome", "2.4", _union_dropped, ("1", "2"), biases.unknown_writes
    ),
    Mutant(
        "truncation to HW instead of by epoch", "4.3", _truncation_to_high_watermark, ("1", "2", "4"), biases.elections
    ),
    Mutant("no fence", "3.1", _no_fence, ("9", "5", "4"), biases.zombies),
    Mutant("a fence that forgets on restart", "3.1", _forgetful_fence, ("5", "9"), biases.zombies),
    Mutant(
        "a fetch believed without its leader epoch and last epoch", "4.2", _credulous, ("1", "2", "4"), biases.elections
    ),
    Mutant("acknowledgement by fetch offset", "4.5", _acknowledged_by_fetch_offset, ("1", "2"), biases.pipelined),
    Mutant("an old broker epoch let into the ISR", "2.3", _old_broker_epoch, ("1", "2"), biases.lost_tails),
    Mutant(
        "a waiting produce that survives an interrupted leadership",
        "5.4",
        _surviving_produce,
        ("1",),
        biases.handed_back,
    ),
    Mutant("an acked offset kept across a truncation", "4.1", _kept_acked_offset, ("1", "2"), biases.elections),
    Mutant("leading again under the old epoch after a restart", "3.5", _old_epoch_again, ("5", "9"), biases.restarts),
    Mutant("a damaged log cut while it counts", "7.6", _counting_and_dropped, ("1", "2"), biases.damaged),
    Mutant("a replica back in the ISR before it has caught up", "5.6", _back_too_soon, ("1", "2"), biases.damaged),
    Mutant(
        "a campaign that ends where etcd refuses", "1.2", _campaign_ended_by_a_refusal, ("liveness",), biases.full_etcd
    ),
    Mutant(
        "a configuration found by re-listing told to nobody",
        "8.4",
        _relisted_in_silence,
        ("liveness",),
        biases.lost_watches,
    ),
    Mutant("metadata lost with an unanswered request", "8.10", _metadata_lost, ("liveness",), biases.lost_messages),
    Mutant("a failed disk believed under the same boot", "7.2", _believed_by_its_boot, ("1", "2"), biases.disks),
    Mutant("recovery that cuts without a word", "7.2", _believed_as_recovered, ("1", "2"), biases.disks),
    Mutant("a topic that flushes less often spoken for", "7.2", _spoken_for, ("1", "2"), biases.overridden),
    Mutant("the old lineage's high watermark kept", "7.4", _old_lineage, ("1", "2"), biases.unclean_across_gaps),
    Mutant("a cut replica counted by what it had before", "7.6", _counted_by_what_was_cut, ("1", "2"), biases.damaged),
    Mutant(
        "a damaged log taken up by a fence that was under way",
        "7.6",
        _taken_up_by_a_fence_under_way,
        ("1", "2"),
        biases.damaged_while_fenced,
    ),
    Mutant("an end that is kept over a new registration", "4.1", _end_kept, ("1", "2"), biases.cut_unheard),
    Mutant("an append parked behind one that landed late", "3.4", _parked, ("produce (parked)",), biases.late_appends),
    Mutant("a leaving broker taken out of an ISR that needs it", "7.8", _let_go_all, ("shutdown",), drain_alone),
    Mutant("a broker that may stop although an ISR needs it", "7.8", _released_at_once, ("shutdown",), drain_alone),
    Mutant("a member whose lag is not looked at", "5.6", _never_due, ("tick (due)",), biases.busy),
    Mutant("a place answered before its request", "4.10", _answered_too_early, ("liveness",), biases.pipelined),
    Mutant("growth that no session hears of", "4.10", _grown_in_silence, ("liveness", "produce"), biases.sessions),
    Mutant("a silent member that has to name again", "4.11", _heard_by_name_alone, ("liveness",), biases.sessions),
    Mutant(
        "a partition followed no more that no fetcher hears of",
        "4.12",
        _removals_untold,
        ("following",),
        biases.elections,
    ),
    Mutant("changes told across a registration", "4.12", _carried_over, ("following",), biases.restarts),
    Mutant(
        "a leader that holds back what commits wait for",
        "4.14",
        _awaited_and_throttled,
        ("throttle (in sync)",),
        biases.throttled,
    ),
    Mutant(
        "a member of the ISR that throttles itself",
        "4.14",
        _throttles_itself_in_sync,
        ("throttle (in sync)",),
        biases.throttled,
    ),
    Mutant(
        "a throttled replica that is not looked at again",
        "4.14",
        _held_for_ever,
        ("throttle (held)", "liveness"),
        biases.throttled,
    ),
    Mutant("a throttle's debt that is never paid", "4.14", _never_paid, ("liveness",), biases.throttled),
    Mutant("a throttle that charges nothing", "4.14", _never_charged, ("throttle (rate)",), biases.throttled),
    Mutant(
        "a leader deaf to what duplicates tell", "3.4", _deaf_to_duplicates, ("produce (log end)",), biases.late_appends
    ),
    Mutant("a partition given before it is released", "11.4", groups.given_before_released, ("11.4",), groups.calm),
    Mutant("a stream's end taken for a leave", "11.5", groups.break_is_leave, ("11.4",), groups.calm),
    Mutant("a commit of one who was fenced", "11.6", groups.commit_of_the_fenced, ("11.6", "10"), groups.overstaying),
    Mutant("an answer before its records are committed", "11.2", groups.answered_before_commit, ("11.2",), groups.calm),
    Mutant("a shard that serves on after a failed append", "11.2", groups.serves_on, ("11.2",), groups.failing),
    Mutant(
        "a shard that serves what may be taken back",
        "11.2",
        groups.served_too_early,
        ("11.2",),
        groups.moving,
    ),
    Mutant("offsets expired in a rebalance", "11.10", groups.expired_in_a_rebalance, ("10",), groups.idle),
    Mutant("offsets reset while they are loaded", "11.12", groups.reset_while_loading, ("10",), groups.loading),
    Mutant("compaction that drops a key's last record", "11.1", groups.last_dropped, ("11.1", "10"), groups.compacting),
    Mutant("tombstones that go at once", "11.1", groups.tombstones_at_once, ("compaction",), groups.compacting),
    Mutant("a sign of life that two coordinators hear", "11.12", groups.heard_by_two, ("11.4",), groups.isolated),
)

__all__ = ["MUTANTS", "Mutant"]
