"""A log directory whose checkpoints cannot be written keeps those of the others from nothing."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from log_storage_batches import batch, lead

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.telemetry.metrics import Metrics

KEYS = [PartitionKey(b"t" * 16, partition) for partition in range(2)]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[LogManager, LogStorageServicer]]:
    """A log in each of two directories, flushed and committed."""
    manager, threads = LogManager([tmp_path / "a", tmp_path / "b"], LogConfig(), broker_id=1), ThreadPoolExecutor(2)
    manager.load()
    for key in KEYS:
        manager.create("t", key, {})
        hosted = manager.logs.get(key)
        hosted.log_dir.record_fences({key: Fence(1, Role.LEADER, "rm", "ls")})
        lead(hosted.online(), batch(3))
        hosted.online().flush()
        hosted.online().offsets.raise_high_watermark(3)
    yield manager, LogStorageServicer(manager, "ls", threads, Metrics("log-storage"))
    threads.shutdown()
    manager.unlock()


@pytest.mark.parametrize("full", [0, 1])
async def test_a_full_directory_holds_up_no_other(
    served: tuple[LogManager, LogStorageServicer], monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    manager, servicer = served
    disk = FaultyDisk(manager.logs.get(KEYS[full]).log_dir.path, monkeypatch)
    disk.fail(("write",), errno.ENOSPC)
    sound = manager.logs.get(KEYS[1 - full])
    for write in (servicer.flushes.checkpoint_high_watermarks, servicer.flushes.checkpoint_recovery_points):
        with pytest.raises(LogError):
            await write()
    written = {
        name: checkpoints.read_offsets(sound.log_dir.path / name).get(sound.topic_partition)
        for name in (checkpoints.HIGH_WATERMARKS, checkpoints.RECOVERY_POINTS)
    }
    assert written == {checkpoints.HIGH_WATERMARKS: 3, checkpoints.RECOVERY_POINTS: 3}
    assert disk.met
