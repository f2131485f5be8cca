"""A disk that fails for good at any operation, in the midst of whatever is being done: its directory is offline, and a
start with the disk mended finds what was there before that step, or after it, or what is in between, without a hole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import FaultyDisk
from log_storage_batches import lead, produced, read_all

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.log import log_copy
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_bytes=500, retention_ms=-1)

Step = Callable[[LogManager, Path], Any]


def append(manager: LogManager, data: Path) -> None:
    log = log_of(manager)
    known = log.producers.get(7)
    sequence = known.batches[-1].last_sequence + 1 if known else 0
    lead(log, b"".join(produced(2, sequence=sequence + 2 * number) for number in range(5)), max(log.last_epoch, 1))


def truncate(manager: LogManager, data: Path) -> None:
    manager.truncate(manager.logs.get(KEY), log_of(manager).log_end_offset - 7, 99)


def retain(manager: LogManager, data: Path) -> None:
    log_of(manager).offsets.raise_high_watermark(log_of(manager).log_end_offset)
    manager.retain(manager.logs.get(KEY), 0)


def move(manager: LogManager, data: Path) -> None:
    here = manager.logs.get(KEY).log_dir.path.name
    manager.mover.start_move(KEY, str(data / ("b" if here == "a" else "a")))
    future = manager.logs.get(KEY).future
    assert future is not None
    while plan := log_of(manager).reader.plan_copy(future.log.log_end_offset, 300):
        log_copy.append_copy(future.log, plan.run(), 0)
    manager.mover.swap(manager.logs.get(KEY))


STEPS: dict[str, Step] = {
    "append": append,
    "flush": lambda manager, data: log_of(manager).flush(),
    "truncate": truncate,
    "retain": retain,
    "move": move,
    "start anew": lambda manager, data: manager.truncate_fully_and_start_at(manager.logs.get(KEY), 100, 99),
    "checkpoints": lambda manager, data: manager.logs.write_checkpoints(manager.logs.get(KEY).log_dir),
    "fence": lambda manager, data: manager.logs.get(KEY).log_dir.record_fences(
        {KEY: Fence(9, Role.FOLLOWER, "", "ls")}
    ),
}


def opened(data: Path) -> LogManager:
    manager = LogManager([data / "a", data / "b"], CONFIG, broker_id=1)
    manager.load()
    return manager


def log_of(manager: LogManager) -> Log:
    return manager.logs.get(KEY).online()


def contents(manager: LogManager) -> tuple[list[int], int, int]:
    log = log_of(manager)
    return [header.base_offset for header in read_all(log)], log.log_start_offset, log.log_end_offset


@pytest.mark.parametrize("step", STEPS)
def test_the_disk_fails_at_any_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    manager = prepared(tmp_path / "sound")
    before = contents(manager)
    STEPS[step](manager, tmp_path / "sound")
    done = contents(manager)
    manager.unlock()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{name}", lambda descriptor: None)
    disk = FaultyDisk(tmp_path, monkeypatch)
    operations = 0
    while (outcome := failing(tmp_path / str(operations), disk, STEPS[step], operations)) == "offline":
        again = opened(tmp_path / str(operations))
        offsets, start, end = contents(again)
        again.unlock()
        assert start in range(min(before[1], done[1]), max(before[1], done[1]) + 1), operations
        assert end in range(min(before[2], done[2]), max(before[2], done[2]) + 1), operations
        assert offsets == list(range(start - start % 2, end, 2)), operations  # nothing is missing in between
        operations += 1
    assert outcome == "done"
    assert operations > 1


def prepared(data: Path) -> LogManager:
    """15 batches of two records, on disk, and known to be: 10 of them are committed."""
    manager = opened(data)
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
    manager.create("t", KEY, {})
    manager.logs.get(KEY).log_dir.record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    for _ in range(3):
        append(manager, data)
    log_of(manager).flush()
    log_of(manager).offsets.raise_high_watermark(20)
    manager.logs.write_checkpoints(manager.logs.get(KEY).log_dir)
    return manager


def failing(data: Path, disk: FaultyDisk, step: Step, operations: int) -> str:
    """What comes of the step where the disk fails after so many operations; it is mended then."""
    manager = prepared(data)
    disk.left = operations
    try:
        step(manager, data)
        return "done"
    except (LogError, OSError) as error:
        return "offline" if any(log_dir.offline for log_dir in manager.logs.log_dirs) else f"not noticed: {error}"
    finally:
        disk.heal()
        manager.unlock()
