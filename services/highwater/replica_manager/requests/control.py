"""The controller's instructions: LeaderAndIsr, StopReplica, UpdateMetadata (RULES 1.2, 1.3, 3.3, 9.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import CreateAnswer, StorageError, StorageUnavailableError
from highwater.metadata.schema.models import VersionedState
from highwater.metadata.store.etcd_errors import StoreError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.liveness import Liveness
from highwater.replica_manager.membership.purge import Purge
from highwater.replica_manager.partition.actions import Instruction
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.control")

CONCURRENT_CREATIONS = 32
PREPARING_PATIENCE_S = 0.5  # of a whole batch, for what has to happen before its logs can be made
_PREPARING = StorageError(
    ErrorCode.LOG_STORAGE_ERROR, "the log is being prepared (mended, or an earlier one deleted): ask again"
)


@dataclass(frozen=True, slots=True)
class Sender:
    """The controller that instructs, and the registration that it means."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int | None = None  # None: whichever (UpdateMetadata)


@dataclass(frozen=True, slots=True)
class PartitionInstruction:
    topic: str
    key: PartitionKey
    state: VersionedState
    replicas: tuple[int, ...]
    config: Mapping[str, str]
    offline_replicas: tuple[int, ...] = ()
    topic_revision: int = 0  # at which the topic was created


@dataclass(frozen=True, slots=True)
class StopInstruction:
    key: PartitionKey
    leader_epoch: int  # -1: of a deleted topic
    delete_log: bool


@dataclass(frozen=True, slots=True)
class InstructionOutcome:
    key: PartitionKey
    error: ErrorCode
    message: str = ""
    last_epoch: int = -1  # of the log, as log-storage last answered
    log_end_offset: int = -1
    log_offline: bool = False  # with an error: until log-storage is started again (RULES 7.7)
    log_damaged: bool = False  # with an error: until it counts for nothing and can be mended (RULES 7.6)


@dataclass(frozen=True, slots=True)
class Outcomes:
    error: ErrorCode
    message: str = ""
    partitions: Sequence[InstructionOutcome] = field(default_factory=tuple)


class Control:
    """`remained` is called where a log is still there that was to be deleted, or that may be nobody's any more."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        liveness: Liveness,
        purge: Purge,
        *,
        remained: Callable[[], None] = lambda: None,
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._replica_manager = replica_manager
        self._liveness = liveness
        self._purge = purge
        self._remained = remained
        self._supervisor = supervisor or TaskSupervisor()
        # RULES 1.2: None until it has been read from etcd; before, no instruction is taken.
        self.controller_epoch: int | None = None
        # Instructions are taken one request after the other. Nothing that may take long is waited for inside: neither
        # fences nor deletions, nor what `_preparing` holds.
        self._lock = asyncio.Lock()
        self._preparing: dict[PartitionKey, asyncio.Future[StorageError | None]] = {}
        self._complaints: dict[PartitionKey, StorageError] = {}  # why a partition cannot be hosted

    async def leader_and_isr(
        self, sender: Sender, instructions: Sequence[PartitionInstruction], endpoints: Sequence[Endpoint]
    ) -> Outcomes:
        refused = await self._refusal(sender)
        if refused is not None:
            return refused
        self._replica_manager.learn_brokers(endpoints)
        async with self._lock:
            refused = await self._refusal(sender)  # a newer controller may have spoken while this one waited
            if refused is not None:
                return refused
            created = await self._create_logs(instructions)
            refused = self._stale(sender)  # the registration may have been lost while logs were made (RULES 1.4)
            if refused is not None:
                return refused
            self._learn(
                instruction
                for instruction, answer in zip(instructions, created, strict=True)
                if answer is None or answer.error.code is ErrorCode.NONE
            )
            errors = [
                self._instruct(instruction, answer) for instruction, answer in zip(instructions, created, strict=True)
            ]
        return Outcomes(
            ErrorCode.NONE,
            partitions=[
                await self._outcome(instruction.key, error)
                for instruction, error in zip(instructions, errors, strict=True)
            ],
        )

    async def stop_replica(self, sender: Sender, stops: Sequence[StopInstruction]) -> Outcomes:
        refused = await self._refusal(sender)
        if refused is not None:
            return refused
        outcomes: dict[PartitionKey, InstructionOutcome] = {}
        doomed = []
        async with self._lock:
            refused = self._stale(sender)
            if refused is not None:
                return refused
            for stop in stops:
                hosted = self._replica_manager.hosted.get(stop.key)
                if hosted is not None and 0 <= stop.leader_epoch < hosted.partition.leader_epoch:
                    outcomes[stop.key] = InstructionOutcome(stop.key, ErrorCode.FENCED_LEADER_EPOCH)
                    continue
                self._replica_manager.evict(stop.key)
                self._complaints.pop(stop.key, None)
                outcomes[stop.key] = InstructionOutcome(stop.key, ErrorCode.NONE)
                if stop.delete_log:
                    doomed.append(stop.key)
        # Not under the lock: deletions take long, and instructions must be answered within 5 s (RULES 7.7). A log that
        # is wanted again by then is kept by its fence, or made again.
        if doomed:
            for key, error in (await self._purge.delete(doomed)).items():
                outcomes[key] = InstructionOutcome(key, error.code, error.message)
                if error.code is ErrorCode.LOG_STORAGE_ERROR:
                    self._remained()
        return Outcomes(ErrorCode.NONE, partitions=[outcomes[stop.key] for stop in stops])

    async def update_metadata(
        self,
        sender: Sender,
        controller_address: str,
        endpoints: Sequence[Endpoint],
        topics: Sequence[CachedTopic],
        *,
        full: bool,
        deleted: Sequence[bytes],
    ) -> Outcomes:
        refused = await self._refusal(sender)
        if refused is not None:
            return refused
        self._replica_manager.metadata.set_controller(sender.controller_id, controller_address)
        self._replica_manager.learn_brokers(endpoints)
        self._replica_manager.metadata.update(topics, full=full, deleted=deleted)
        if full and any(
            self._replica_manager.metadata.by_id(key.topic_id) is None for key in self._replica_manager.hosted
        ):
            # Deleted while this broker was out of the controllers' reach, but not of etcd's: it is registered as ever,
            # and a controller that was elected meanwhile does not know the topic any more, to stop its replicas (9.2).
            self._remained()
        return Outcomes(ErrorCode.NONE)

    async def _refusal(self, sender: Sender) -> Outcomes | None:
        if self.controller_epoch is not None and sender.controller_epoch >= self.controller_epoch:
            self.controller_epoch = sender.controller_epoch
            if sender.broker_epoch is not None:
                await self._liveness.await_registration(sender.broker_epoch)
        return self._stale(sender)

    def _stale(self, sender: Sender) -> Outcomes | None:
        """Tells why the sender is not to be obeyed. To be asked again after every wait."""
        if self.controller_epoch is None:
            return Outcomes(
                ErrorCode.STALE_BROKER_EPOCH, "this broker has not read the controller epoch from etcd yet: ask again"
            )
        if sender.controller_epoch < self.controller_epoch:
            return Outcomes(  # RULES 1.2
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {sender.controller_epoch} is over, the present one is {self.controller_epoch}",
            )
        if sender.broker_epoch is None or sender.broker_epoch == self._replica_manager.broker_epoch:
            return None
        return Outcomes(
            ErrorCode.STALE_BROKER_EPOCH,
            f"meant for broker epoch {sender.broker_epoch}, the present one is {self._replica_manager.broker_epoch}",
        )

    # LeaderAndIsr

    async def _create_logs(self, instructions: Sequence[PartitionInstruction]) -> list[CreateAnswer | None]:
        """None: the log is there, and log-storage, as it runs now, has the configuration."""
        slots = asyncio.Semaphore(CONCURRENT_CREATIONS)
        deadline = asyncio.get_running_loop().time() + PREPARING_PATIENCE_S

        async def create(instruction: PartitionInstruction) -> CreateAnswer | None:
            hosted = self._replica_manager.hosted.get(instruction.key)
            if self._replica_manager.broker_id not in instruction.replicas:
                return None
            fenced = hosted is not None and hosted.partition.phase is not Phase.UNFENCED  # else its log may be gone
            wanted = (self._replica_manager.log_storage_incarnation, instruction.config)
            damaged = instruction.key in self._replica_manager.damaged_logs
            if hosted is not None and fenced and hosted.log_config == wanted and not damaged:
                return None
            if damaged:
                error = await self._prepared(instruction.key, lambda: self._repair(instruction), deadline)
                if error is not None:
                    return CreateAnswer(error)
            answer = await create_log(instruction)
            if answer.error.code is not ErrorCode.INCONSISTENT_TOPIC_ID:
                return answer
            error = await self._prepared(instruction.key, lambda: self._delete_earlier(instruction), deadline)
            return CreateAnswer(error) if error is not None else await create_log(instruction)

        async def create_log(instruction: PartitionInstruction) -> CreateAnswer:
            async with slots:
                try:
                    return await self._replica_manager.storage.create_log(
                        instruction.topic,
                        instruction.key,
                        instruction.config,
                        self._older_log_storage(instruction),
                    )
                except StorageUnavailableError as error:
                    return CreateAnswer(StorageError(ErrorCode.LOG_STORAGE_ERROR, str(error)))

        return list(await asyncio.gather(*map(create, instructions)))

    async def _prepared(
        self, key: PartitionKey, prepare: Callable[[], Awaitable[StorageError | None]], deadline: float
    ) -> StorageError | None:
        """Returns what `prepare` answers, None if the log can be made or taken up. It waits for etcd and for deletions,
        so it goes on by itself where it is not done by the `deadline` (of the event loop): the other partitions of the
        batch, and the instructions behind it, must be answered within 5 s (RULES 7.7). This one comes again every
        second."""
        done = self._preparing.get(key)
        if done is None:
            done = self._preparing[key] = asyncio.get_running_loop().create_future()
            outcome = done

            async def run() -> None:
                try:
                    outcome.set_result(await prepare())
                except (StorageUnavailableError, StoreError) as error:
                    outcome.set_result(StorageError(ErrorCode.LOG_STORAGE_ERROR, str(error)))
                finally:
                    del self._preparing[key]
                    if not outcome.done():
                        outcome.set_result(StorageError(ErrorCode.LOG_STORAGE_ERROR, "the log could not be prepared"))

            self._supervisor.run_once("prepare-log", run)
        await asyncio.wait((done,), timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        return done.result() if done.done() else _PREPARING

    async def _repair(self, instruction: PartitionInstruction) -> StorageError | None:
        """Has a damaged log repaired (RULES 7.6)."""
        return await self._replica_manager.damaged_logs.mend(
            instruction.topic, instruction.key, instruction.state.state
        )

    async def _delete_earlier(self, instruction: PartitionInstruction) -> StorageError | None:
        """The log of an earlier topic of this name is in the way: it was deleted while this broker was away (RULES
        9.2)."""
        key = instruction.key
        described = await self._replica_manager.storage.describe()
        earlier = [
            log.key
            for log in described.logs
            if log.topic == instruction.topic and log.key.partition == key.partition and log.key != key
        ]
        await self._purge.delete(earlier)
        return None

    def _older_log_storage(self, instruction: PartitionInstruction) -> str:
        """log-storage's incarnation where the topic was created after this broker registered with it: then none of the
        topic's logs can be in a log directory that could not be opened. Empty where it may be older."""
        broker_epoch = (
            self._replica_manager.broker_epoch
        )  # none under another incarnation than the registered one (RULES 1.4)
        if broker_epoch is None or instruction.topic_revision <= broker_epoch:
            return ""
        return self._replica_manager.log_storage_incarnation

    def _instruct(self, instruction: PartitionInstruction, created: CreateAnswer | None) -> StorageError:
        replica_manager = self._replica_manager
        hosted = replica_manager.hosted.get(instruction.key)
        if created is not None and created.error.code is not ErrorCode.NONE:
            self._complain(instruction, created.error)
            if created.incarnation and created.error.code is ErrorCode.LOG_STORAGE_ERROR:
                replica_manager.offline_logs.seen([instruction.key])
            return created.error
        self._complaints.pop(instruction.key, None)
        if hosted is None and replica_manager.broker_id not in instruction.replicas:
            return StorageError(ErrorCode.REPLICA_NOT_ASSIGNED)
        hosted = replica_manager.host(instruction.key, instruction.topic, instruction.config)
        if created is not None:
            hosted.log_config = (created.incarnation, instruction.config)
        minimum = instruction.config.get("min.insync.replicas")
        error, actions = hosted.partition.instruct(
            Instruction(
                instruction.state,
                instruction.replicas,
                None if minimum is None else hosted.config.min_insync_replicas,
            ),
            replica_manager.now_ms(),
        )
        replica_manager.perform(hosted, actions)
        return StorageError(error)

    def _complain(self, instruction: PartitionInstruction, error: StorageError) -> None:
        """Logs it once, when it begins: the instruction is sent again every second."""
        if self._complaints.get(instruction.key) == error:
            return
        self._complaints[instruction.key] = error
        logger.error(
            "cannot host %s",
            pairs(
                topic=instruction.topic,
                partition=instruction.key.partition,
                error=error.code.name,
                reason=error.message,
            ),
        )

    def _learn(self, instructions: Iterable[PartitionInstruction]) -> None:
        """Instructions are metadata too, and often earlier than UpdateMetadata."""
        topics: dict[bytes, CachedTopic] = {}
        for each in instructions:
            topic = topics.setdefault(each.key.topic_id, CachedTopic(each.topic, each.key.topic_id, each.config))
            topic.partitions[each.key.partition] = CachedPartition(
                each.state.state, each.state.revision, each.replicas, each.offline_replicas
            )
        self._replica_manager.metadata.update(list(topics.values()), full=False)

    async def _outcome(self, key: PartitionKey, error: StorageError) -> InstructionOutcome:
        hosted = self._replica_manager.hosted.get(key)
        code, message, tail = error.code, error.message, (-1, -1)
        if code is ErrorCode.NONE and hosted is not None:
            code, message, tail = await self._fenced(hosted), "", hosted.log_tail
        failed = code is ErrorCode.LOG_STORAGE_ERROR
        offline, damaged = key in self._replica_manager.offline_logs, key in self._replica_manager.damaged_logs
        return InstructionOutcome(
            key, code, message, *tail, log_offline=failed and offline, log_damaged=failed and damaged
        )

    @staticmethod
    async def _fenced(hosted: HostedPartition) -> ErrorCode:
        """The outcome of the fence that the instruction asked for, or of the one under way."""
        if hosted.fencing is None:
            return ErrorCode.NONE
        return (await asyncio.shield(hosted.fencing)).error
