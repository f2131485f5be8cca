"""Whose log it is stands in `partition.metadata`, which has no CRC. Where that is damaged the log is kept: nobody takes
it for another topic's and deletes it (RULES 9.3), and none is begun anew beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from log_storage_batches import batch, lead
from log_storage_client import LEADER, Code, key, running

from highwater.atomic_file import read_whole
from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import partition_metadata
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.v1 import log_storage_pb2

KEY = PartitionKey(b"t" * 16, 0)
FENCE = Fence(1, Role.LEADER, "rm", "ls")
LINES = b"version: 0\ntopic_id: dHR0dHR0dHR0dHR0dHR0dA"


def opened(path: Path) -> LogManager:
    manager = LogManager([path / "a", path / "b"], LogConfig(), broker_id=1)
    manager.load()
    return manager


def refused(words: str) -> Any:
    return pytest.raises(LogError, match=words, check=lambda error: error.code is ErrorCode.LOG_STORAGE_ERROR)


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    """Of a log in `a` with three records; a new one would go to `b`."""
    manager = opened(tmp_path)
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].record_fences({KEY: FENCE})
    lead(manager.logs.get(KEY).online(), batch(3))
    manager.close()
    path = tmp_path / "a" / "t-0" / "partition.metadata"
    assert path.read_bytes() == LINES
    return path


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync", "posix_fallocate"):
        monkeypatch.setattr(f"os.{name}", lambda *arguments: None)


def expect_kept(path: Path) -> None:
    """Not deleted by whoever asks for what was found, not made again; sound once the file is."""
    damaged = path.read_bytes() if path.exists() else None
    files = {other.name: other.read_bytes() for other in path.parent.iterdir() if other != path}
    manager = opened(path.parents[2])
    assert manager.logs.unidentified_logs == (manager.logs.find(KEY) is None)
    if manager.logs.find(KEY) is None:
        for hosted in manager.logs:
            assert hosted.topic_partition == ("t", 0)
            for epoch in (-1, 5):
                with refused("is not deleted"):
                    manager.delete(hosted.key, epoch)
        for _ in range(2):
            with refused("topic_id: dHR0dHR0dHR0dHR0dHR0dA"):
                manager.create("t", KEY, {})
    manager.close()
    assert {other.name: other.read_bytes() for other in path.parent.iterdir() if other != path} == files
    assert (path.read_bytes() if path.exists() else None) == damaged
    assert [found.name for found in (path.parents[2] / "b").iterdir() if found.is_dir()] == []
    path.write_bytes(LINES)
    mended = opened(path.parents[2])
    assert mended.logs.unidentified_logs == 0
    assert mended.logs.get(KEY).online().log_end_offset == 3
    assert mended.logs.get(KEY).fence == FENCE
    mended.close()


def test_any_flipped_bit(metadata: Path, fast_disk: None) -> None:
    for position in range(len(LINES)):
        damaged = bytearray(LINES)
        damaged[position] ^= 1 << position % 8
        metadata.write_bytes(damaged)
        expect_kept(metadata)


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40, LINES[:-1], b"version: 0\ntopic_id: " + b"A" * 22])
def test_damage_of_any_kind(metadata: Path, content: bytes | None) -> None:
    if content is None:
        metadata.unlink()
    else:
        metadata.write_bytes(content)
    expect_kept(metadata)


def test_a_file_that_may_not_be_read(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is this log's trouble, and not its directory's."""
    manager = opened(metadata.parents[2])
    manager.create("u", PartitionKey(b"u" * 16, 0), {})
    manager.create("v", PartitionKey(b"v" * 16, 0), {})
    assert (metadata.parents[1] / "v-0").is_dir()
    manager.close()

    def forbidden(path: Path) -> bytes:
        if path == metadata:
            raise PermissionError(13, os.strerror(13), str(path))
        return read_whole(path)

    monkeypatch.setattr(partition_metadata, "read_whole", forbidden)
    manager = opened(metadata.parents[2])
    assert not any(log_dir.offline for log_dir in manager.logs.log_dirs)
    assert manager.logs.get(PartitionKey(b"v" * 16, 0)).online().log_end_offset == 0
    with refused("whose log it is is not known"):
        manager.create("t", KEY, {})
    manager.unlock()


def test_once_the_log_is_moved_away_it_is_begun_anew(metadata: Path, tmp_path: Path) -> None:
    metadata.write_bytes(b"damaged")
    manager = opened(tmp_path)
    with refused("move the directory away"):
        manager.create("t", KEY, {})
    metadata.parent.rename(tmp_path / "kept")
    assert manager.create("t", KEY, {})
    manager.unlock()


def test_another_log_of_that_partition_is_made(metadata: Path, tmp_path: Path) -> None:
    metadata.write_bytes(b"damaged")
    manager = opened(tmp_path)
    assert manager.create("t", PartitionKey(b"t" * 16, 1), {})
    assert manager.create("u", PartitionKey(b"u" * 16, 0), {})
    manager.unlock()


async def test_what_the_service_answers(tmp_path: Path) -> None:
    """A replica-manager that finds an unknown topic's log, reads that there is none, and wants it deleted."""
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=0, records=batch(3))
    path = tmp_path / "data" / "t-0" / "partition.metadata"
    path.write_bytes(LINES.replace(b"dHR0", b"dHR1", 1))
    async with running(tmp_path) as storage:
        [found] = (await storage.stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest())).logs
        assert (found.topic, found.partition == key()) == ("t", False)
        delete = log_storage_pb2.DeleteLogRequest(partition=found.partition, leader_epoch=-1)
        assert (await storage.stub.DeleteLog(delete)).error.code == Code.LOG_STORAGE_ERROR
        assert (await storage.create(key())).error.code == Code.LOG_STORAGE_ERROR
    path.write_bytes(LINES)
    async with running(tmp_path) as storage:
        assert len((await storage.read(key(), 0)).records) == len(batch(3))


def test_a_log_that_was_moved_away_is_replaced(metadata: Path, tmp_path: Path) -> None:
    metadata.unlink()
    manager = opened(tmp_path)
    assert manager.logs.unidentified_logs == 1
    metadata.parent.rename(tmp_path / "moved")
    manager.create("t", KEY, {})
    assert manager.logs.unidentified_logs == 0
    manager.close()
