"""A consumer's share of its group: takes partitions up and gives them up, with the application's callbacks, and
commits what is done.

All of that happens inside of a poll, as with Kafka: what was handed out before it is done then, so its offset may be
committed, and nothing is taken away from an application that is at work. A poll that is cancelled leaves a callback
running; the next one waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from highwater.client.cluster.cluster import Cluster
from highwater.client.consumer.committed_positions import CommittedPositions
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.consumer.fetcher import Fetcher
from highwater.client.exceptions import CommitFailedError, HighwaterError, InvalidRequestError
from highwater.client.groups.committed_offsets import CommittedOffsets
from highwater.client.groups.coordinator import Coordinator
from highwater.client.groups.group_member import GroupMember
from highwater.client.membership.words import Assign, Lost, Partitions, Revoke, Step, Subscription
from highwater.client.topic_partition import TopicPartition
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)

# The callbacks that the running code was called by: a thread and a task that one begins are told of it, too.
_called_by: ContextVar[tuple[object, ...]] = ContextVar("called_by", default=())

RebalanceCallback = Callable[[Sequence[TopicPartition]], Awaitable[None] | None]
"""Called with the partitions that it is about, sorted."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options of `Consumer` that are about its group."""

    group: str
    instance_id: str
    enable_auto_commit: bool
    auto_commit_interval_ms: float
    max_poll_interval_ms: int
    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None


class GroupAssignment:
    """Owned by one consumer. `new_buffer` makes a partition's buffer, without a position; `on_change` is called when a
    poll has something to do."""

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        settings: GroupSettings,
        subscription: Subscription,
        *,
        reset_timestamp: int | None,
        new_buffer: Callable[[TopicPartition], FetchBuffer],
        on_change: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._settings = settings
        self._new_buffer = new_buffer
        self._on_change = on_change
        coordinator = Coordinator(cluster, settings.group)
        member_id = str(uuid.uuid4())
        self._member = GroupMember(
            coordinator,
            member_id,
            settings.instance_id,
            subscription,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            answer_timeout_ms=cluster.request_timeout_s * 1000,
            on_drop=self._lose,
            on_change=on_change,
        )
        self._topic_ids: dict[str, bytes] = {}
        self._committed = CommittedOffsets(
            cluster,
            coordinator,
            member_id,
            lambda: self._member.epoch,
            lambda topic: self._topic_ids.get(topic, b""),
            self._tenure,
        )
        self._positions = CommittedPositions(self._committed, reset_timestamp, self.touched, self._positions_found)
        self._touched: set[TopicPartition] = set()  # their positions have changed since they were committed last
        self._giving: TopicPartition | None = None  # its position changes, in whatever thread, with each record
        self._lost: set[TopicPartition] = set()  # of `_touched`, and the application has not been told
        self._commits_at_s = 0.0
        self._committing: asyncio.Task[None] | None = None
        self._commits_when_revoked = settings.enable_auto_commit
        self._steps: asyncio.Task[None] | None = None
        self._callback: object | None = None  # stands for the one that is running
        self._tasks = TaskSupervisor()
        self._joined = False

    # Life

    def start(self) -> None:
        """Joins, where anything is subscribed to."""
        self._tasks.run_forever("committed positions", self._positions.run)
        self._commits_at_s = monotonic() + self._settings.auto_commit_interval_ms / 1000
        self._join()

    def _join(self) -> None:
        subscription = self._member.subscription
        if not self._joined and (subscription.topics or subscription.pattern):
            self._joined = True
            self._member.start()

    def subscribe(self, topics: Sequence[str], pattern: str) -> None:
        subscription = replace(self._member.subscription, topics=tuple(topics), pattern=pattern)
        self._member.subscribe(subscription)
        self._join()

    async def close(self, *, commit: bool) -> None:
        """Gives everything up, with its callback, and leaves. `commit`: what was handed out is done. Raises what the
        callback raises."""
        self._commits_when_revoked = commit and self._settings.enable_auto_commit
        self._member.close()
        try:
            await self._give_all_up()
        finally:
            await self._member.leave()
            await self._tasks.stop()

    async def _give_all_up(self) -> None:
        """Raises what fails for some partitions when the others are given up."""
        failure: Exception | None = None
        while self._steps is not None or self._member.unsettled:
            try:
                await self._settled()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # Polls

    def poll_began(self) -> None:
        """Counts what was handed out before as done."""
        if self._giving is not None:
            self._touched.add(self._giving)
            self._giving = None
        self._member.poll_began()
        if self._settings.enable_auto_commit and monotonic() >= self._commits_at_s:
            self._commit_in_the_background()

    def poll_ended(self) -> None:
        self._member.poll_ended()

    def asks_for_more(self, partition: TopicPartition) -> bool:
        """The application asks for the next record of the partition that is given. Tells whether a poll is due before
        that. May be called in any thread: it looks, and changes nothing but the time of the last poll."""
        if self._giving is not partition or not self._member.asks_for_more():
            return True
        return self._settings.enable_auto_commit and monotonic() >= self._commits_at_s

    @property
    def needs_attention(self) -> bool:
        """Also while nobody has heard how the steps have ended that a poll began which was cancelled."""
        return self._steps is not None or self._member.needs_attention

    async def settle(self) -> None:
        """Takes the steps that are due, and raises what a callback raises, or what ended the membership."""
        self.check_no_callback("poll")
        await self._settled()
        self._member.raise_failure()

    def check_no_callback(self, call: str) -> None:
        """Raises `InvalidRequestError` where a callback that is running has made the call, from whatever thread."""
        if self._callback is not None and self._callback in _called_by.get():
            raise InvalidRequestError(f"{call} waits for the callback that called it; call it elsewhere")

    async def _settled(self) -> None:
        if self._steps is None:
            self._steps = asyncio.create_task(self._take_steps())
        steps = self._steps
        try:
            await asyncio.shield(steps)
        finally:
            if steps.done() and self._steps is steps:
                self._steps = None

    async def _take_steps(self) -> None:
        while (step := self._member.next_step()) is not None:
            try:
                await self._take(step)
            finally:
                self._member.step_done()

    async def _take(self, step: Step) -> None:
        partitions = _names(step.partitions)
        what = type(step).__name__.lower()
        _log.info(
            "%s %s", what, pairs(group=self._settings.group, epoch=self._member.epoch, partitions=len(partitions))
        )
        _log.debug("%s: %s", what, partitions)
        match step:
            case Assign():
                self._take_up(step.partitions)
                await self._tell(self._settings.on_assigned, partitions)
            case Revoke():
                try:
                    # First: what it still has to write out is done with what is committed then.
                    await self._tell(self._settings.on_revoked, partitions)
                    if self._commits_when_revoked:
                        await self._commit_revoked(partitions)
                finally:
                    self._drop(step.partitions)
                    self._lost.difference_update(partitions)
            case Lost():
                self._lost.difference_update(partitions)
                await self._tell(self._settings.on_lost, partitions)

    async def _tell(self, callback: RebalanceCallback | None, partitions: Sequence[TopicPartition]) -> None:
        if callback is None:
            return
        self._callback = object()
        before = _called_by.set((*_called_by.get(), self._callback))
        try:
            waits: Any = callback(partitions)
            if inspect.isawaitable(waits):
                await waits
        finally:
            _called_by.reset(before)
            self._callback = None

    def _take_up(self, added: Partitions) -> None:
        buffers = []
        for topic, topic_id, number in added:
            self._topic_ids[topic] = topic_id
            buffer = self._new_buffer(TopicPartition(topic, number))
            buffer.topic_id = topic_id
            buffers.append(buffer)
            self._positions.want(buffer)
        self._cluster.track({partition.topic for partition in added})
        self._cluster.request_refresh()
        self._fetcher.add(buffers)

    def _lose(self, partitions: Partitions) -> None:
        self._lost |= self._uncommitted().intersection(_names(partitions))
        self._drop(partitions)

    def _drop(self, partitions: Partitions) -> None:
        names = _names(partitions)
        for partition in names:
            self._positions.drop(partition)
        self._touched.difference_update(names)
        if self._giving in names:
            self._giving = None
        self._fetcher.remove(names)

    def _positions_found(self) -> None:
        self._on_change()
        self._fetcher.wake()

    # Commits

    def touched(self, partition: TopicPartition) -> None:
        """The position of this partition has changed."""
        self._touched.add(partition)

    def giving(self, partition: TopicPartition) -> None:
        """Records of this partition are given one by one, until the next poll."""
        self._giving = partition

    def _uncommitted(self) -> set[TopicPartition]:
        return self._touched if self._giving is None else self._touched | {self._giving}

    async def commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        """None: of all partitions what was handed out. Raises as `CommittedOffsets.commit`."""
        if offsets is not None:
            await self._committed.commit(offsets)
            return
        lost = frozenset(self._lost)
        await self._commit(self._positions_of(self._uncommitted()))
        if lost:
            some = min(lost)
            raise CommitFailedError(
                f"group {self._settings.group!r}: {len(lost)} partitions were lost before this, for example "
                f"{some.topic}-{some.partition}; their owners read again what was not committed",
                partitions=lost,
            )

    def _tenure(self, partition: TopicPartition) -> object | None:
        return self._fetcher.buffers.get(partition)

    def _positions_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        buffers = self._fetcher.buffers
        found = {}
        for partition in partitions:
            buffer = buffers.get(partition)
            if buffer is not None and (position := buffer.position) is not None:
                found[partition] = position
        return found

    async def _commit(self, positions: Mapping[TopicPartition, int]) -> None:
        self._touched.difference_update(positions)
        try:
            if positions:
                await self._committed.commit(positions)
        except BaseException:
            self._touched.update(positions.keys() & self._fetcher.buffers.keys())
            raise

    def _commit_in_the_background(self) -> None:
        self._commits_at_s = monotonic() + self._settings.auto_commit_interval_ms / 1000
        if self._touched and (self._committing is None or self._committing.done()):
            positions = self._positions_of(self._touched)
            self._committing = self._tasks.run_once("auto commit", lambda: self._commit_by_itself(positions))

    async def _commit_by_itself(self, positions: Mapping[TopicPartition, int]) -> None:
        try:
            await self._commit(positions)
        except HighwaterError as error:
            _log.warning("offsets were not committed: %s %s", error, pairs(group=self._settings.group))

    async def _commit_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            await self._commit(self._positions_of(self._uncommitted().intersection(partitions)))
        except HighwaterError as error:
            _log.warning(
                "offsets of partitions that are given up were not committed, their next owner reads some records "
                "again: %s %s",
                error,
                pairs(group=self._settings.group),
            )


def _names(partitions: Partitions) -> list[TopicPartition]:
    return sorted(TopicPartition(each.topic, each.partition) for each in partitions)
