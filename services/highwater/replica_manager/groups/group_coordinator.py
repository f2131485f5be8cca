"""This broker's part of the coordination of groups: the shards that it leads, and who is asked for which group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from highwater.errors import ErrorCode
from highwater.groups.config import GroupConfig
from highwater.groups.group_partition import OFFSETS_TOPIC
from highwater.groups.requests import (
    Answer,
    GroupState,
    Heartbeat,
    ListAnswer,
    ListedGroup,
    ListGroups,
    Refusal,
    Request,
    SessionAnswer,
)
from highwater.groups.shard import GroupShard
from highwater.groups.topics import TopicImage
from highwater.groups.validity import check_group_id
from highwater.replica_manager.groups.clock import CoordinatorClock
from highwater.replica_manager.groups.hosted_shard import LOADS_AT_ONCE, HostedShard, ShardContext
from highwater.replica_manager.groups.member_streams import MemberStream
from highwater.replica_manager.groups.metrics import GroupMetrics
from highwater.replica_manager.groups.offsets_topic import OffsetsTopic
from highwater.replica_manager.groups.pacing import Pace
from highwater.replica_manager.groups.topic_feed import TopicFeed
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.rpc.process.loop_turn import sorted_by_turns
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger

logger = get_logger("replica_manager.groups")

TICK_S = 0.1


class GroupCoordinator:
    def __init__(
        self,
        replica_manager: ReplicaManager,
        topic: OffsetsTopic,
        config: GroupConfig,
        metrics: GroupMetrics,
        supervisor: TaskSupervisor,
    ) -> None:
        self.topic = topic
        self.config = config
        self._shards: dict[int, HostedShard] = {}
        self._feed = TopicFeed(replica_manager.metadata)
        self._supervisor = supervisor
        self._clock = CoordinatorClock()
        self._context = ShardContext(
            replica_manager,
            self._feed,
            config,
            metrics,
            supervisor,
            self._clock.now_ms,
            asyncio.Semaphore(LOADS_AT_ONCE),
        )
        replica_manager.leadership_listeners.append(self._leadership_changed)
        self._count(metrics)

    @property
    def image(self) -> TopicImage:
        return self._feed.image

    def start(self) -> None:
        self._supervisor.run_every("group-tick", TICK_S, self._tick)

    def stop(self) -> None:
        """Whoever waits is answered, and every stream ends."""
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.stop()

    async def ask(self, group: str, request: Request) -> Answer | Refusal:
        """Its answer, once that may leave."""
        shard = self._shard_of(group)
        if isinstance(shard, Refusal):
            return shard
        return await _asked(shard, request)

    def heard(self, request: Heartbeat, stream: MemberStream) -> None:
        shard = self._shard_of(request.group)
        if isinstance(shard, Refusal):
            stream.tell(SessionAnswer(error=shard))
        else:
            shard.heard(request, stream)

    async def list_groups(self, states: frozenset[GroupState]) -> tuple[list[ListedGroup], Refusal | None]:
        """Those of every shard here, and why there may be more."""
        found: list[ListedGroup] = []
        missing: Refusal | None = None
        for shard in list(self._shards.values()):
            answer = await _asked(shard, ListGroups(states))
            if isinstance(answer, ListAnswer):
                found += answer.groups
            elif isinstance(answer, Refusal) and answer.code is not ErrorCode.NOT_COORDINATOR:
                missing = Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"groups are missing: {answer.message}")
            await asyncio.sleep(0)
        return [each async for each in sorted_by_turns(found, key=lambda each: each.group)], missing

    def _shard_of(self, group: str) -> HostedShard | Refusal:
        refusal = check_group_id(group)
        if refusal is not None:
            return refusal
        shard = self._shards.get(self.topic.partition_of(group))
        return shard or Refusal(
            ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate group {group!r}: ask which one does"
        )

    def _leadership_changed(self, hosted: HostedPartition) -> None:
        if hosted.topic != OFFSETS_TOPIC:
            return
        number = hosted.key.partition
        shard = self._shards.get(number)
        if shard is not None and shard.pipeline is hosted.pipeline:
            return
        if shard is not None:
            del self._shards[number]
            shard.stop()
        if hosted.pipeline is not None:
            self._shards[number] = HostedShard(self._context, hosted, hosted.pipeline)

    async def _tick(self) -> None:
        if self._clock.was_set():
            logger.warning("the clock of this machine was set: groups are loaded anew, with sessions that begin now")
            for shard in list(self._shards.values()):
                shard.load_anew(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        changed = self._feed.take()
        pace = Pace()  # of all: fifty shards that take a little less than a step each hold the loop together
        for shard in list(self._shards.values()):
            try:
                await shard.tick(changed, pace)
            except Exception:  # the others are to hear of what has changed, and of the time
                shard.failed("a shard of groups could not do what is due")

    def _count(self, metrics: GroupMetrics) -> None:
        # Called from the thread that serves the metrics: over copies.
        def shards() -> Iterator[GroupShard]:
            return (shard for hosted in list(self._shards.values()) if (shard := hosted.shard) is not None)

        def in_state(state: GroupState) -> Callable[[], float]:
            return lambda: sum(
                group.state is state for shard in shards() for group in list(shard.state.groups.values())
            )

        for state, gauge in metrics.groups.items():
            gauge.set_function(in_state(state))
        metrics.members.set_function(
            lambda: sum(len(group.members) for shard in shards() for group in list(shard.state.groups.values()))
        )
        metrics.sessions.set_function(lambda: sum(len(hosted.streams) for hosted in list(self._shards.values())))
        metrics.loading.set_function(lambda: sum(hosted.shard is None for hosted in list(self._shards.values())))


async def _asked(shard: HostedShard, request: Request) -> Answer | Refusal:
    future: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()

    def told(answer: Answer | Refusal) -> None:
        if not future.done():  # else the caller has gone
            future.set_result(answer)

    shard.ask(request, told)
    return await future
