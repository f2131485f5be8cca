"""A broker's coordinator: the production `GroupCoordinator` and all below it, over a simulated replica-manager.

What is gRPC in `server/group_session.py` and `server/group_servicer.py` is a stream and a call of the simulated
network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from highwater.errors import ErrorCode
from highwater.groups import offsets
from highwater.groups.config import GroupConfig
from highwater.groups.records import Record
from highwater.groups.requests import (
    Answer,
    Heartbeat,
    Outcome,
    Refusal,
    Request,
    SessionAnswer,
)
from highwater.groups.shard import GroupShard
from highwater.log_storage_client.values import Append, AppendAnswer, StorageError, StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.records import STAMP_BYTES, iter_batches, stamp
from highwater.replica_manager.groups import group_coordinator, hosted_shard, shard_log
from highwater.replica_manager.groups.clock import CoordinatorClock
from highwater.replica_manager.groups.group_coordinator import GroupCoordinator
from highwater.replica_manager.groups.hosted_shard import HostedShard, ShardContext
from highwater.replica_manager.groups.member_streams import MemberStream
from highwater.replica_manager.groups.offsets_topic import OffsetsTopic, OffsetsTopicConfig
from highwater.replica_manager.groups.shard_log import ShardLog, Told
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.supervision import TaskSupervisor
from highwater.telemetry import summed_log

from ..network import Stream
from ..storage import Batch
from .checks import ShardCheck
from .loop import SimulatedLoop, SimulatedPace
from .settings import GroupSettings

if TYPE_CHECKING:
    from ..replica_manager import ReplicaManagerProcess

CLOCK_MS = 1_700_000_000_000  # the brokers' at the start of a run
STEP_MS = 20  # what others may have between two steps of a request, at most twice


@contextmanager
def simulated(settings: GroupSettings | None) -> Iterator[None]:
    """Within, brokers make shards that are checked, and that breathe in virtual time. What is logged is told at once: a
    timer for it would be an event, and which lines are made depends on who else runs in the process."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(group_coordinator, "HostedShard", SimulatedShard))
        for module in (group_coordinator, hosted_shard, shard_log):
            stack.enter_context(patch.object(module, "Pace", SimulatedPace))
        stack.enter_context(patch.object(summed_log, "_running_loop", lambda: None))
        if settings is not None:
            stack.enter_context(patch.object(offsets, "REMOVED_AT_ONCE", settings.removed_at_once))
            stack.enter_context(patch.object(hosted_shard, "KNOWN_WITHIN_MS", settings.known_within_ms))
            stack.enter_context(patch.object(shard_log, "MOST_PENDING_BYTES", settings.pending_bytes))
        yield


class Nothing:
    """Metrics that nobody looks at."""

    def __getattr__(self, name: str) -> Nothing:
        return self

    def __call__(self, *args: Any, **named: Any) -> Nothing:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class SimulatedSupervisor(TaskSupervisor):
    """A task that fails fails the run."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(clock_s=loop.time)
        self._loop = loop

    def _failed(self, name: str, error: Exception | None, expected: tuple[type[Exception], ...]) -> None:
        self._loop.error = error or AssertionError(f"the task {name} has ended by itself")


class HostedView:
    """A hosted partition as a shard's log sees it, of which the batches are objects."""

    def __init__(self, owner: ReplicaManagerProcess, hosted: HostedPartition, log: SimulatedLog) -> None:
        self._owner = owner
        self._hosted = hosted
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hosted, name)

    def appended(self, leader_epoch: int, answer: AppendAnswer, data: bytes, batches: Any) -> None:
        del batches
        assert self._owner.groups is not None
        batch = self._owner.groups.made.pop(id(data))
        self._log.checked.appended(batch, answer.base_offset)
        self._owner._log_grew(self._hosted, leader_epoch, batch, answer)


class SimulatedLog(ShardLog):
    """Tells the shard's check what is handed over, and what is answered."""

    check: ShardCheck | None = None  # made when the log has been read

    def __init__(self, owner: ReplicaManagerProcess, hosted: HostedPartition, *more: Any) -> None:
        super().__init__(owner.replica_manager, HostedView(owner, hosted, self), *more)  # type: ignore[arg-type]

    @property
    def checked(self) -> ShardCheck:
        assert self.check is not None
        return self.check

    def write(self, records: Sequence[Record]) -> None:
        if self._ended is None:
            self.checked.written(records)
        super().write(records)

    def _append(self, records: Sequence[Record], size: int) -> None:
        self.checked.appending(records, self._end_offset)
        super()._append(records, size)

    def when_committed(self, number: int, told: Told) -> None:
        def checked(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self.checked.told(number)
            told(error)

        super().when_committed(number, checked)


class SimulatedShard(HostedShard):
    accepted = False  # the last word that was heard was no more and no less than a sign of life
    load_began_ms: int | None = None  # None: it is not being loaded
    _request: Request | None = None

    def __init__(self, context: ShardContext, hosted: HostedPartition, pipeline: AppendPipeline) -> None:
        self.owner: ReplicaManagerProcess = context.replica_manager._owner  # type: ignore[attr-defined]
        self._in_steps: dict[Callable[..., None], Request] = {}  # by who is told the answer
        super().__init__(context, hosted, pipeline)

    def _new_log(self) -> ShardLog:
        heard_within_ms = self._context.config.heard_within_ms
        return SimulatedLog(self.owner, self._hosted, self.pipeline, self._drop, heard_within_ms)

    async def _load(self) -> None:
        self.load_began_ms = self.owner.now_ms
        await super()._load()
        self.load_began_ms = None
        if self._serving is not None:
            self._check(self._serving).loaded()

    def ask(self, request: Request, told: Callable[[Answer | Refusal], None]) -> None:
        self._request = request
        super().ask(request, told)
        self._request = None

    def _go_on(self, serving: Any, rest: Iterator[Outcome], told: Callable[[Answer | Refusal], None]) -> None:
        """Now and then others have their turn first."""
        delay_ms = int(self.owner.random() * 4 * STEP_MS) - 2 * STEP_MS
        go_on = partial(super()._go_on, serving, rest, told)
        if delay_ms > 0:
            asyncio.get_running_loop().call_later(delay_ms / 1000, go_on)
        else:
            go_on()

    async def tick(self, changed_topics: Collection[str], pace: Any) -> None:
        await super().tick(changed_topics, pace)
        if self._serving is not None and self._known_from_ms is None and not self._changed:
            self._check(self._serving).all_known(self._context.feed.image)

    def heard(self, request: Heartbeat, stream: MemberStream) -> None:
        self._request, self.accepted = request, False
        super().heard(request, stream)
        self._request = None

    def _carry_out(self, serving: Any, outcome: Outcome, told: Callable[[Answer | Refusal], None] | None) -> None:
        self.accepted = not isinstance(outcome.answer, SessionAnswer) or outcome.answer.error is None
        check = self._check(serving)
        request = self._request
        if told is not None and outcome.rest is not None:
            assert request is not None
            self._in_steps[told] = request
        elif told is not None and told in self._in_steps:
            request = self._in_steps[told] if outcome.answer is None else self._in_steps.pop(told)
        check.decided(outcome, request)
        super()._carry_out(serving, outcome, told)

    def failed(self, what: str) -> None:
        """Production loads the shard anew; here a bug is to be seen."""
        del what
        raise  # noqa: PLE0704  (what is being handled)

    def _check(self, serving: Any) -> ShardCheck:
        if serving.log.check is None:
            assert self.owner.world.groups is not None
            serving.log.check = self.owner.world.groups.checks.shard(self, serving.shard, serving.log)
        return serving.log.check  # type: ignore[no-any-return]


class SimulatedCoordinator(GroupCoordinator):
    def __init__(self, owner: ReplicaManagerProcess, loop: SimulatedLoop) -> None:
        groups = owner.world.settings.groups
        assert groups is not None
        self.owner = owner
        self.loop = loop
        self.made: dict[int, Batch] = {}  # of the bytes that shards append, by their identity
        supervisor = SimulatedSupervisor(loop)
        topic = OffsetsTopic(
            OffsetsTopicConfig(groups.offsets_partitions, 1, 1),
            owner.replica_manager.metadata,
            Nothing(),
            supervisor,  # type: ignore[arg-type]
        )
        config = GroupConfig(
            session_timeout_ms=groups.session_timeout_ms,
            heartbeat_interval_ms=groups.session_timeout_ms // 5,
            broker_session_timeout_ms=owner.world.settings.session_ms,
            offsets_retention_ms=groups.retention_ms,
            retention_check_interval_ms=groups.retention_check_ms,
        )
        super().__init__(owner.replica_manager, topic, config, Nothing(), supervisor)  # type: ignore[arg-type]
        ahead_ms = CLOCK_MS + owner.node.broker_id * groups.skew_ms
        self._clock = CoordinatorClock(lambda: (ahead_ms + owner.now_ms) / 1000, lambda: owner.now_ms * 1_000_000)
        self._context = replace(self._context, now_ms=self._clock.now_ms)

    def hosted(self, number: int) -> SimulatedShard | None:
        shard = self._shards.get(number)
        assert shard is None or isinstance(shard, SimulatedShard)
        return shard

    def shard_of(self, group: str) -> GroupShard | None:
        hosted = self._shards.get(self.topic.partition_of(group))
        return None if hosted is None else hosted.shard

    # Log-storage

    def batch(self, append: Append) -> Append:
        """The append with its bytes in a batch of the simulation."""
        data = append.records
        assert isinstance(data, bytes)
        ((_, header),) = iter_batches(data)
        batch = self.made[id(data)] = Batch(self.owner.world.count(), header.record_count, data=data)
        append.records = batch  # type: ignore[assignment]
        return append

    async def read(self, key: PartitionKey, offset: int, end_offset: int, max_bytes: int) -> Any:
        """As `LogStorageClient.read`; `max_bytes` are a few batches here."""
        limit = 1 + int(self.owner.random() * 5)
        answered: asyncio.Future[Any] = self.loop.create_future()
        self.owner.storage_client.call("on_read", key, offset, end_offset, limit, False).then(
            partial(_answer, answered)
        )
        answer = await answered
        if answer is None:
            raise StorageUnavailableError("no answer")
        error, batches, incarnation = answer
        self.owner.storage_seen(incarnation)
        return ReadAnswer(StorageError(error), b"".join(map(stored, batches)))

    # What clients ask

    def accepts(self, word: Heartbeat, stream: MemberStream) -> bool:
        """Hears it, and tells whether it counts as a sign of life."""
        shard = self._shards.get(self.topic.partition_of(word.group))
        self.heard(word, stream)
        return isinstance(shard, SimulatedShard) and shard.accepted

    def on_find_coordinator(self, reply: Callable[[Any], None], group: str) -> None:
        """The broker's id, or the error."""
        found = self.topic.coordinator(group, "client")
        reply(found.code if isinstance(found, Refusal) else found.broker_id)

    def on_ask(self, reply: Callable[[Any], None], request: Request) -> None:
        self.loop.create_task(self._answer(reply, request)).add_done_callback(lambda task: task.result())

    async def _answer(self, reply: Callable[[Any], None], request: Request) -> None:
        reply(await self.ask(request.group, request))  # type: ignore[union-attr]


def _answer(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # else whoever asked has been cancelled
        future.set_result(value)


class ReadAnswer:
    def __init__(self, error: StorageError, records: bytes) -> None:
        self.error = error
        self.records = records


def stored(batch: Batch) -> bytes:
    """The batch as it stands in the log."""
    ((position, header),) = iter_batches(batch.data)
    return stamp(header, batch.base_offset, batch.leader_epoch) + batch.data[position + STAMP_BYTES :]


class ServedStream:
    """One member's stream at the coordinator. As `server/group_session.py`."""

    def __init__(self, manager: ReplicaManagerProcess, told: Callable[[SessionAnswer], None]) -> None:
        self._manager = manager
        self._told = told
        self._member = MemberStream(self._woken)
        self._waking = False
        self.network: Stream  # set by who opens it

    def heard(self, word: Heartbeat, through: Callable[[], None]) -> None:
        """`through` is called at the client once it can know that the word has arrived, as by a ping of HTTP/2."""
        if self._member.ended:
            return
        assert self._manager.groups is not None
        if self._manager.groups.accepts(word, self._member) and not self._member.ended:
            self.network.to_client(through)

    def _woken(self) -> None:
        if not self._waking:
            self._waking = True
            self._manager.after(0, self._send)

    def _send(self) -> None:
        self._waking = False
        answer = self._member.take()
        if answer is not None:
            self.network.to_client(self._told, answer)
        if self._member.ended:
            self.network.close(1)
            self._member.closed()

    def closed(self) -> None:
        self._member.closed()
