"""The controller's instructions: LeaderAndIsr, StopReplica, UpdateMetadata (RULES 1.2, 1.3, 3.3, 9.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import ERROR
from typing import TypeVar

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import CreateAnswer, StorageError
from highwater.model.partition import PartitionKey
from highwater.model.topic_name import is_legal_topic_name
from highwater.replica_manager.membership.liveness import Liveness
from highwater.replica_manager.membership.purge import Purge
from highwater.replica_manager.partition.actions import Instruction
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, Term
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.instructions import (
    InstructionOutcome,
    Outcomes,
    PartitionInstruction,
    Sender,
    StopInstruction,
)
from highwater.replica_manager.requests.log_creation import LogCreation
from highwater.rpc.process.loop_turn import by_turns
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, identify, pairs
from highwater.telemetry.summed_log import SummedLog

complaints = SummedLog(get_logger("replica_manager.control"))

Part = TypeVar("Part")
AT_ONCE = 125
"""Partitions of a request that are taken before others have a turn of the event loop: each is some 100 us of it."""


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
        self._log_creation = LogCreation(replica_manager, purge, supervisor or TaskSupervisor())
        # RULES 1.2: None until it has been read from etcd; before, no instruction is taken.
        self.controller_epoch: int | None = None
        # Instructions are taken one request after the other. Nothing that may take long is waited for inside: neither
        # fences nor deletions, nor what a log waits for before it can be made.
        self._lock = asyncio.Lock()
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
            # Under the lock: while the names are read no later request may overtake this one.
            refused = refused or await _misnamed(each.topic for each in instructions)
            if refused is not None:
                return refused
            created = await self._log_creation.create(instructions)
            refused = self._stale(sender)  # the registration may have been lost while logs were made (RULES 1.4)
            if refused is not None:
                return refused
            errors: list[StorageError] = []
            with self._replica_manager.gathering_fences():
                for piece in in_pieces(instructions):
                    if errors:
                        await asyncio.sleep(0)
                        refused = self._stale(sender)
                        if refused is not None:
                            return refused
                    refusals = {each.key for each in piece if _is_refused(created.get(each.key))}
                    self._learn(each for each in piece if each.key not in refusals)
                    errors += [self._instruct(each, created.get(each.key)) for each in piece]
        outcomes: list[InstructionOutcome] = []
        for instruction, error in zip(instructions, errors, strict=True):
            outcomes.append(await self._outcome(instruction.key, error))
            if len(outcomes) % AT_ONCE == 0:
                await asyncio.sleep(0)
        return Outcomes(ErrorCode.NONE, partitions=outcomes)

    async def stop_replica(self, sender: Sender, stops: Sequence[StopInstruction]) -> Outcomes:
        refused = await self._refusal(sender)
        if refused is not None:
            return refused
        outcomes: dict[PartitionKey, InstructionOutcome] = {}
        doomed: list[PartitionKey] = []
        done = False
        try:
            refused = await self._stop(sender, stops, outcomes, doomed)
            if refused is not None:
                return refused
            # Not under the lock: deletions take long, and instructions must be answered within 5 s (RULES 7.7). A log
            # that is wanted again by then is kept by its fence, or made again.
            if doomed:
                await self._delete(doomed, outcomes)
            done = True
        finally:
            if doomed and not done:
                # Its sender is overtaken, or has gone away: no later controller may know of these logs, and as they are
                # hosted no more, nothing else tells that they remained (RULES 9.2).
                self._remained()
        return Outcomes(ErrorCode.NONE, partitions=[outcomes[stop.key] async for stop in by_turns(stops)])

    async def _stop(
        self,
        sender: Sender,
        stops: Sequence[StopInstruction],
        outcomes: dict[PartitionKey, InstructionOutcome],
        doomed: list[PartitionKey],
    ) -> Outcomes | None:
        """Fills in what became of each, and whose logs are to be deleted; the refusal of those that are left."""
        async with self._lock:
            if not stops:
                return self._stale(sender)
            async for stop in by_turns(stops):
                refused = self._stale(sender)  # others have had their turn
                if refused is not None:
                    return refused
                hosted = self._replica_manager.hosted.get(stop.key)
                if hosted is not None and 0 <= stop.leader_epoch < hosted.partition.leader_epoch:
                    outcomes[stop.key] = InstructionOutcome(stop.key, ErrorCode.FENCED_LEADER_EPOCH)
                    continue
                self._replica_manager.evict(stop.key)
                self._complaints.pop(stop.key, None)
                outcomes[stop.key] = InstructionOutcome(stop.key, ErrorCode.NONE)
                if stop.delete_log:
                    doomed.append(stop.key)
        return None

    async def _delete(self, doomed: Sequence[PartitionKey], outcomes: dict[PartitionKey, InstructionOutcome]) -> None:
        deleted = await self._purge.delete(doomed)
        async for key, error in by_turns(deleted.items()):
            outcomes[key] = InstructionOutcome(key, error.code, error.message)
            if error.code is ErrorCode.LOG_STORAGE_ERROR:
                self._remained()

    async def update_metadata(
        self,
        sender: Sender,
        controller_address: str,
        endpoints: Sequence[Endpoint],
        topics: Sequence[CachedTopic],
        *,
        full: bool,
        deleted: Sequence[bytes],
        sequence: int = 0,
    ) -> Outcomes:
        refused = await self._refusal(sender) or await _misnamed(topic.topic for topic in topics)
        refused = refused or self._stale(sender)  # others have had their turn
        if refused is not None:
            return refused
        if not self._replica_manager.metadata.in_order(sender.controller_epoch, sequence):
            return Outcomes(ErrorCode.REQUEST_TIMED_OUT, f"request {sequence} comes after a later one")
        self._replica_manager.metadata.set_controller(sender.controller_id, controller_address)
        self._replica_manager.learn_brokers(endpoints)
        self._replica_manager.metadata.update(topics, full=full, deleted=deleted, term=self._term)
        if full and any(
            self._replica_manager.metadata.by_id(key.topic_id) is None for key in self._replica_manager.hosted
        ):
            # Deleted while this broker was out of the controllers' reach, but not of etcd's: it is registered as ever,
            # and a controller that was elected meanwhile does not know the topic any more, to stop its replicas (9.2).
            self._remained()
        return Outcomes(ErrorCode.NONE)

    async def _refusal(self, sender: Sender) -> Outcomes | None:
        if self.controller_epoch is not None and sender.controller_epoch >= self.controller_epoch:
            if sender.controller_epoch > self.controller_epoch:
                identify(controller_epoch=sender.controller_epoch)
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

    def _instruct(self, instruction: PartitionInstruction, created: CreateAnswer | None) -> StorageError:
        replica_manager = self._replica_manager
        hosted = replica_manager.hosted.get(instruction.key)
        if created is not None and _is_refused(created):
            self._complain(instruction, created.error)
            if created.incarnation and created.error.code is ErrorCode.LOG_STORAGE_ERROR:
                replica_manager.heard_offline(instruction.key, created.incarnation)
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
        details = pairs(
            topic=instruction.topic,
            partition=instruction.key.partition,
            error=error.code.name,
            reason=error.message,
        )
        complaints.note(ERROR, "cannot host", details, cause=error.code.name)

    def _learn(self, instructions: Iterable[PartitionInstruction]) -> None:
        """Instructions are metadata too, and often earlier than UpdateMetadata."""
        topics: dict[bytes, CachedTopic] = {}
        for each in instructions:
            topic = topics.setdefault(each.key.topic_id, CachedTopic(each.topic, each.key.topic_id, each.config))
            topic.partitions[each.key.partition] = CachedPartition(
                each.state.state, each.state.revision, each.replicas, each.offline_replicas
            )
        self._replica_manager.metadata.learn(topics.values(), self._term)

    @property
    def _term(self) -> Term:
        assert self.controller_epoch is not None  # whoever spoke was not refused
        return Term(self.controller_epoch, self._replica_manager.broker_epoch)

    async def _outcome(self, key: PartitionKey, error: StorageError) -> InstructionOutcome:
        hosted = self._replica_manager.hosted.get(key)
        code, message, tail = error.code, error.message, (-1, -1)
        if code is ErrorCode.NONE and hosted is not None:
            code, message, tail = await self._fenced(hosted), "", hosted.log_tail
        condition = self._replica_manager.condition(key, code)
        return InstructionOutcome(
            key, condition.error, message, *tail, log_offline=condition.offline, log_damaged=condition.damaged
        )

    @staticmethod
    async def _fenced(hosted: HostedPartition) -> ErrorCode:
        """The outcome of the fence that the instruction asked for, or of the one under way."""
        if hosted.fencing is None:
            return ErrorCode.NONE
        return (await asyncio.shield(hosted.fencing)).error


def in_pieces(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """At most `AT_ONCE` at a time."""
    return (parts[first : first + AT_ONCE] for first in range(0, len(parts), AT_ONCE))


def _is_refused(created: CreateAnswer | None) -> bool:
    return created is not None and created.error.code is not ErrorCode.NONE


async def _misnamed(topics: Iterable[str]) -> Outcomes | None:
    """The refusal of a request with a name that no topic has: what is hosted by it could be written nowhere in etcd."""
    async for topic in by_turns(topics):
        if not is_legal_topic_name(topic):
            return Outcomes(ErrorCode.INVALID_TOPIC, f"{topic[:250]!r} is no topic's name")
    return None
