"""Carries WriteIsr and ReadState actions to etcd: those of a few milliseconds in one transaction (RULES 2.5, 2.6).

A write is made once and its outcome handed back; nothing is tried again here (RULES 2.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from logging import INFO
from typing import NamedTuple

from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.metadata.state.partition_states import (
    IsrChange,
    IsrWriter,
    Outcome,
    StateWriteResult,
    read_own_states,
    read_states,
)
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import WriteIsr
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.rpc.process.loop_turn import by_turns
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog

logger = get_logger("replica_manager.isr_writer")
partition_lines = SummedLog(logger)

GATHER_S = 0.003
TIMEOUT_S = 5.0
# Proposals that are written, and settled, before others have a turn of the event loop.
AT_ONCE = 480


Settled = Callable[[PartitionKey, int, StateWriteResult], None]
Seen = Callable[[PartitionKey, VersionedState], None]


class _Proposal(NamedTuple):
    key: PartitionKey
    topic: str
    action: WriteIsr
    settled: Settled
    broker_epoch: int | None  # under which it was made


class IsrChanges:
    """`broker_epoch` gives the present one, or None while not registered. A proposal is written under the one that it
    was made under, or refused unwritten: a later registration may be of a log with less in it (RULES 2.3)."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        broker_id: int,
        *,
        broker_epoch: Callable[[], int | None],
        metrics: ReplicaManagerMetrics,
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._writer = IsrWriter(store, keys, broker_id)
        self._broker_epoch = broker_epoch
        self._metrics = metrics
        self._writes: dict[PartitionKey, _Proposal] = {}
        self._reads: dict[PartitionKey, tuple[str, Seen]] = {}
        self._flushing: asyncio.TimerHandle | None = None
        self._supervisor = supervisor or TaskSupervisor()
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, key: PartitionKey, topic: str, action: WriteIsr, settled: Settled) -> None:
        """`settled` is called with the proposal's id and its outcome."""
        # A partition has one proposal in flight.
        self._writes[key] = _Proposal(key, topic, action, settled, self._broker_epoch())
        self._soon()

    def read(self, key: PartitionKey, topic: str, seen: Seen) -> None:
        """`seen` is called with the state, unless it cannot be read: the partition asks again."""
        self._reads[key] = (topic, seen)
        self._soon()

    async def committed(self, topic: str, partition: int) -> PartitionState | None:
        """A linearizable read of the state in etcd, at once; None: there is none. Raises `StoreError`."""
        states, _ = await read_states(self._store, self._keys, [(topic, partition)])
        versioned = states.get((topic, partition))
        return None if versioned is None else versioned.state

    async def stop(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _soon(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        writes, self._writes = self._writes, {}
        reads, self._reads = self._reads, {}
        if writes:
            self._spawn("isr-write", lambda: self._write(list(writes.values())))
        if reads:
            self._spawn("isr-read", lambda: self._read(reads))

    def _spawn(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        task = self._supervisor.run_once(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, proposals: Sequence[_Proposal]) -> None:
        """In pieces, one after the other. Where one has no outcome etcd is not asked for those behind it: their
        partitions propose again."""
        known = True
        for first in range(0, len(proposals), AT_ONCE):
            broker_epoch = self._broker_epoch() if known else None
            due = proposals[first : first + AT_ONCE]
            piece = [each for each in due if each.broker_epoch == broker_epoch]
            over = due if broker_epoch is None else [each for each in due if each.broker_epoch != broker_epoch]
            self._settle(over, [StateWriteResult(Outcome.UNAVAILABLE)] * len(over))
            if broker_epoch is None or not piece:
                await asyncio.sleep(0)
                continue
            changes = [
                IsrChange(key, topic, action.state, action.compare_revision, action.broker_epochs)
                for key, topic, action, _, _ in piece
            ]
            try:
                results = await self._writer.write(changes, broker_epoch, timeout_s=TIMEOUT_S)
            except StoreError as error:
                logger.warning("ISR changes of unknown outcome: %s", pairs(partitions=len(changes), error=error))
                results, known = [StateWriteResult(Outcome.UNKNOWN)] * len(piece), False
            except Exception:  # a mistake of ours: loud, and what may have been written stays pending
                logger.exception("ISR changes of unknown outcome: %s", pairs(partitions=len(changes)))
                results, known = [StateWriteResult(Outcome.UNKNOWN)] * len(piece), False
            self._settle(piece, results)

    def _settle(self, proposals: Sequence[_Proposal], results: Sequence[StateWriteResult]) -> None:
        for (key, topic, action, settled, _), result in zip(proposals, results, strict=True):
            partition_lines.note(
                INFO,
                "ISR change",
                pairs(topic=topic, partition=key.partition, isr=action.state.isr, outcome=result.outcome.value),
                cause=result.outcome.value,
            )
            self._metrics.isr_changes.labels(result.outcome.value).inc()
            if result.outcome is Outcome.WRITTEN:
                # Replicas that join are compared with their registrations; who leaves is not.
                (self._metrics.isr_expands if action.broker_epochs else self._metrics.isr_shrinks).inc()
            try:
                settled(key, action.proposal_id, result)
            except Exception:  # one partition's: the others are not to wait for it
                logger.exception("the outcome of an ISR change could not be taken %s", pairs(partition=key))

    async def _read(self, reads: dict[PartitionKey, tuple[str, Seen]]) -> None:
        topics = {key: topic for key, (topic, _) in reads.items()}
        try:
            found = await read_own_states(self._store, self._keys, topics, timeout_s=TIMEOUT_S)
        except StoreError as error:
            logger.warning("cannot read partition states: %s", error)  # the partition asks again
            return
        async for key, state in by_turns(found.items()):  # the controller will stop those that are not found
            try:
                reads[key][1](key, state)
            except Exception:  # one partition's: the others are not to wait for it
                logger.exception("a state that was read could not be taken %s", pairs(partition=key))
