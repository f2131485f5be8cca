"""Logs that are on the disk and not served (whose they are cannot be read, or a move cannot go on) keep what the
checkpoints say of them: once they are mended they begin, and are checked, where they did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from log_storage_batches import batch, lead

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import checkpoints, future_files
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN
from highwater.log_storage.log import log_copy
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100)
OF_ALL = (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS)


def opened(*paths: Path) -> LogManager:
    manager = LogManager(paths, CONFIG, broker_id=1)
    manager.load()
    return manager


def filled(*paths: Path) -> LogManager:
    """Its log starts inside its first segment: only the checkpoint knows."""
    manager = opened(*paths)
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
    manager.create("t", KEY, {})
    hosted = manager.logs.get(KEY)
    hosted.log_dir.record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    for _ in range(6):
        lead(hosted.online(), batch(value=b"x" * 150))
    hosted.online().offsets.raise_high_watermark(5)
    hosted.online().log_start.raise_to(1)
    hosted.online().flush()
    return manager


def state(manager: LogManager) -> tuple[int, int, int]:
    log = manager.logs.get(KEY).online()
    return log.log_start_offset, log.high_watermark, log.log_end_offset


def stop(manager: LogManager, *, clean: bool) -> None:
    if clean:
        manager.close()
    else:
        for log_dir in manager.logs.log_dirs:
            manager.logs.write_checkpoints(log_dir)
        manager.unlock()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [b"damaged", None])
def test_a_log_whose_metadata_is_mended_begins_where_it_did(tmp_path: Path, clean: bool, damage: bytes | None) -> None:
    manager = filled(tmp_path)
    stop(manager, clean=clean)
    metadata = tmp_path / "t-0" / "partition.metadata"
    whole = metadata.read_bytes()
    if damage is None:
        metadata.unlink()
    else:
        metadata.write_bytes(damage)
    for _ in range(2):
        manager = opened(tmp_path)
        assert manager.logs.find(KEY) is None
        manager.create("u", PartitionKey(b"u" * 16, 0), {})
        stop(manager, clean=clean)
    metadata.write_bytes(whole)
    manager = opened(tmp_path)
    assert state(manager) == (1, 5, 6)
    manager.unlock()


def test_a_clean_stop_says_nothing_of_a_log_that_was_not_opened(tmp_path: Path) -> None:
    """It was last stopped uncleanly: when it is opened it has to be scanned."""
    stop(filled(tmp_path), clean=False)
    metadata = tmp_path / "t-0" / "partition.metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(b"damaged")
    opened(tmp_path).close()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    metadata.write_bytes(whole)
    opened(tmp_path).close()
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_log_that_takes_the_place_of_one_that_was_moved_away_inherits_nothing(tmp_path: Path) -> None:
    stop(filled(tmp_path), clean=True)
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"damaged")
    manager = opened(tmp_path)
    (tmp_path / "t-0").rename(tmp_path / "kept")
    manager.create("t", KEY, {})
    manager.unlock()  # a crash
    manager = opened(tmp_path)
    assert state(manager) == (0, 0, 0)
    manager.unlock()


def test_the_copy_of_a_log_that_is_offline_keeps_its_recovery_point(tmp_path: Path) -> None:
    """What was on disk is not cut away later, as if it had been torn by the crash."""
    first, second = tmp_path / "a", tmp_path / "b"
    manager = filled(first, second)
    here = manager.logs.get(KEY).log_dir.path
    there = second if here == first else first
    manager.mover.start_move(KEY, str(there))
    future = manager.logs.get(KEY).future
    assert future is not None
    while plan := manager.logs.get(KEY).online().reader.plan_copy(future.log.log_end_offset, 300):
        log_copy.append_copy(future.log, plan.run(), 0)
    future.log.flush()
    flushed = future.log.recovery_point
    assert flushed == 6
    stop(manager, clean=False)
    # The log itself cannot be opened for a time.
    shutil.move(here / "t-0" / f"{0:020}.log", tmp_path / "aside")
    (here / "t-0" / "nonsense.log").touch()
    for _ in range(2):
        manager = opened(first, second)
        with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.LOG_STORAGE_ERROR):
            manager.logs.get(KEY).online()
        stop(manager, clean=True)
    offsets = checkpoints.read_offsets(there / checkpoints.RECOVERY_POINTS)
    assert offsets == {("t", 0): flushed}
    assert [name for path in there.iterdir() if (name := future_files.copied(path.name))] == ["t-0"]
