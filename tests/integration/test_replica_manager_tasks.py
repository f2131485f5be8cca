"""A long-lived task of a replica-manager that fails is begun anew, or ends the process; it never ends unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, eventually

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.store.store import Store
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.service import ReplicaManagerService


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as running:
        yield running


def manager_of(cluster: TestCluster) -> ReplicaManagerService:
    manager = cluster[0].replica_manager
    assert manager is not None
    return manager


def failures(manager: ReplicaManagerService, task: str) -> float:
    name = "highwater_replica_manager_task_failures_total"
    return manager._metrics.registry.get_sample_value(name, {"task": task}) or 0.0


async def test_a_watch_that_meets_what_it_cannot_read_goes_on_without_it(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to end every replica-manager of the cluster at once, later the watch alone until that was mended."""
    manager = manager_of(cluster)
    await cluster.store.put(cluster.keys.broker(9), b"edited by hand")
    await cluster.store.put(
        cluster.keys.broker(8), BrokerRegistration(8, "127.0.0.1:1", "start", "log-storage").to_json()
    )

    async def seen() -> bool:
        return 8 in manager.replica_manager.live_brokers

    await eventually(seen, "the watch goes on")
    assert failures(manager, "watch-brokers") == 0
    assert not manager.failed.done()
    assert f"{cluster.keys.broker(9)} cannot be read" in caplog.text
    await cluster.store.put(
        cluster.keys.broker(9), BrokerRegistration(9, "127.0.0.1:1", "start", "log-storage").to_json()
    )

    async def mended() -> bool:
        return 9 in manager.replica_manager.live_brokers

    await eventually(mended, "it is seen once it is mended")


async def test_a_tick_that_fails_ends_the_process(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose invariants do not hold is not to be gone by: the next process begins with etcd and the logs."""

    def tick(replica_manager: ReplicaManager) -> None:
        raise AssertionError("made up")

    manager = manager_of(cluster)
    monkeypatch.setattr(ReplicaManager, "tick", tick)

    async def failed() -> bool:
        return manager.failed.done()

    await eventually(failed, "the process is told to end")
    assert isinstance(manager.failed.exception(), AssertionError)
    assert failures(manager, "tick") == 1
