"""A log whose `partition.metadata` has a flipped bit belongs to a topic that etcd has never heard of: it is kept all
the same, and none is begun in its place (RULES 9.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, rows

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import VersionedState
from highwater.metadata.store.store import Store


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as running:
        yield running


async def test_it_is_neither_purged_nor_begun_anew(cluster: TestCluster) -> None:
    broker = cluster[0]
    topic = await cluster.create_topic("orders")
    assert (await broker.produce(topic.key, rows(b"a", b"b"))).error.code == ErrorCode.NONE
    path = broker.directory / "logs" / "orders-0" / "partition.metadata"
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[-5] ^= 1 if chr(damaged[-5] ^ 1).isalnum() else 2
    await restart(cluster, lambda: path.write_bytes(damaged))

    async def instructed() -> ErrorCode:
        """As a leader under the next epoch."""
        present = await cluster.state(topic)
        state = present.state.with_(
            leader_epoch=present.state.leader_epoch + 1, leader_broker_epoch=broker.broker_epoch
        )
        revision = await cluster.store.put(cluster.keys.state("orders", 0), state.to_json())
        again = type(topic)(topic.name, topic.key, topic.replicas, {}, VersionedState(state, revision))
        return ErrorCode((await cluster.instruct(0, again)).results[0].error.code)

    assert await instructed() is ErrorCode.LOG_STORAGE_ERROR  # not live here (RULES 7.7)
    manager = broker.replica_manager
    assert manager is not None
    await manager._purge.delete_strays(set())
    assert await instructed() is ErrorCode.LOG_STORAGE_ERROR
    assert [found.name for found in path.parents[1].iterdir() if found.is_dir()] == ["orders-0"]
    await restart(cluster, lambda: path.write_bytes(sound))
    assert await instructed() is ErrorCode.NONE
    assert (await broker.produce(topic.key, rows(b"c"))).base_offset == 2


async def restart(cluster: TestCluster, while_stopped: Callable[[], object]) -> None:
    """log-storage, and with it the registration."""
    before = cluster[0].broker_epoch
    await cluster[0].stop_log_storage()
    while_stopped()
    await cluster[0].start_log_storage()
    await cluster[0].registered(above=before)
