"""Mistakes in the production code, each as little as makes it: what `mutants.py` puts back, one at a time.

A function answers with the patches of its mistake. Where two layers guard against it, both are taken away.
"""

from __future__ import annotations

from dataclasses import replace
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

from . import storage
from .replica_control import Control

real_start_following = Partition._start_following
real_since, real_publish = FollowingLog.since, FollowingLog.publish


# (a) 5.1


def shrunken() -> list[Any]:
    def isr(proposals: IsrProposals) -> frozenset[int]:
        in_flight = proposals.in_flight
        return frozenset((proposals.committed.state if in_flight is None else in_flight.state).isr)

    return [
        patch.object(IsrProposals, "maximal_isr", property(isr)),
        patch.object(Leadership, "check_invariants", lambda _: None),  # what etcd holds is to find it
    ]


# (b) 2.4


def union_dropped() -> list[Any]:
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


def truncation_to_high_watermark() -> list[Any]:
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


def no_fence() -> list[Any]:
    return [
        patch.object(storage, "admission", lambda *_: ErrorCode.NONE),
        patch.object(storage, "propose", lambda *_: FenceVerdict.RAISED),
    ]


def forgetful_fence() -> list[Any]:
    real = storage.LogStorage.__init__

    def start(self: storage.LogStorage, scheduler: Any, disk: storage.Disk, history: Any, incarnation: str) -> None:
        disk.fences.clear()
        real(self, scheduler, disk, history, incarnation)

    return [patch.object(storage.LogStorage, "__init__", start)]


# (f), (g) 4.2, 4.5


def credulous() -> list[Any]:
    real = Leadership.fetched

    def fetched(self: Leadership, fetch: Any, now_ms: int) -> Any:
        return real(self, fetch._replace(leader_epoch=self.leader_epoch, last_epoch=-1), now_ms)

    return [patch.object(Leadership, "fetched", fetched)]


def acknowledged_by_fetch_offset() -> list[Any]:
    real = Leadership.fetched

    def fetched(self: Leadership, fetch: Any, now_ms: int) -> Any:
        return real(self, fetch._replace(acked_offset=fetch.fetch_offset), now_ms)

    return [patch.object(Leadership, "fetched", fetched)]


# (h) 2.3


def old_broker_epoch() -> list[Any]:
    real = IsrProposals.propose

    def propose(self: IsrProposals, state: Any, joining: Any) -> WriteIsr:
        del joining
        return real(self, state, {})

    def joins(self: Leadership, replica: Any) -> bool:
        caught_up = replica.log_end_offset >= max(self.high_watermark, self.epoch_start)
        return caught_up and replica.session_open and replica.fetched_since_leaving

    return [patch.object(IsrProposals, "propose", propose), patch.object(Leadership, "_joins", joins)]


# (i) 5.4


def surviving_produce() -> list[Any]:
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


def kept_acked_offset() -> list[Any]:
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


def old_epoch_again() -> list[Any]:
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


def counting_and_dropped() -> list[Any]:
    return [patch.object(DamagedLogs, "_counts", lambda self, state: False)]


def back_too_soon() -> list[Any]:
    def joins(self: Leadership, replica: Any) -> bool:
        return bool(replica.session_open and self.live.epochs.get(replica.broker_id) == replica.broker_epoch)

    return [patch.object(Leadership, "_joins", joins)]


def counted_by_what_was_cut() -> list[Any]:
    real_bind, real_fetched = Replica.bind, Replica.fetched

    def bind(self: Replica, session: Any, leader_end_offset: int) -> None:
        before = self.log_end_offset
        real_bind(self, session, leader_end_offset)
        self.log_end_offset = before

    def fetched(self: Replica, acked_offset: int, *more: Any) -> None:
        real_fetched(self, max(acked_offset, self.log_end_offset), *more)

    return [patch.object(Replica, "bind", bind), patch.object(Replica, "fetched", fetched)]


def led_by_the_damaged() -> list[Any]:
    return [patch.object(election, "_gives_way", lambda *_: False)]


def end_kept() -> list[Any]:
    return [patch.object(Follower, "registered_anew", lambda self: [])]


def taken_up_by_a_fence_under_way() -> list[Any]:
    def fence_answered(self: ReplicaManager, was_offline: bool, key: Any, answer: FenceAnswer) -> None:
        del was_offline
        self.fenced(key, answer)

    return [patch.object(ReplicaManager, "_fence_answered", fence_answered)]


# 3.4: appends that land late


def parked() -> list[Any]:
    def holds(self: AppendPipeline, item: Any, answer: Any) -> bool:
        del answer
        return self._log_end_offset != item.expected_offset + item.offsets

    return [patch.object(AppendPipeline, "_holds", holds)]


def deaf_to_duplicates() -> list[Any]:
    return [patch.object(HostedPartition, "log_ended", lambda *_: None)]


# 5.6: what a tick looks at


def never_due() -> list[Any]:
    return [patch.object(Leadership, "_next_tick_ms", lambda self, now_ms: FAR_MS)]


# 4.10, 4.11


def answered_too_early() -> list[Any]:
    """A place is answered by the request before the one that named it."""
    real = SessionFetch._look

    async def look(self: SessionFetch, params: Any) -> Any:
        for place in self._places.values():
            place.request = 0
        return await real(self, params)

    return [patch.object(SessionFetch, "_look", look)]


def heard_by_name_alone() -> list[Any]:
    return [patch.object(Replica, "fetched_since_leaving", property(lambda self: self._fetched_since_leaving))]


def grown_in_silence() -> list[Any]:
    return [patch.object(SessionFetch, "grown", lambda *_: None)]


# 1.2


def campaign_ended_by_a_refusal() -> list[Any]:
    """The task of the campaign ends where etcd refuses, and nobody begins it anew."""
    return [patch.object(etcd_errors, "may_pass", lambda error: not isinstance(error, etcd_errors.Refused))]


# 8.4


def metadata_lost() -> list[Any]:
    real = MetadataOutbox.failed

    def failed(self: MetadataOutbox, batch: MetadataBatch, now_ms: int) -> None:
        real(self, MetadataBatch(), now_ms)

    return [patch.object(MetadataOutbox, "failed", failed)]


def relisted_in_silence() -> list[Any]:
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


def removals_untold() -> list[Any]:
    def since(self: FollowingLog, version: int, *, whole: bool = False) -> Following | None:
        following = real_since(self, version, whole=whole)
        return following if following is None else replace(following, removed=())

    return [patch.object(FollowingLog, "since", since)]


def carried_over() -> list[Any]:
    def publish(self: FollowingLog, broker_epoch: int, incarnation: str, changes: Any) -> None:
        if self._registration is not None:
            self._registration = (broker_epoch, incarnation)
        real_publish(self, broker_epoch, incarnation, changes)

    return [patch.object(FollowingLog, "publish", publish)]


# 4.14


def awaited_and_throttled() -> list[Any]:
    return [patch.object(Leadership, "awaits", lambda *_: False)]


def throttles_itself_in_sync() -> list[Any]:
    def held_back_ms(self: FollowerThrottle, follower: Follower) -> int:
        return self.owed_ms() if follower.key in self._replicas else 0

    return [patch.object(FollowerThrottle, "held_back_ms", held_back_ms)]


def held_for_ever() -> list[Any]:
    return [patch.object(SessionFetch, "_let_go", lambda _: None)]


def never_paid() -> list[Any]:
    return [patch.object(TokenBucket, "_refill", lambda *_: None)]


def never_charged() -> list[Any]:
    return [patch.object(ReplicationQuota, "moved", lambda *_: None)]


# 7.2


def believed_by_its_boot() -> list[Any]:
    def tail_lost(record: BootRecord | None, present: Boot, clean: bool) -> bool:
        return real_tail_lost(None if record is None else replace(record, tail_lost=False), present, clean)

    return [
        patch.object(boot_record, "tail_lost", tail_lost),
        patch.object(boot_record, "recovery_shows_loss", lambda *found: ""),
        patch.object(Control, "_doubt", staticmethod(lambda remembered, incarnation: None)),
    ]


def believed_as_recovered() -> list[Any]:
    return [patch.object(boot_record, "recovery_shows_loss", lambda *found: "")]


def spoken_for() -> list[Any]:
    return [patch.object(boot_record, "flushes_every_append", lambda flush_messages: True)]


# 7.4


def old_lineage() -> list[Any]:
    def start_following(self: Partition, state: PartitionState, answer: FenceAnswer) -> Any:
        known = max(self._high_watermark, answer.high_watermark, answer.log_start_offset)
        actions = real_start_following(self, state, answer)
        self._high_watermark = min(known, answer.log_end_offset)
        return actions

    return [patch.object(Partition, "_start_following", start_following)]


# 7.8


def let_go_all() -> list[Any]:
    return [patch.object(election.Electorate, "suffice", lambda *_: True)]


def released_at_once() -> list[Any]:
    def release(self: ControlledShutdowns, broker_id: int) -> bool:
        return broker_id in self.leaving

    return [patch.object(ControlledShutdowns, "release", release)]
