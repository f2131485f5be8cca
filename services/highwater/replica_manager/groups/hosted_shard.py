"""The groups of one led partition of `__consumer_offsets` under one leadership: loaded, served, and loaded anew after
an append that failed (RULES 11.2, 11.12)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from highwater.errors import ErrorCode
from highwater.groups.config import GroupConfig
from highwater.groups.records.buffer import UnreadableRecordError
from highwater.groups.requests import Answer, Heartbeat, Outcome, Refusal, Request, SessionAnswer
from highwater.groups.shard import GroupShard
from highwater.records import CorruptBatchError
from highwater.replica_manager.groups.member_streams import MemberStream, MemberStreams
from highwater.replica_manager.groups.metrics import GroupMetrics
from highwater.replica_manager.groups.pacing import Pace
from highwater.replica_manager.groups.shard_log import ShardLog, ShardLogError
from highwater.replica_manager.groups.topic_feed import TopicFeed
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.groups")

LOADS_AT_ONCE = 4
FREEZE_EVERY = 2_000  # records that are replayed
ROOM_LOOK_S = 0.01  # between two looks at whether there is room for what a request has yet to write
RETRY_S = 0.2  # before it is read again where that failed
# A topic that this broker does not know when its groups are loaded may have been made a moment ago, and offsets of it
# committed with the coordinator before: a broker that is registered is told of it well within this (RULES 11.11).
KNOWN_WITHIN_MS = 60_000


@dataclass(frozen=True)
class ShardContext:
    """All that the shards of a broker share. `now_ms` is the time of records; it never jumps."""

    replica_manager: ReplicaManager
    feed: TopicFeed
    config: GroupConfig
    metrics: GroupMetrics
    supervisor: TaskSupervisor
    now_ms: Callable[[], int]
    loads: asyncio.Semaphore


@dataclass(frozen=True)
class _Serving:
    shard: GroupShard
    log: ShardLog


class HostedShard:
    """Under the leadership that `pipeline` stands for."""

    def __init__(self, context: ShardContext, hosted: HostedPartition, pipeline: AppendPipeline) -> None:
        self._context = context
        self._hosted = hosted
        self.pipeline = pipeline
        self.streams = MemberStreams()
        self._serving: _Serving | None = None
        self._loading = True  # else, without `_serving`: it waits until records can be committed
        self._changed: set[str] = set()  # topics that are others than they were, which is not all taken up
        # From then on a topic of a committed offset that is not there has gone; None: those offsets have been removed.
        self._known_from_ms: int | None = None
        self._writable = asyncio.Event()  # set once it was dropped, when records can be committed again
        self._task = context.supervisor.run_forever(f"group-shard-{hosted.key.partition}", self._run)

    @property
    def shard(self) -> GroupShard | None:
        """None while it is not served."""
        return None if self._serving is None else self._serving.shard

    def stop(self) -> None:
        """Leadership is over."""
        self._drop(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._task.cancel()

    # Requests

    def ask(self, request: Request, told: Callable[[Answer | Refusal], None]) -> None:
        """`told` is called once, when the answer may leave."""
        serving = self._serving
        refusal = self.refusal()
        if refusal is not None or serving is None:
            told(refusal or self._not_served())
            return
        outcome = self._decided(lambda: serving.shard.handle(request, self._context.now_ms()))
        if outcome is None:
            told(self._not_served())
            return
        self._carry_out(serving, outcome, told)
        if outcome.rest is not None:
            asyncio.get_running_loop().call_soon(self._go_on, serving, outcome.rest, told)

    def _go_on(self, serving: _Serving, rest: Iterator[Outcome], told: Callable[[Answer | Refusal], None]) -> None:
        """Takes the next step of a request that has several, each in a turn of its own."""
        loop = asyncio.get_running_loop()
        if serving is self._serving and serving.log.full:
            loop.call_later(ROOM_LOOK_S, self._go_on, serving, rest, told)
            return
        outcome = self._decided(lambda: next(rest)) if serving is self._serving else None
        if outcome is None:
            told(self._not_served())
            return
        self._carry_out(serving, outcome, told)
        if outcome.answer is None:
            loop.call_soon(self._go_on, serving, rest, told)

    def heard(self, request: Heartbeat, stream: MemberStream) -> None:
        """A word of a member on its stream, which is told the answer when that may leave."""
        serving = self._serving
        refusal = self.refusal(writes=not request.is_sign_of_life)
        if refusal is not None or serving is None:
            stream.tell(SessionAnswer(error=refusal or self._not_served()))
            return
        outcome = self._decided(lambda: serving.shard.handle(request, self._context.now_ms()))
        if outcome is None:
            stream.tell(SessionAnswer(error=self._not_served()))
            return
        answer = outcome.answer
        if not isinstance(answer, SessionAnswer):
            self.streams.opened(request.group, request.member_id, stream)
            self._carry_out(serving, outcome, None)
            return
        if answer.error is None:
            self.streams.opened(request.group, request.member_id, stream)

        def told(answer: Answer | Refusal) -> None:
            stream.tell(answer if isinstance(answer, SessionAnswer) else SessionAnswer(error=_as_refusal(answer)))

        self._carry_out(serving, outcome, told)

    def _decided(self, step: Callable[[], Outcome]) -> Outcome | None:
        try:
            return step()
        except Exception:
            self.failed("a request of a group could not be decided")
            return None

    def failed(self, what: str) -> None:
        """A bug: what the shard holds is not to be gone by. To be called while the error is handled."""
        logger.exception("%s %s", what, pairs(partition=self._hosted.key.partition))
        self.load_anew(ErrorCode.UNKNOWN_SERVER_ERROR)

    def load_anew(self, error: ErrorCode) -> None:
        """Drops what it holds; members are given a whole session timeout when it is served again."""
        if self._serving is not None:
            self._serving.log.end(error)

    def refusal(self, *, writes: bool = True) -> Refusal | None:
        """Tells why nothing can be asked now, of what `writes` records or does not; None: it can."""
        if self._serving is None or not self._serving.log.may_lead:
            return self._not_served()
        if writes and self._serving.log.full:
            return Refusal(
                ErrorCode.OVERLOADED,
                "too many answers of this coordinator wait for their records to be committed: try again",
            )
        return None

    def _not_served(self) -> Refusal:
        if self._hosted.pipeline is not self.pipeline:
            return Refusal(ErrorCode.NOT_COORDINATOR, "this broker does not lead the group's partition any more")
        if self._loading:
            return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group is being read from the log: try again")
        return Refusal(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "the group's records cannot be written now, too few replicas may be in sync, or the broker is cut off:"
            " try again",
        )

    # Time and topics

    async def tick(self, changed_topics: Collection[str], pace: Pace) -> None:
        """Does what is due, and what follows from topics that are others now. The pace is of all shards together."""
        serving = self._serving
        if serving is None:
            if not self._loading and self._new_log().takes_records:
                self._writable.set()
            return
        if not serving.log.takes_records:
            # Nothing can be decided. Members are given a whole session timeout when it can be.
            serving.log.end(ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        now_ms = self._context.now_ms()
        self._changed.update(changed_topics)
        if self._changed:
            if not await self._carried_out(serving, serving.shard.topics_changed(self._changed, now_ms), pace):
                return
            self._changed.clear()
        if self._known_from_ms is not None and now_ms >= self._known_from_ms:
            if not await self._carried_out(serving, serving.shard.topics_known(now_ms), pace):
                return
            self._known_from_ms = None
        due_ms = serving.shard.next_due_ms()
        if due_ms is None or due_ms > now_ms or serving.log.full:  # who could not be heard is not removed for silence
            return
        for outcome in serving.shard.tick(now_ms):
            self._carry_out(serving, outcome, None)
            await pace.breathe()
            if self._serving is not serving or serving.log.full:
                return  # what is due stays so

    async def _carried_out(self, serving: _Serving, steps: Iterator[Outcome], pace: Pace) -> bool:
        """Tells whether all were: the shard may have been dropped, or so many records wait to be committed that the
        rest has to wait, too. Where they always do, each tick has a step that makes some."""
        for outcome in steps:
            self._carry_out(serving, outcome, None)
            await pace.breathe()
            if self._serving is not serving or (outcome.records and serving.log.full):
                return False
        return True

    def _carry_out(self, serving: _Serving, outcome: Outcome, told: Callable[[Answer | Refusal], None] | None) -> None:
        serving.log.write(outcome.records)
        self._context.metrics.count(outcome.records)
        # The streams that are open now: what was decided before a member came back is not told on another (RULES 11.5).
        pushes = [
            (stream, push.answer)
            for push in outcome.pushes
            if (stream := self.streams.get(push.group, push.member_id)) is not None
        ]
        answer = outcome.answer
        if answer is None and not pushes:
            return

        def committed(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                for stream, pushed in pushes:
                    stream.tell(pushed)
            if told is not None and answer is not None:
                told(answer if error is ErrorCode.NONE else self._not_served())

        serving.log.when_committed(outcome.after, committed)

    # Loading

    async def _run(self) -> None:
        began_s = time.perf_counter()
        while self._hosted.pipeline is self.pipeline:
            self._loading = True
            self._writable.clear()
            try:
                await self._load()
            except (ShardLogError, CorruptBatchError, UnreadableRecordError) as error:
                details = pairs(partition=self._hosted.key.partition, reason=error)
                logger.warning("groups cannot be read from the log yet %s", details)
                await asyncio.sleep(RETRY_S)
                continue
            self._context.metrics.load.observe(time.perf_counter() - began_s)
            await self._writable.wait()
            began_s = time.perf_counter()
        # The leadership's end is told by the replica-manager; `stop` ends this task.
        await asyncio.get_running_loop().create_future()

    def _new_log(self) -> ShardLog:
        heard_within_ms = self._context.config.heard_within_ms
        return ShardLog(self._context.replica_manager, self._hosted, self.pipeline, self._drop, heard_within_ms)

    async def _load(self) -> None:
        context = self._context
        await context.feed.complete.wait()  # a topic that is not known yet would be taken for one that is not there
        log, shard = self._new_log(), GroupShard(context.feed.image, context.config)
        pace, replayed = Pace(), 0
        async with context.loads, contextlib.aclosing(log.read()) as batches:
            async for rows in batches:
                for number, row in enumerate(rows):
                    if row.key is not None:
                        shard.replay(row.key, row.value, row.timestamp)
                    replayed += 1
                    if replayed % FREEZE_EVERY == 0:
                        _freeze()
                    if number % 64 == 0:
                        await pace.breathe()
        error = await log.committed()
        if error is not ErrorCode.NONE:
            raise ShardLogError(f"its end is not committed: {error.name}")
        for _ in shard.start(context.now_ms()):
            await pace.breathe()
        self._serving = _Serving(shard, log)
        self._loading = False
        # The image has what changed until now. Offsets may be of topics that were deleted while nobody coordinated
        # their groups, or are not known here yet.
        self._changed = set()
        self._known_from_ms = context.now_ms() + KNOWN_WITHIN_MS

    def _drop(self, error: ErrorCode) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            self._loading = False
            if error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._context.metrics.append_failures.labels(error.name).inc()
                details = pairs(partition=self._hosted.key.partition, error=error.name)
                logger.warning("records of groups were not written: loading them anew %s", details)
            serving.log.end(error)
            self.streams.end_all(SessionAnswer(error=self._not_served()))


def _freeze() -> None:
    """Has the garbage collector walk no more over what is loaded: with 100,000 groups it stopped the event loop for
    0.4 s, again and again. They have no cycles: what is dropped goes by itself."""
    gc.collect(1)  # of what is garbage already nothing is frozen
    gc.freeze()


def _as_refusal(answer: Answer | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer
