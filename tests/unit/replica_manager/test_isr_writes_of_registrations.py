"""An ISR proposal is written under the registration that it was made under, or not at all (RULES 2.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from highwater.metadata.schema.models import PartitionState
from highwater.metadata.state.partition_states import IsrChange, Outcome, StateWriteResult
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import WriteIsr
from highwater.replica_manager.replicas import isr_writer
from highwater.replica_manager.replicas.isr_writer import IsrChanges
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.telemetry.metrics import Metrics

NOTHING: Any = None


class Broker:
    """Registered under some broker epoch; etcd takes whatever is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isr_writer, "GATHER_S", 0.0)
        self.broker_epoch: int | None = 7
        self.next_epoch: int | None = 7  # from when etcd has answered next
        self.written: list[tuple[int, int]] = []  # (partition, broker epoch)
        self.outcomes: dict[int, Outcome] = {}
        self._more = asyncio.Semaphore(0)
        self.changes = IsrChanges(
            NOTHING,
            NOTHING,
            1,
            broker_epoch=lambda: self.broker_epoch,
            metrics=ReplicaManagerMetrics(Metrics("test")),
        )
        self.changes._writer = self  # type: ignore[assignment]

    async def write(
        self, changes: Sequence[IsrChange], broker_epoch: int, *, timeout_s: float | None = None
    ) -> list[StateWriteResult]:
        self.written += [(change.key.partition, broker_epoch) for change in changes]
        await asyncio.sleep(0)
        self.broker_epoch = self.next_epoch
        return [StateWriteResult(Outcome.WRITTEN, 11)] * len(changes)

    def propose(self, partition: int) -> None:
        """It goes on without its follower."""
        action = WriteIsr(1, PartitionState(1, 5, 7, (1,)), 10, {})
        self.changes.write(PartitionKey(bytes(16), partition), "t", action, self._settled)

    def _settled(self, key: PartitionKey, proposal_id: int, result: StateWriteResult) -> None:
        self.outcomes[key.partition] = result.outcome
        self._more.release()

    async def settled(self, partitions: int) -> None:
        async with asyncio.timeout(5):
            for _ in range(partitions):
                await self._more.acquire()


async def test_a_registration_between_the_proposal_and_its_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """What registered anew may be a log-storage that has lost its tail: its follower must not leave the ISR for it."""
    broker = Broker(monkeypatch)
    broker.propose(0)
    broker.broker_epoch = broker.next_epoch = 8
    broker.propose(1)
    await broker.settled(2)
    assert broker.written == [(1, 8)]
    assert broker.outcomes == {0: Outcome.UNAVAILABLE, 1: Outcome.WRITTEN}


async def test_a_registration_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_writer, "AT_ONCE", 2)
    broker = Broker(monkeypatch)
    broker.next_epoch = 8
    for partition in range(4):
        broker.propose(partition)
    await broker.settled(4)
    assert broker.written == [(0, 7), (1, 7)]
    assert [broker.outcomes[partition] for partition in range(4)] == [Outcome.WRITTEN] * 2 + [Outcome.UNAVAILABLE] * 2
