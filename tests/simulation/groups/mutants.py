"""Known mistakes in the coordination of groups, put back into the production code one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from highwater.errors import ErrorCode
from highwater.groups import offsets, reconciliation
from highwater.groups.config import GroupConfig
from highwater.groups.group import Group
from highwater.groups.member import next_assignment as real_next_assignment
from highwater.groups.offsets import Offsets
from highwater.groups.requests import LEAVING, FetchAnswer, FetchedOffset, FetchOffsets, GroupState, Heartbeat
from highwater.groups.shard import GroupShard
from highwater.groups.topics import TopicImage
from highwater.log_storage.compaction.cleaner_pass import Cleaner
from highwater.replica_manager.groups.hosted_shard import HostedShard
from highwater.replica_manager.groups.member_streams import MemberStream, MemberStreams
from highwater.replica_manager.groups.shard_log import ShardLog

from ..settings import Settings
from .settings import GroupSettings

# 11.4, 11.5, 11.6


def given_before_released() -> list[Any]:
    def next_assignment(member: Any, target: Any, target_epoch: int, owners: Any, owned: Any) -> Any:
        del owners
        return real_next_assignment(member, target, target_epoch, {}, owned)

    return [patch.object(reconciliation, "next_assignment", next_assignment)]


def break_is_leave() -> list[Any]:
    real_init, real_closed = HostedShard.__init__, MemberStreams._closed

    def init(self: HostedShard, *args: Any) -> None:
        real_init(self, *args)
        self.streams.shard = self  # type: ignore[attr-defined]

    def closed(self: MemberStreams, group: str, member_id: str, stream: MemberStream) -> None:
        real_closed(self, group, member_id, stream)
        self.shard.ask(Heartbeat(group, member_id, LEAVING), lambda _: None)  # type: ignore[attr-defined]

    return [patch.object(HostedShard, "__init__", init), patch.object(MemberStreams, "_closed", closed)]


def commit_of_the_fenced() -> list[Any]:
    return [
        patch.object(Offsets, "_check_member", lambda *_: None),
        patch.object(Offsets, "_check_owner", lambda *_: None),
    ]


# 11.2


def answered_before_commit() -> list[Any]:
    def when_committed(self: ShardLog, number: int, told: Callable[[ErrorCode], None]) -> None:
        del number
        told(self._ended or ErrorCode.NONE)

    return [patch.object(ShardLog, "when_committed", when_committed)]


def serves_on() -> list[Any]:
    real = ShardLog.end

    def end(self: ShardLog, error: ErrorCode) -> None:
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            real(self, error)

    return [patch.object(ShardLog, "end", end)]


def served_too_early() -> list[Any]:
    async def committed(self: ShardLog) -> ErrorCode:
        return ErrorCode.NONE

    return [patch.object(ShardLog, "committed", committed)]


# 11.10


def expired_in_a_rebalance() -> list[Any]:
    real = Offsets._expiry_ms

    def expiry_ms(self: Offsets, group: Group, partition: Any, subscribed: Any, now_ms: int) -> int:
        if group.state in (GroupState.EMPTY, GroupState.STABLE):
            return real(self, group, partition, subscribed, now_ms)
        return group.offsets[partition].commit_time_ms + self._config.offsets_retention_ms

    return [patch.object(Offsets, "_expiry_ms", expiry_ms)]


# 11.11


def removed_by_name() -> list[Any]:
    """With a topic go the offsets of another one of its name that this broker has not heard of yet."""

    def remove_gone(self: Offsets, group: Group, topics: Any, now_ms: int) -> Iterator[None]:
        gone = [each for each in group.offsets if each.topic in topics and self._image.named(each.topic) is None]
        return self._remove_each(group, gone, now_ms)

    return [patch.object(Offsets, "remove_gone", remove_gone)]


def told_by_name() -> list[Any]:
    def fetched_offset(partition: Any, kept: Any, image: TopicImage) -> FetchedOffset:
        there = kept is None or image.named(partition.topic) is None or image.has(partition.topic, kept.topic_id)
        return FetchedOffset(partition, kept if there else None)

    return [patch.object(offsets, "fetched_offset", fetched_offset)]


def overwritten_by_name() -> list[Any]:
    return [patch.object(Offsets, "_check_kept", lambda *_: None)]


def unknown_kept() -> list[Any]:
    return [patch.object(GroupShard, "topics_known", lambda *_: iter(()))]


def open_while_deleted() -> list[Any]:
    real = GroupShard.__init__

    def init(self: GroupShard, *args: Any) -> None:
        real(self, *args)
        self._being_deleted = _Nothing()

    return [patch.object(GroupShard, "__init__", init)]


class _Nothing(set[str]):
    def __contains__(self, _: object) -> bool:
        return False


# 11.12


def reset_while_loading() -> list[Any]:
    real = HostedShard.ask

    def ask(self: HostedShard, request: Any, told: Callable[[Any], None]) -> None:
        if self._serving is None and isinstance(request, FetchOffsets):
            told(FetchAnswer(offsets=tuple(FetchedOffset(each, None) for each in request.partitions or ())))
        else:
            real(self, request, told)

    return [patch.object(HostedShard, "ask", ask)]


def heard_by_two() -> list[Any]:
    """Neither of the two minds the other: each alone outlasts what a run has of it."""
    return [
        patch.object(ShardLog, "may_lead", property(lambda self: self.leads)),
        patch.object(GroupConfig, "handover_ms", 0),
    ]


# Compaction


def last_dropped() -> list[Any]:
    real = Cleaner._keep

    def keep(self: Cleaner, batch: Any, latest: Any) -> Any:
        return real(self, batch, latest + 1)

    return [patch.object(Cleaner, "_keep", keep)]


def tombstones_at_once() -> list[Any]:
    real = Cleaner._new_horizon

    def new_horizon(self: Cleaner, batch: Any, keep: Any) -> int | None:
        return None if real(self, batch, keep) is None else self._job.wall_clock_ms

    return [patch.object(Cleaner, "_new_horizon", new_horizon)]


# What each needs


def _groups(settings: Settings, weights: dict[str, float], **fields: Any) -> None:
    settings.replication_factor, settings.min_insync_replicas = 3, 2
    settings.topics = settings.partitions = 1
    settings.produce_gap_ms = 400
    settings.weights = weights
    settings.groups = GroupSettings(**{"session_timeout_ms": 1500, "rebalance_timeout_ms": 3000, **fields})


ROUGH = {"kill broker": 1.0, "kill manager": 1.0, "pause manager": 0.5, "prefer leaders": 1.0, "kill storage": 0.5}


def calm(settings: Settings) -> None:
    _groups(settings, {"prefer leaders": 0.2}, churn_gap_ms=300, give_up_ms=500)


def failing(settings: Settings) -> None:
    _groups(settings, ROUGH, work_gap_ms=60, idle=0.0)
    settings.fault_gap_ms = 300


def late_appends(settings: Settings) -> None:
    _groups(settings, {"late appends": 2.0, "pause fetcher": 1.0, "kill broker": 0.5}, work_gap_ms=60, idle=0.0)
    settings.fault_gap_ms = 200


def overstaying(settings: Settings) -> None:
    _groups(
        settings,
        {"pause manager": 0.3},
        rebalance_timeout_ms=300,
        give_up_ms=1500,
        churn_gap_ms=300,
        work_gap_ms=30,
        idle=0.0,
    )
    settings.slow, settings.slow_ms = 0.3, 1000


def idle(settings: Settings) -> None:
    _groups(
        settings,
        {"prefer leaders": 0.2},
        retention_ms=800,
        retention_check_ms=100,
        idle=0.9,
        churn_gap_ms=300,
        give_up_ms=1500,
    )


def moving(settings: Settings) -> None:
    _groups(settings, {"prefer leaders": 1.0, "kill manager": 1.0}, work_gap_ms=60, idle=0.0, churn_gap_ms=300)
    settings.fault_gap_ms = 150
    settings.slow, settings.slow_ms = 0.3, 400


def loading(settings: Settings) -> None:
    _groups(
        settings,
        {"prefer leaders": 1.0, "pause storage": 2.0},
        session_timeout_ms=4000,
        members=8,
        partitions=6,
        work_gap_ms=200,
        idle=0.0,
        churn_gap_ms=150,
    )
    settings.fault_gap_ms, settings.outage_ms = 100, 300


def compacting(settings: Settings) -> None:
    _groups(settings, {"prefer leaders": 1.0, "kill manager": 0.5}, compaction_gap_ms=100, delete_retention_ms=3000)


def isolated(settings: Settings) -> None:
    _groups(settings, {"isolate": 1.0}, members=4, churn_gap_ms=500)
    settings.min_insync_replicas = 1
    settings.session_ms, settings.controller_session_ms = 1500, 1000
    settings.fault_gap_ms, settings.outage_ms = 2000, 9000
    settings.loss = settings.stream_break = settings.slow = 0.0


def remade(settings: Settings) -> None:
    """Topics are deleted and made anew, and brokers that have not heard of it take groups over."""
    weights = {"recreate topic": 1.0, "prefer leaders": 1.0, "expire lease": 1.0}
    _groups(
        settings, weights, work_gap_ms=30, idle=0.0, members=1, partitions=1, churn_gap_ms=2000, metadata_lag_ms=2000
    )
    settings.brokers, settings.replication_factor, settings.min_insync_replicas = 4, 2, 1  # half have no replica
    settings.fault_gap_ms, settings.produce_gap_ms = 300, 1000
    settings.loss = settings.stream_break = settings.slow = settings.late = 0.0


def deleted(settings: Settings) -> None:
    _groups(settings, {"expire lease": 1.0}, work_gap_ms=60, idle=0.0, members=2, partitions=8, churn_gap_ms=300)
    settings.fault_gap_ms, settings.outage_ms = 2000, 300
    settings.loss = settings.stream_break = settings.slow = settings.late = 0.0
    assert settings.groups is not None
    settings.groups.deletion_gap_ms, settings.groups.lost_deletions, settings.groups.removed_at_once = 1000, 0.3, 1
