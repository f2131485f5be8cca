"""The present boot is recorded after each registration (RULES 7.2), however often that fails at first."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, eventually

from highwater.metadata.keys import Keys
from highwater.metadata.local import LocalEtcd
from highwater.metadata.store import Store
from highwater.replica_manager.append_stream import StorageUnavailableError
from highwater.replica_manager.storage import LogStorage


async def test_a_boot_that_could_not_be_recorded_is_tried_again(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up: the next start of the machine would have counted as a lost tail."""
    record_boot = LogStorage.record_boot
    tried, recorded = 0, False

    async def failing(storage: LogStorage) -> None:
        nonlocal tried, recorded
        tried += 1
        if tried <= 2:
            raise StorageUnavailableError("made up")
        await record_boot(storage)
        recorded = True

    async def done() -> bool:
        return recorded

    monkeypatch.setattr(LogStorage, "record_boot", failing)
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as cluster:
        # Its directory is new, so that its tail counts as lost until a controller has taken note of it.
        await store.put(keys.broker_tail(0), str(cluster[0].broker_epoch).encode())
        await eventually(done, "the boot is recorded")
    assert tried == 3
