"""A broker of which some logs, or a directory, are offline: it registers with the rest, and comes to rest (RULES 7.2,
7.7)."""

from __future__ import annotations

from pathlib import Path

from replica_manager_cluster import TestCluster, Trio, eventually

from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.doubted_dirs import doubted_dirs, remember_doubted
from highwater.metadata.store.store import Store
from highwater.rpc.settings import load


async def start_with(trio: Trio, *directories: str) -> None:
    settings = load(
        LogStorageSettings,
        {
            "broker.id": str(trio.broker_id),
            "listen": trio._socket("ls"),
            "log.dirs": ",".join(str(trio.directory / each) for each in directories),
        },
    )
    trio.log_storage = LogStorageService(settings)
    await trio.log_storage.start()


async def test_it_registers_with_a_log_and_another_directory_offline(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    """Which cluster the directory belongs to that cannot be opened cannot be recorded in it. It was tried before each
    registration, and failed by the log: the broker was gone with everything else that it has."""
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as cluster:
        trio = cluster[0]
        topic = await cluster.create_topic("t")
        before = trio.broker_epoch
        await trio.stop_log_storage()
        (trio.directory / "logs" / "t-0" / f"{0:020}.log").unlink()
        (trio.directory / "logs" / "t-0" / f"{0:020}.log").mkdir()
        (trio.directory / "unusable").write_bytes(b"")
        await start_with(trio, "logs", "unusable")
        await trio.registered(above=before)
        manager = trio.replica_manager
        assert manager is not None
        described = await manager.replica_manager.storage.describe()
        assert [log.key for log in described.logs if log.offline] == [topic.key]


async def test_a_doubt_that_is_settled_is_forgotten_although_a_log_is_offline(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    """Everything was flushed again and again, for ever, and each later registration said that the tail is lost."""
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as cluster:
        trio = cluster[0]
        await cluster.create_topic("t")
        before = trio.broker_epoch
        manager = trio.replica_manager
        assert manager is not None
        [directory_id] = (await manager.replica_manager.storage.describe()).sound_dirs
        await trio.stop_log_storage()
        await remember_doubted(store, keys, [directory_id])
        (trio.directory / "logs" / "t-0" / f"{0:020}.log").unlink()
        (trio.directory / "logs" / "t-0" / f"{0:020}.log").mkdir()
        await trio.start_log_storage()
        broker_epoch = await trio.registered(above=before)
        await store.put(keys.broker_tail(0), str(broker_epoch).encode())

        async def forgotten() -> bool:
            return not await doubted_dirs(store, keys)

        await eventually(forgotten, "etcd forgets the doubt")
