"""The replica-manager's process: the production `ReplicaManager` with its partitions, pipelines, tail caches and
sessions; what is asyncio and gRPC in `replica_manager/` is a coroutine and a call of the simulated network here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.metadata.store.etcd_errors import Refused
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition import actions as act
from highwater.replica_manager.partition.answers import (
    ACKS_ALL,
    check_consumer_fetch,
    latest_for_consumer,
    produce_admission,
)
from highwater.replica_manager.partition.tail_cache import TailBatch
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.fetch import FetchHandler

from .fetch_stream import BATCH_BYTES
from .following_stream import Deliver, FollowingStream
from .groups.coordinator import SimulatedCoordinator
from .groups.loop import SimulatedLoop
from .history import InvariantError
from .network import Stream
from .replica_control import Control
from .replica_manager_clients import APPEND_LIMIT_MS, IsrChanges, StorageClient
from .scheduler import Process
from .storage import Batch
from .throttles import Account

if TYPE_CHECKING:
    from .world import Node, World

# A produce is answered within its time-out and so much: its append may be refused some times before it is written, or
# log-storage may not answer it at all.
PRODUCE_MARGIN_MS = APPEND_LIMIT_MS + 2000
ETCD_TIMEOUT_MS = 600
REFUSED_PAUSE_MS = 200
LOOK_STEP_MS = 1


class SimulatedReplicaManager(ReplicaManager):
    """Fences go over the simulated network, and each step of a partition is checked."""

    def __init__(self, owner: ReplicaManagerProcess, settings: act.PartitionSettings, cache_batches: int) -> None:
        super().__init__(
            owner.node.broker_id,
            settings,
            owner.storage_client,  # type: ignore[arg-type]
            owner.storage_client,  # type: ignore[arg-type]
            owner.storage_client,  # type: ignore[arg-type]
            owner.isr_changes,  # type: ignore[arg-type]
            incarnation=owner.incarnation,
            tail_cache_bytes=cache_batches,
            purgatory=Purgatory(max_produces=10_000, max_fetches=10_000),
            message_max_bytes=BATCH_BYTES,
            lease_confirmed=owner.lease_confirmed,
            register_anew=owner.register_anew,
            report_offline_logs=owner.control.report_offline_logs,
            now_ms=lambda: owner.scheduler.now_ms,
        )
        self._owner = owner

    def perform(self, hosted: HostedPartition, actions: Sequence[act.Action]) -> None:
        owner, partition = self._owner, hosted.partition
        for action in actions:
            owner.world.note("rm", self.broker_id, hosted.key, action)
            if isinstance(action, act.LeadershipStarted):
                owner.world.history.leads(
                    self.broker_id, self.incarnation, action.incarnation, hosted.key, action.leader_epoch
                )
                self._check_high_watermark(hosted, partition.high_watermark)
            elif isinstance(action, act.HighWatermarkAdvanced):
                self._check_high_watermark(hosted, action.offset)
        super().perform(hosted, actions)
        partition.check_invariants()

    def fenced(self, key: PartitionKey, answer: act.FenceAnswer) -> None:
        """Nobody but the services is at log-storage's port here: a leader's log does not become shorter."""
        hosted = self.hosted.get(key)
        leading = None if hosted is None else hosted.partition.leadership
        super().fenced(key, answer)
        if leading is not None and hosted is not None and hosted.partition.leadership is None:
            same = (answer.role, answer.leader_epoch, answer.error) == (
                Role.LEADER,
                leading.leader_epoch,
                ErrorCode.NONE,
            )
            if same and answer.incarnation == leading.incarnation and answer.log_end_offset < leading.log_end_offset:
                raise InvariantError("3.5", f"broker {self.broker_id} led {key} to {leading.log_end_offset}: {answer}")

    def tick(self) -> None:
        """A tick looks at what is due alone, and there is nothing that it should have looked at."""
        super().tick()
        for hosted in self.hosted.values():
            if hosted.partition.tick_from_ms > self.now_ms():
                missed = hosted.partition.tick(self.now_ms())
                if missed:
                    raise InvariantError(
                        "tick (due)", f"broker {self.broker_id} was not due for {hosted.key}: {missed}"
                    )
                if hosted.due_ms > hosted.partition.tick_from_ms:
                    raise InvariantError("tick (due)", f"broker {self.broker_id} never ticks {hosted.key}")
            for replica in hosted.partition.followers.values():
                session = replica.session
                if session is None or not replica.session_open:
                    continue
                if hosted.key not in session.partitions or not self.sessions.is_newest(session):
                    raise InvariantError("session (bound)", f"{hosted.key} would not hear of the end of {session}")

    def _check_high_watermark(self, hosted: HostedPartition, offset: int) -> None:
        partition = hosted.partition
        self._owner.world.history.leader_high_watermark(
            self.broker_id,
            self.incarnation,
            hosted.key,
            partition.leader_epoch,
            offset,
            {
                member: partition.followers[member].broker_epoch if member in partition.followers else -1
                for member in partition.maximal_isr
            },
        )

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            self._owner.after(0, self._publish)

    def _publish(self) -> None:
        self.publish_following()
        self._owner.following_published()


class Produced(NamedTuple):
    error: ErrorCode
    base_offset: int = -1


class ReplicaManagerProcess(Process):
    def __init__(self, world: World, node: Node, incarnation: str) -> None:
        super().__init__(world.scheduler, node.broker_id, f"replica-manager {node.broker_id}")
        self.world = world
        self.node = node
        self.incarnation = incarnation
        self.incremental = node.broker_id not in world.settings.previous_version  # as leader (RULES 4.10)
        self.random = world.scheduler.random.random
        self.storage_client = StorageClient(self)
        self.isr_changes = IsrChanges(self)
        self.confirmed_until_ms = 0
        self.control = Control(self)
        self.replica_manager = SimulatedReplicaManager(self, world.settings.partition, world.settings.cache_batches)
        self.fetch_handler = FetchHandler(self.replica_manager, None, max_bytes=100)  # type: ignore[arg-type]  # nothing is counted here
        self.throttled = Account(self.name, world.settings.brokers * (world.settings.fetch_batches + 3))
        self.produces: set[int] = set()  # that are not answered yet
        self._looks_at_damage = False
        self._damage_heard: tuple[str, frozenset[PartitionKey]] = ("", frozenset())  # of which log-storage, and where
        self._watchers: list[FollowingStream] = []
        self.loop: SimulatedLoop | None = None
        self.groups: SimulatedCoordinator | None = None
        if world.settings.groups is not None:
            self.loop = SimulatedLoop(self)
            self.groups = SimulatedCoordinator(self, self.loop)
            with self.loop.running():
                self.groups.start()
        self.spawn(self.control.start())
        world.throttles.started(self)

    # Production coroutines run on the process's event loop.

    def run(self, run: Callable[..., Any], *args: Any) -> None:
        if self.loop is None:
            super().run(run, *args)
        else:
            with self.loop.running():
                super().run(run, *args)

    def kill(self) -> None:
        super().kill()
        if self.loop is not None:
            self.loop.abandon()

    def _catch_up(self) -> None:
        if self.loop is None:
            super()._catch_up()
        else:
            with self.loop.running():
                super()._catch_up()

    async def etcd(self, what: Callable[..., Any], *args: Any) -> Any:
        """The answer; None where there is none, or a refusal that is waited out as none is."""
        answer = await self.world.etcd.ask(self, ETCD_TIMEOUT_MS, what, *args)
        if not isinstance(answer, Refused):
            return answer
        await self.sleep(REFUSED_PAUSE_MS)
        return None

    def lease_confirmed(self) -> bool:
        return self.now_ms < self.confirmed_until_ms

    def register_anew(self) -> None:
        self.replica_manager.registration_lost()
        self.control.register_anew()

    def storage_seen(self, incarnation: str) -> None:
        self.control.storage_seen(incarnation)

    def tick(self) -> None:
        self.replica_manager.tick()
        self._hear_of_damage()
        if not self._looks_at_damage:
            self._look_at_damage(self.replica_manager.damaged_logs.look())
        self.after(self.world.settings.tick_ms, self.tick)

    def _look_at_damage(self, steps: Iterator[None]) -> None:
        """Whatever comes between two steps comes after one damaged log has left, and before the broker registers."""
        self._looks_at_damage = next(steps, ...) is not ...
        if self._looks_at_damage:
            self.after(LOOK_STEP_MS, self._look_at_damage, steps)

    def _hear_of_damage(self) -> None:
        """Which logs log-storage knows to be damaged, by scrubbing and by what reads have met, and which no more: its
        answers say that there is something new, and it is asked."""
        storage = self.node.storage
        if storage is None or not storage.alive or storage.paused:
            return
        damaged = frozenset(key for key, log in self.node.disk.logs.items() if log.damaged_from is not None)
        heard = (storage.incarnation, damaged)
        if heard != self._damage_heard and storage.incarnation == self.replica_manager.log_storage_incarnation:
            self._damage_heard = heard
            self.replica_manager.damaged_logs.found(set(damaged))

    def damage_dropped(self) -> None:
        self._damage_heard = ("", frozenset())

    def checkpoint(self) -> None:
        marks = [
            (key, hosted.partition.leader_epoch, hosted.partition.high_watermark)
            for key, hosted in self.replica_manager.hosted.items()
            if hosted.partition.leadership is not None
        ]
        if marks:
            self.storage_client.call("on_checkpoint", marks)
        self.after(self.world.settings.checkpoint_ms, self.checkpoint)

    # WatchFollowing

    def watch_following(self, stream: Stream, deliver: Deliver, *, takes_changes: bool) -> FollowingStream:
        watcher = FollowingStream(self, stream, deliver, takes_changes=takes_changes)
        self._watchers = [each for each in self._watchers if not each.is_over]
        self._watchers.append(watcher)
        watcher.changed()
        return watcher

    def following_published(self) -> None:
        for watcher in self._watchers:
            watcher.changed()

    # Metadata and InitProducerId have no decisions worth simulating; this is what a client's Metadata request sees.

    def on_metadata(self, reply: Callable[[Any], None], key: PartitionKey) -> None:
        reply(self.replica_manager.leader_of(key))

    # Groups

    def on_find_coordinator(self, reply: Callable[[Any], None], group: str) -> None:
        assert self.groups is not None
        self.groups.on_find_coordinator(reply, group)

    def on_ask(self, reply: Callable[[Any], None], request: Any) -> None:
        assert self.groups is not None
        self.groups.on_ask(reply, request)

    # ReplicaControl

    def on_leader_and_isr(self, *request: Any) -> None:
        self.control.on_leader_and_isr(*request)

    def on_stop_replica(self, *request: Any) -> None:
        self.control.on_stop_replica(*request)

    def on_update_metadata(self, *request: Any) -> None:
        self.control.on_update_metadata(*request)

    def check_answered(self, append: Append, answer: AppendAnswer) -> None:
        """Where a definite answer says that the log ends, the leader knows it from then on; and nothing is held back
        behind an append that is answered (RULES 3.4)."""
        hosted = self.replica_manager.hosted.get(append.key)
        if hosted is None or hosted.pipeline is None or hosted.pipeline.leader_epoch != append.leader_epoch:
            return
        known = hosted.partition.log_end_offset
        if known < answer.log.log_end_offset:
            raise InvariantError(
                "produce (log end)", f"{self.name} takes {append.key} to end at {known}, was told {answer}"
            )
        if hosted.pipeline.outstanding and not self.storage_client.outstanding:
            raise InvariantError(
                "produce (parked)", f"{self.name} holds {hosted.pipeline.outstanding} appends of {append.key} back"
            )

    def standing(self) -> str:
        """What stands here although nothing is asked for any more."""
        for key, hosted in self.replica_manager.hosted.items():
            if hosted.partition.leadership is None:
                continue
            if hosted.pipeline is not None and hosted.pipeline.outstanding:
                return f"{self.name} holds {hosted.pipeline.outstanding} appends of {key}"
            log = self.node.disk.logs[key]
            if hosted.partition.log_end_offset != log.log_end_offset:
                return f"{self.name} takes {key} to end at {hosted.partition.log_end_offset}, it ends at {log.state}"
        if self.storage_client.outstanding:
            return f"{self.name} waits for {self.storage_client.outstanding} appends"
        if self.produces or len(self.replica_manager.purgatory.produces):
            return f"{self.name} has {len(self.produces)} produces, {len(self.replica_manager.purgatory.produces)} wait"
        return ""

    # Produce, as `produce.py` has it.

    def on_produce(
        self, reply: Callable[[Any], None], key: PartitionKey, acks: int, batch: Batch, timeout_ms: int
    ) -> None:
        """Every one is answered once, within its time-out and a margin."""
        number = self.world.count()
        self.produces.add(number)

        def answer(produced: Any) -> None:
            if number not in self.produces:
                raise InvariantError("produce (once)", f"{self.name} answers {batch} of {key} again: {produced}")
            self.produces.discard(number)
            reply(produced)

        self._expect_answer(number, batch, timeout_ms + PRODUCE_MARGIN_MS)
        self._produce(answer, key, acks, batch, timeout_ms)

    def _expect_answer(self, number: int, batch: Batch, within_ms: int) -> None:
        due_ms = self.now_ms + within_ms

        def check() -> None:
            if number not in self.produces:
                return
            if self.now_ms > due_ms:  # this process was paused: what it waits for may have come meanwhile
                self._expect_answer(number, batch, PRODUCE_MARGIN_MS)
            else:
                raise InvariantError("produce (in time)", f"{self.name} has not answered {batch} in {within_ms} ms")

        self.after(within_ms, check)

    def _produce(
        self, reply: Callable[[Any], None], key: PartitionKey, acks: int, batch: Batch, timeout_ms: int
    ) -> None:
        replica_manager = self.replica_manager
        hosted = replica_manager.hosted.get(key)
        if hosted is None:
            reply(Produced(replica_manager.absent(key)))
            return
        error = produce_admission(hosted.partition, acks)
        if error is ErrorCode.NONE and acks != ACKS_ALL and not self.lease_confirmed():
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # RULES 8.1
        if error is not ErrorCode.NONE or hosted.pipeline is None:
            reply(Produced(error or ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        leader_epoch = hosted.pipeline.leader_epoch
        answered = partial(self._appended, hosted, leader_epoch, acks, batch, reply, self.now_ms + timeout_ms)
        hosted.pipeline.append(batch, batch.records, answered)  # type: ignore[arg-type]

    def _appended(
        self,
        hosted: HostedPartition,
        leader_epoch: int,
        acks: int,
        batch: Batch,
        reply: Callable[[Any], None],
        deadline_ms: int,
        answer: Any,
    ) -> None:
        if answer.error is not ErrorCode.NONE:
            reply(Produced(answer.error))
            return
        if acks == ACKS_ALL:

            def committed(error: ErrorCode) -> None:
                if error is ErrorCode.NONE:
                    self.world.history.acked(
                        hosted.key, batch, answer.base_offset, self.replica_manager.broker_id, leader_epoch
                    )
                reply(Produced(error, answer.base_offset))

            hosted.await_commit(leader_epoch, answer.last_offset + 1, deadline_ms, committed)
        else:
            reply(Produced(ErrorCode.NONE, answer.base_offset))
        if not answer.duplicate:
            self._log_grew(hosted, leader_epoch, batch, answer)

    def _log_grew(self, hosted: HostedPartition, leader_epoch: int, batch: Batch, answer: Any) -> None:
        """As `HostedPartition.appended`, of a batch that is an object."""
        stamped = batch.stamped(answer.base_offset, leader_epoch)
        tail = TailBatch(stamped.base_offset, stamped.next_offset, leader_epoch, 1, (stamped,))  # type: ignore[arg-type]
        hosted._tail.append(leader_epoch, answer.incarnation, [tail])
        actions = hosted.partition.appended(
            leader_epoch, answer.incarnation, answer.log.log_end_offset, answer.log.log_start_offset, self.now_ms
        )
        self.replica_manager.perform(hosted, actions)
        hosted.wake_followers(answer.log.log_end_offset, 1)

    # Reading

    async def read(self, hosted: HostedPartition, offset: int, bound: int) -> tuple[bool, ErrorCode, Any]:
        """Whether log-storage had to be asked, error and batches below `bound`: as `FetchHandler._read`."""
        limit = self.world.settings.fetch_batches
        cached = hosted.cached(offset, bound, limit)
        if cached is not None:
            return False, ErrorCode.NONE, cached
        partition = hosted.partition
        leader_epoch = partition.leader_epoch
        answer = await self.storage_client.call("on_read", hosted.key, offset, bound, limit)
        if answer is None:
            return True, ErrorCode.LOG_STORAGE_ERROR, ()
        error, batches, incarnation = answer
        self.storage_seen(incarnation)
        if partition.leadership is None or partition.leader_epoch != leader_epoch:
            return True, ErrorCode.NOT_LEADER_OR_FOLLOWER, ()  # what was read may be another leader's by now
        return True, error, batches

    def on_consume(self, reply: Callable[[Any], None], key: PartitionKey, leader_epoch: int, offset: int) -> None:
        self.spawn(self._consume(reply, key, leader_epoch, offset))

    async def _consume(self, reply: Callable[[Any], None], key: PartitionKey, leader_epoch: int, offset: int) -> None:
        """(error, batches, leader epoch)."""
        hosted = self.replica_manager.hosted.get(key)
        if hosted is None:
            reply((self.replica_manager.absent(key), (), -1))
            return
        partition = hosted.partition
        error = check_consumer_fetch(partition, leader_epoch, offset)
        if error is not ErrorCode.NONE:
            reply((error, (), partition.leader_epoch))
            return
        batches: Sequence[Batch] = ()
        epoch = partition.leader_epoch
        bound = partition.high_watermark
        if bound > offset:
            _, error, batches = await self.read(hosted, offset, bound)
        self.world.history.consumer_read(key, batches, bound, epoch)
        reply((error, batches, epoch))

    def on_latest(self, reply: Callable[[Any], None], key: PartitionKey) -> None:
        hosted = self.replica_manager.hosted.get(key)
        latest = ErrorCode.NOT_LEADER_OR_FOLLOWER if hosted is None else latest_for_consumer(hosted.partition)
        if hosted is not None and not isinstance(latest, ErrorCode):
            self.world.history.latest_shown(key, hosted.partition.leader_epoch, latest)
        reply(latest)
