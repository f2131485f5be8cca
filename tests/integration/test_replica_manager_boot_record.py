"""The present boot is recorded after each registration (RULES 7.2), however often that fails at first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, eventually

from highwater.log_storage.files import boot_record
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.metadata.leases.registration import BrokerRegistrar
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.store.store import Store


async def test_a_boot_that_could_not_be_recorded_is_tried_again(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up: the next start of the machine would have counted as a lost tail."""
    record_boot = LogStorageClient.record_boot
    tried, recorded = 0, False

    async def failing(storage: LogStorageClient, incarnation: str) -> None:
        nonlocal tried, recorded
        tried += 1
        if tried <= 2:
            raise StorageUnavailableError("made up")
        await record_boot(storage, incarnation)
        recorded = True

    async def done() -> bool:
        return recorded

    monkeypatch.setattr(LogStorageClient, "record_boot", failing)
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as cluster:
        # Its directory is new, so that its tail counts as lost until a controller has taken note of it.
        await store.put(keys.broker_tail(0), str(cluster[0].broker_epoch).encode())
        await eventually(done, "the boot is recorded")
    assert tried == 3


async def test_a_boot_is_not_recorded_over_what_a_later_start_has_found(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """log-storage is started again and finds that its tail is lost. While etcd does not take the registration that says
    so, what was still to be done for the one before ended it, and the next start would have known nothing of it."""
    record_boot, register = LogStorageClient.record_boot, BrokerRegistrar.register
    may_record, may_register = False, asyncio.Event()
    may_register.set()
    tried, recorded = 0, False

    async def failing(storage: LogStorageClient, *incarnation: str) -> None:
        nonlocal tried, recorded
        tried += 1
        if not may_record:
            raise StorageUnavailableError("made up")
        await record_boot(storage, *incarnation)
        recorded = True

    async def waiting(registrar: BrokerRegistrar, registration: BrokerRegistration) -> int:
        await may_register.wait()
        return await register(registrar, registration)

    monkeypatch.setattr(LogStorageClient, "record_boot", failing)
    monkeypatch.setattr(BrokerRegistrar, "register", waiting)
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as cluster:
        trio = cluster[0]
        manager = trio.replica_manager
        assert manager is not None
        await store.put(keys.broker_tail(0), str(trio.broker_epoch).encode())

        async def being_recorded() -> bool:
            return tried > 0

        await eventually(being_recorded, "the boot is to be recorded")
        may_register.clear()
        before = manager.replica_manager.log_storage_incarnation
        await trio.stop_log_storage()
        data = trio.directory / "logs"
        record = boot_record.read_record(data)
        present = boot_record.present_boot(data)
        boot_record.write_record(
            data,
            boot_record.BootRecord(0, present, False, tail_lost=True)
            if record is None
            else replace(record, tail_lost=True),
        )
        (data / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        await trio.start_log_storage()

        async def seen() -> bool:
            return manager.replica_manager.log_storage_incarnation != before

        await eventually(seen, "the new log-storage is seen")
        may_record = True
        settling = manager.liveness._tail
        assert settling is not None

        async def settled() -> bool:
            return recorded or settling.done()

        await eventually(settled, "what was to be done for the registration before has ended")
        storage = trio.log_storage
        assert storage is not None
        [log_dir] = storage._manager.logs.log_dirs
        assert log_dir.tail_lost
        may_register.set()
