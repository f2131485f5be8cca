"""A process without descriptors left says nothing of what is on the disk: no log is damaged or offline for it."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faulty_disk import SYNCS, FaultyDisk
from log_storage_batches import batch, lead, read_all

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.scrubbing.scrubber import Scrubber
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.telemetry.metrics import Metrics

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
LACKING = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]


def opened(path: Path) -> LogManager:
    manager = LogManager([path], CONFIG, broker_id=1)
    manager.load()
    return manager


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of a log of several segments, stopped cleanly."""
    path = tmp_path / "data"
    manager = opened(path)
    manager.logs.log_dirs[0].record_boot()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    log = manager.logs.get(KEY).online()
    for _ in range(8):
        lead(log, batch(value=b"x" * 200))
    log.offsets.raise_high_watermark(8)
    assert len(log.segments) > 3
    manager.close()
    return path


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


@pytest.mark.parametrize("number", LACKING)
async def test_scrubbing_finds_nothing_and_drops_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    manager = opened(data)
    hosted, threads = manager.logs.get(KEY), ThreadPoolExecutor(1)
    scrubber = Scrubber(manager.logs, threads, Metrics("log-storage"), bytes_per_second=1e12, interval_ms=1)
    disk = FaultyDisk(data, monkeypatch)
    for operation in ("open", "pread"):
        disk.fail((operation,), number)
        await scrubber.scrub(hosted)
        assert disk.met
        assert hosted.known_damage == []
        assert hosted.scrubbed_ms < 0  # it was not read
        assert hosted.offline_reason == ""
        disk.heal()
    await scrubber.scrub(hosted)
    assert hosted.known_damage == []
    assert hosted.scrubbed_ms > 0
    threads.shutdown()
    manager.close()


async def test_what_cannot_be_read_now_stays_as_it_was_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither damaged nor, where it had been found damaged, sound."""
    manager = opened(data)
    hosted, threads = manager.logs.get(KEY), ThreadPoolExecutor(1)
    scrubber = Scrubber(manager.logs, threads, Metrics("log-storage"), bytes_per_second=1e12, interval_ms=1)
    segment = hosted.online().segments[1]
    content = bytearray(segment.path.read_bytes())
    content[-1] ^= 1
    segment.path.write_bytes(content)
    await scrubber.scrub(hosted)
    found = hosted.known_damage
    assert found
    disk = FaultyDisk(data, monkeypatch)
    disk.fail(("open",), errno.EMFILE)
    await scrubber.scrub(hosted)
    assert hosted.known_damage == found
    disk.heal()
    threads.shutdown()
    manager.unlock()


async def test_scrubbing_leaves_no_segment_open(data: Path) -> None:
    manager = opened(data)
    threads = ThreadPoolExecutor(1)
    await Scrubber(manager.logs, threads, Metrics("log-storage"), bytes_per_second=1e12, interval_ms=1).scrub_all()
    threads.shutdown()  # a thread lets go of what it read a moment after it has said what it found
    sealed = {str(segment.path) for segment in manager.logs.get(KEY).online().segments[:-1]}
    assert not sealed & open_files()
    manager.close()


@pytest.mark.parametrize("number", LACKING)
def test_a_flush_that_could_not_begin_is_made_later(data: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    manager = opened(data)
    log = manager.logs.get(KEY).online()
    lead(log, batch())
    log.offsets.recovery_point = log.offsets.synced_offset = 0  # segments that have not been opened yet
    disk = FaultyDisk(data, monkeypatch)
    disk.fail(("open",), number)
    with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.LOG_STORAGE_ERROR):
        log.flush()
    disk.heal()
    assert manager.logs.get(KEY).offline_reason == ""
    log.flush()
    assert log.recovery_point == log.log_end_offset == len(read_all(log))
    manager.close()


def test_a_failed_fdatasync_is_one_whatever_it_says(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(data)
    log = manager.logs.get(KEY).online()
    lead(log, batch())
    FaultyDisk(data, monkeypatch).fail(SYNCS, errno.ENOMEM)
    with pytest.raises(LogError):
        log.flush()
    assert manager.logs.get(KEY).offline_reason
    manager.unlock()


def test_retention_goes_on_later(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(data)
    hosted = manager.logs.get(KEY)
    manager.create("t", KEY, {"retention.bytes": "700", "retention.ms": "-1"})
    disk = FaultyDisk(data, monkeypatch)
    disk.fail(("open",), errno.EMFILE)
    with pytest.raises(LogError):
        manager.retain(hosted, 0)
    assert hosted.offline_reason == ""
    disk.heal()
    assert manager.retain(hosted, 0) > 0 or hosted.online().log_start_offset > 0
    manager.close()
