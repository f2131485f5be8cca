"""What a simulated replica-manager asks of others: of its log-storage, over a stream and by calls, and of etcd."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import Append, AppendAnswer, StorageError, StorageUnavailableError
from highwater.metadata.schema.models import PartitionState
from highwater.metadata.state.partition_states import Outcome, StateWriteResult
from highwater.metadata.store.etcd_errors import Unavailable
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition import actions as act

from .etcd import Compare, Put
from .network import Stream
from .scheduler import Future
from .storage import LogStorage

if TYPE_CHECKING:
    from .replica_manager import ReplicaManagerProcess

STORAGE_TIMEOUT_MS = 2000
APPEND_LIMIT_MS = 3000  # as `append_stream.LIMIT_S`

Answered = Callable[[AppendAnswer | None], None]


class StorageClient:
    """The append stream, in order, and calls beside it, to the log-storage that runs at the moment."""

    def __init__(self, owner: ReplicaManagerProcess) -> None:
        self._owner = owner
        self.stream: Stream | None = None
        self._server: LogStorage | None = None
        self._sent: deque[tuple[Append, Answered]] = deque()

    def call(self, method: str, *args: Any) -> Future:
        node = self._owner.node
        return self._owner.world.network.call(
            self._owner, node.broker_id, lambda: node.storage, method, *args, timeout_ms=STORAGE_TIMEOUT_MS
        )

    async def read(self, *request: Any) -> Any:
        assert self._owner.groups is not None
        return await self._owner.groups.read(*request)

    def send(self, append: Append, answered: Answered) -> None:
        if self._owner.groups is not None and isinstance(append.records, bytes):
            append = self._owner.groups.batch(append)
        if self.stream is None:
            server = self._owner.node.storage
            if server is None or not server.alive:
                answered(None)
                return
            self._server = server
            self.stream = Stream(self._owner.world.network, self._owner, server, self._broken, lambda: None)
        self._sent.append((append, answered))
        self.stream.to_server(self._arrived, self.stream, self._server, append)
        self._owner.after(APPEND_LIMIT_MS, self._overdue, append)

    @property
    def outstanding(self) -> int:
        return len(self._sent)

    def _overdue(self, append: Append) -> None:
        if self._sent and self._sent[0][0] is append and self.stream is not None:
            self.stream.close(0)
            self._broken()

    def _arrived(self, stream: Stream, server: LogStorage, append: Append) -> None:
        answer = server.append_as_leader(append.key, append.leader_epoch, append.expected_offset, append.records)  # type: ignore[arg-type]
        self._owner.world.maybe_flush(server, append.key)
        stream.to_client(self._answered, append, answer)

    def _answered(self, append: Append, answer: Any) -> None:
        sent, answered = self._sent.popleft()
        assert sent is append
        self._owner.storage_seen(answer.incarnation)
        answered(answer)
        self._owner.check_answered(append, answer)

    def _broken(self) -> None:
        self.stream = None
        sent, self._sent = self._sent, deque()
        for _, answered in sent:
            answered(None)

    async def drop_damaged(self, key: PartitionKey, leader_epoch: int) -> StorageError:
        # Where the registration has just been lost, the next one is younger than all that etcd holds.
        broker_epoch = self._owner.replica_manager.broker_epoch or self._owner.world.etcd.revision + 1
        answer = await self.call("on_drop_damaged", key, leader_epoch, broker_epoch)
        if answer is None:
            raise StorageUnavailableError("no answer")
        self._owner.storage_seen(answer[1])
        return StorageError(answer[0])

    def damage_dropped(self) -> None:
        self._owner.damage_dropped()

    # As `Fencer`.

    def submit(self, key: PartitionKey, fence: act.Fence, answered: Callable[..., None]) -> Future:
        future = Future()
        self._owner.spawn(self._fence(key, fence, answered, future))
        return future

    async def _fence(self, key: PartitionKey, fence: act.Fence, answered: Callable[..., None], future: Future) -> None:
        owner = self._owner
        answer_of_storage = await self.call("on_fence", fence.role, owner.incarnation, key, fence.leader_epoch)
        answer = act.FenceAnswer(fence.role, fence.leader_epoch, ErrorCode.LOG_STORAGE_ERROR)
        if answer_of_storage is not None:
            error, log, epochs, incarnation = answer_of_storage
            owner.storage_seen(incarnation)
            await owner.sleep(int(owner.random() * owner.world.settings.fence_turn_ms))
            if error is ErrorCode.NONE:
                answer = act.FenceAnswer(
                    fence.role,
                    fence.leader_epoch,
                    ErrorCode.NONE,
                    log.log_end_offset,
                    log.last_epoch,
                    log.log_start_offset,
                    log.high_watermark,
                    incarnation,
                    tuple((entry.leader_epoch, entry.start_offset) for entry in epochs),
                )
            else:
                offline = error is ErrorCode.LOG_STORAGE_ERROR
                answer = act.FenceAnswer(
                    fence.role, fence.leader_epoch, error, incarnation=incarnation, offline=offline
                )
        answered(key, answer)
        future.set(answer)


class IsrChanges:
    """WriteIsr and ReadState, as `isr_writer.py` and `metadata.state.partition_states` carry them to etcd."""

    def __init__(self, owner: ReplicaManagerProcess) -> None:
        self._owner = owner
        self._notifications = 0

    def write(self, key: PartitionKey, topic: str, action: act.WriteIsr, settled: Callable[..., None]) -> None:
        epoch = self._owner.replica_manager.broker_epoch
        self._owner.spawn(self._write(key, topic, action, settled, epoch))

    async def _write(
        self, key: PartitionKey, topic: str, action: act.WriteIsr, settled: Callable[..., None], epoch: int | None
    ) -> None:
        owner = self._owner
        replica_manager = owner.replica_manager
        await owner.sleep(int(owner.random() * 4))
        if epoch is None or epoch != replica_manager.broker_epoch:
            settled(key, action.proposal_id, StateWriteResult(Outcome.UNAVAILABLE))
            return
        self._notifications += 1
        state_key = ("state", topic, key.partition)
        result = await owner.etcd(
            owner.world.etcd.txn,
            (
                Compare(state_key, "mod", action.compare_revision),
                Compare(("broker", replica_manager.broker_id), "create", epoch),
                *(Compare(("broker", joining), "create", each) for joining, each in action.broker_epochs.items()),
            ),
            (
                Put(state_key, action.state),
                Put(("isr_change", replica_manager.broker_id, epoch, self._notifications), ((topic, key.partition),)),
            ),
        )
        if result is None:
            outcome = StateWriteResult(Outcome.UNKNOWN)
        elif result.succeeded:
            outcome = StateWriteResult(Outcome.WRITTEN, result.revision)
        else:
            outcome = StateWriteResult(Outcome.REFUSED)
        owner.world.note("isr", replica_manager.broker_id, key, action.state.isr, outcome.outcome)
        settled(key, action.proposal_id, outcome)

    def read(self, key: PartitionKey, topic: str, seen: Callable[..., None]) -> None:
        self._owner.spawn(self._read(key, topic, seen))

    async def _read(self, key: PartitionKey, topic: str, seen: Callable[..., None]) -> None:
        owner = self._owner
        answer = await owner.etcd(owner.world.etcd.get, (("topic", topic), ("state", topic, key.partition)))
        if answer is None:
            return  # the partition asks again
        (assigned, state), _ = answer
        if assigned is not None and state is not None and assigned.value.topic_id == key.topic_id:
            seen(key, act.VersionedState(state.value, state.mod_revision))

    async def committed(self, topic: str, partition: int) -> PartitionState | None:
        owner = self._owner
        answer = await owner.etcd(owner.world.etcd.get, (("state", topic, partition),))
        if answer is None:
            raise Unavailable("no answer")
        (entry,) = answer[0]
        return None if entry is None else entry.value  # type: ignore[no-any-return]
