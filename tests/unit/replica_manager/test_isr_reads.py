"""A state that was read is handed to its partition, whatever became of another's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas import isr_writer
from highwater.replica_manager.replicas.isr_writer import IsrChanges
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.telemetry.metrics import Metrics

NOTHING: Any = None
STATE = VersionedState(PartitionState(1, 5, 7, (1,)), 10)


async def test_one_partition_that_cannot_take_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are read behind it would ask again and again, each time behind it, and propose nothing for good."""

    async def read_own_states(*args: Any, **_: Any) -> dict[PartitionKey, VersionedState]:
        return dict.fromkeys(args[2], STATE)

    monkeypatch.setattr(isr_writer, "GATHER_S", 0.0)
    monkeypatch.setattr(isr_writer, "read_own_states", read_own_states)
    changes = IsrChanges(NOTHING, NOTHING, 1, broker_epoch=lambda: 7, metrics=ReplicaManagerMetrics(Metrics("test")))
    last_seen = asyncio.Event()

    def seen(key: PartitionKey, state: VersionedState) -> None:
        if key.partition == 0:
            raise AssertionError("what etcd holds of it breaks an invariant")
        last_seen.set()

    for partition in range(2):
        changes.read(PartitionKey(bytes(16), partition), "t", seen)
    async with asyncio.timeout(2):
        await last_seen.wait()
