"""An append that waits for the disk is answered when the batches and the name of their file are on it: after a loss of
power a file that no directory names is gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, follow, lead, make_log

from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.segment_files import OFFSET_GAPS
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import to_key
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
CONFIG = LogConfig(segment_bytes=400, flush_messages=1)


class Disk:
    """What would be there after a loss of power: the names that an fsync of their directory has met."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self.synced = 0
        self._directory = directory
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(directory):
                self.names = set(os.listdir(directory))
                self.synced += 1

        monkeypatch.setattr(os, "fsync", fsync)

    def expect_all_segments(self) -> None:
        assert {path.name for path in self._directory.glob("*.log")} <= self.names


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[LogManager, LogStorageServicer]]:
    manager, threads = LogManager([tmp_path], CONFIG, broker_id=1), ThreadPoolExecutor(2)
    manager.load()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: Fence(1, Role.LEADER, "rm", "ls")})
    servicer = LogStorageServicer(manager, "ls", threads, Metrics("log-storage"))
    yield manager, servicer
    await servicer.access.settle()
    threads.shutdown()
    manager.unlock()


def appending(offset: int, records: bytes) -> log_storage_pb2.AppendRequest:
    given = log_storage_pb2.AppendPartition(
        partition=to_key(KEY), leader_epoch=1, expected_offset=offset, records=records
    )
    return log_storage_pb2.AppendRequest(role=log_storage_pb2.ROLE_LEADER, partitions=[given])


async def test_the_name_of_a_new_segment_is_on_disk_before_its_append_is_answered(
    served: tuple[LogManager, LogStorageServicer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, servicer = served
    disk = Disk(tmp_path / "t-0", monkeypatch)
    log = manager.logs.get(KEY).online()
    for number in range(6):
        answer: Any = await servicer.append_and_read.append(appending(number, batch(value=b"x" * 150)))
        assert not answer.results[0].HasField("error")
        assert log.synced_offset == log.log_end_offset == number + 1
        disk.expect_all_segments()
    assert len(log.segments) > 2
    # The directory is synced where its names have changed: once for each segment, and not for each append.
    assert disk.synced == len(log.segments)


def test_a_log_that_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path, CONFIG)
    disk = Disk(tmp_path, monkeypatch)
    for start in (0, 50):
        log.truncation.truncate_fully_and_start_at(start)
        lead(log, batch())
        sync = log.flusher.begin_sync()
        sync.run()
        log.flusher.finish_sync(sync)
        disk.expect_all_segments()


def test_a_segment_that_is_begun_while_the_directory_is_synced_is_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, CONFIG)
    disk = Disk(tmp_path, monkeypatch)
    lead(log, batch())
    earlier = log.flusher.begin_sync()
    lead(log, batch(value=b"x" * 400))  # rolls
    assert len(log.segments) == 2
    earlier.run()
    log.flusher.finish_sync(earlier)
    disk.names.clear()  # the sync came before the file was made
    later = log.flusher.begin_sync()
    later.run()
    log.flusher.finish_sync(later)
    disk.expect_all_segments()


def test_the_mark_of_missing_offsets_is_on_disk_before_the_append_behind_them_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it recovery cuts the log there: after a loss of power what was acknowledged would be gone."""
    directory, after = tmp_path / "log", tmp_path / "after a loss of power"
    log = make_log(directory, CONFIG)
    disk = Disk(directory, monkeypatch)

    def synced(offset: int) -> None:
        follow(log, batch(base_offset=offset, epoch=1))
        sync = log.flusher.begin_sync()
        log.flusher.write_out(sync)
        log.flusher.finish_sync(sync)

    synced(0)
    assert OFFSET_GAPS not in disk.names
    synced(5)  # the leader's log was compacted
    assert log.synced_offset == log.log_end_offset == 6
    after.mkdir()
    for name in disk.names:
        shutil.copy(directory / name, after)
    assert make_log(after, CONFIG, Checkpointed()).log_end_offset == 6
    before = disk.synced
    synced(9)
    assert disk.synced == before
