"""What a disk has lost, kept in etcd where the disk cannot keep it (RULES 7.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from replica_manager_cluster import TestCluster, eventually

from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import Description, StorageUnavailableError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.state.doubted_dirs import doubted_dirs, forget_doubted, remember_doubted
from highwater.metadata.store.store import Store


def disk_of(cluster: TestCluster) -> Any:
    storage = cluster[1].log_storage
    assert storage is not None
    [log_dir] = storage._manager.logs.log_dirs
    return log_dir


async def test_a_directory_is_forgotten_only_as_it_was_read(store: Store, keys: Keys) -> None:
    await remember_doubted(store, keys, ["a", "b"])
    read = await doubted_dirs(store, keys)
    await remember_doubted(store, keys, ["b"])  # it lost something again
    await forget_doubted(store, keys, read)
    assert (await doubted_dirs(store, keys)).keys() == {"b"}


async def test_a_disk_in_doubt_counts_as_a_lost_tail_until_that_is_settled(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    async with TestCluster(store, keys, etcd.address, tmp_path, 2) as cluster:
        trio = cluster[1]

        async def settled() -> bool:
            return (await read_brokers(store, keys))[1].registration.tail_lost is False

        async def recorded() -> bool:
            return not disk_of(cluster).tail_lost

        await settle(cluster)
        await eventually(recorded, "the first start is settled")
        log_dir = disk_of(cluster)
        directory_id = log_dir.properties.directory_id
        log_dir.disk.doubted = None  # it takes nothing any more
        log_dir.disk.fail("an I/O error")
        manager = trio.replica_manager
        assert manager is not None
        manager.liveness.report_offline_logs()

        async def remembered() -> bool:
            return directory_id in await doubted_dirs(store, keys)

        await eventually(remembered, "etcd has it")
        before = trio.broker_epoch
        await trio.stop_log_storage()
        await trio.start_log_storage()
        await trio.registered(above=before)
        assert not disk_of(cluster).tail_lost  # of itself it does not know
        assert (await read_brokers(store, keys))[1].registration.tail_lost
        await settle(cluster)
        await eventually(settled, "the registration is ordinary")

        async def forgotten() -> bool:
            return directory_id not in await doubted_dirs(store, keys)

        await eventually(forgotten, "etcd forgets it")


async def test_nothing_offline_is_reported_before_it_is_known_what_is_in_doubt(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """log-storage beside a failing disk may be slow to answer. The controller was told all the same, and a start that
    came first brought the directory back as a whole one."""
    describe, failing = LogStorageClient.describe, 3

    async def slow(storage: LogStorageClient) -> Description:
        nonlocal failing
        if failing:
            failing -= 1
            raise StorageUnavailableError("made up")
        return await describe(storage)

    async with TestCluster(store, keys, etcd.address, tmp_path, 2) as cluster:
        manager = cluster[1].replica_manager
        assert manager is not None
        log_dir = disk_of(cluster)
        log_dir.disk.doubted = None  # it takes nothing any more
        log_dir.disk.fail("an I/O error")
        monkeypatch.setattr(LogStorageClient, "describe", slow)
        manager.liveness.report_offline_logs()

        async def reported() -> bool:
            return (await read_brokers(store, keys))[1].registration.offline_log_reports > 0

        await eventually(reported, "the controller is told")
        assert (await doubted_dirs(store, keys)).keys() == {log_dir.properties.directory_id}


async def settle(cluster: TestCluster) -> None:
    """The controller's part: every state has taken note."""
    epoch = str(cluster[1].broker_epoch).encode()
    await cluster.store.put(cluster.keys.broker_tail(1), epoch)
