"""All that one registered broker has not been told yet. Pure.

One outbox a broker epoch: it begins with everything and dies with the registration. LeaderAndIsr and StopReplica go one
after the other, UpdateMetadata beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from highwater.controller.sending.metadata_outbox import MetadataOutbox
from highwater.controller.sending.redelivery import Redelivery, backoff_ms
from highwater.controller.state_machines.actions import (
    Send,
    SendLeaderAndIsr,
    SendMetadata,
    SendStopReplica,
    StopPartition,
)
from highwater.model.partition import PartitionKey

# A request: one call of FenceEpoch carries them all. As many as a broker answers for in one to two seconds, so that one
# that has much to do, and nothing else wrong, is not taken for silent.
MIN_PARTITIONS, MAX_PARTITIONS = 50, 500
FIRST_PARTITIONS = 100
SLOW_ANSWER_MS, QUICK_ANSWER_MS = 2_000, 1_000
UNANSWERED_MS = 5_000  # RULES 7.7


@dataclass(frozen=True, slots=True)
class InstructionBatch:
    """A LeaderAndIsr request to send; empty where the broker is greeted and hosts nothing."""

    keys: Mapping[PartitionKey, int]


@dataclass(frozen=True, slots=True)
class StopBatch:
    """A StopReplica request to send."""

    keys: Mapping[PartitionKey, int]
    partitions: tuple[StopPartition, ...]


class Outbox:
    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self._greeted = False
        self._stops_next = False  # after what was refused: that is due again and again
        self._control_failures = 0
        self._limit = FIRST_PARTITIONS  # of the next request
        self._control_sent_ms = 0
        self._instructions: Redelivery[PartitionKey] = Redelivery()
        self._stops: Redelivery[PartitionKey] = Redelivery()
        self._stop_partitions: dict[PartitionKey, StopPartition] = {}
        self.metadata = MetadataOutbox()

    def add(self, send: Send, now_ms: int) -> None:
        """Takes what the cluster wants sent; what was meant for another registration is dropped."""
        if (send.broker_id, send.broker_epoch) != (self.broker_id, self.broker_epoch):
            return
        match send:
            case SendLeaderAndIsr(keys=keys, leading=leading):
                self._instructions.put(keys, now_ms, urgent=leading)
            case SendStopReplica(partitions=partitions):
                stops = {stop.key: stop for stop in partitions}
                self._instructions.discard(stops)
                self._stop_partitions |= stops
                self._stops.put(stops, now_ms)
            case SendMetadata():
                self.metadata.add(send)

    # LeaderAndIsr and StopReplica

    def next_control(self, now_ms: int) -> InstructionBatch | StopBatch | None:
        """Returns what to send now; leaderships before followerships, as nobody is served by a partition before its
        leader has been told, and both before deletions."""
        self._control_sent_ms = now_ms
        if not self._stops_next:
            keys = self._instructions.take(now_ms, self._limit)
            if keys or not self._greeted:
                return InstructionBatch(keys)
        self._stops_next = False
        keys = self._stops.take(now_ms, self._limit)
        if keys:
            return StopBatch(keys, tuple(self._stop_partitions[key] for key in keys))
        keys = self._instructions.take(now_ms, self._limit)
        return InstructionBatch(keys) if keys else None

    def control_due_ms(self) -> int | None:
        """The time at which `next_control` has something to say; None: not before `add`."""
        due = [at for at in (self._instructions.next_due_ms(), self._stops.next_due_ms()) if at is not None]
        return min(due, default=None)

    def instructed(self, batch: InstructionBatch, refused: Collection[PartitionKey], now_ms: int) -> None:
        """The broker answered; `refused` are the partitions that it answered with an error, or not at all."""
        self._greeted = True
        self._stops_next = bool(refused)
        self._control_failures = 0
        self._took(len(batch.keys), now_ms - self._control_sent_ms)
        self._instructions.answered(batch.keys, refused, now_ms)

    def stopped(self, batch: StopBatch, refused: Collection[PartitionKey], now_ms: int) -> None:
        self._control_failures = 0
        self._took(len(batch.keys), now_ms - self._control_sent_ms)
        self._stops.answered(batch.keys, refused, now_ms)
        for key in batch.keys:
            if key not in self._stops:
                self._stop_partitions.pop(key, None)

    def control_failed(self, batch: InstructionBatch | StopBatch, now_ms: int) -> int:
        """The broker could not be reached or did not answer in time. Returns how long to pause, in ms."""
        (self._instructions if isinstance(batch, InstructionBatch) else self._stops).failed(batch.keys, now_ms)
        self._took(len(batch.keys), now_ms - self._control_sent_ms)
        pause_ms = backoff_ms(self._control_failures)
        self._control_failures += 1
        return pause_ms

    def _took(self, partitions: int, answer_ms: int) -> None:
        """A request was answered for, or given up: the next ones are half or twice as large."""
        if answer_ms > SLOW_ANSWER_MS:
            self._limit = max(self._limit // 2, MIN_PARTITIONS)
        elif answer_ms < QUICK_ANSWER_MS and partitions >= self._limit:
            self._limit = min(2 * self._limit, MAX_PARTITIONS)

    def unanswered(self, now_ms: int) -> tuple[PartitionKey, ...]:
        """Partitions of which LeaderAndIsr has gone unanswered for 5 s since it was sent, each once; and those that
        wait to be sent, where the broker has answered nothing for as long (RULES 7.7)."""
        return self._instructions.overdue(now_ms, UNANSWERED_MS)

    def told(self, keys: Iterable[PartitionKey]) -> bool:
        """Tells whether the broker has answered for the latest instructions of these partitions."""
        return not any(key in self._instructions for key in keys)

    @property
    def untold(self) -> Collection[PartitionKey]:
        """Partitions for whose latest instructions it has not answered without an error."""
        return self._instructions.keys

    @property
    def greeted(self) -> bool:
        """Tells whether it has answered an instruction, be it an empty one."""
        return self._greeted

    def is_stopping(self, topic_id: bytes) -> bool:
        """Tells whether a replica of the topic is still to be stopped."""
        return any(key.topic_id == topic_id for key in self._stop_partitions)
