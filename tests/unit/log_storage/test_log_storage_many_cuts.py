"""Many logs that are cut at once, as after an election of a whole broker's: they share the writes of checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from log_storage_batches import batch
from log_storage_client import FOLLOWER, LEADER, Storage, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.v1 import log_storage_pb2

LOGS = 60


async def cut(storage: Storage, partition: int, *, fully: bool) -> log_storage_pb2.TruncateResponse:
    message = log_storage_pb2.TruncateFullyAndStartAtRequest if fully else log_storage_pb2.TruncateToRequest
    call = storage.stub.TruncateFullyAndStartAt if fully else storage.stub.TruncateTo
    answer: log_storage_pb2.TruncateResponse = await call(
        message(partition=key(partition), leader_epoch=2, offset=0, unclean_epoch=-1)
    )
    return answer


async def followed(storage: Storage) -> None:
    """Logs with a record each that their new leader does not have."""
    for partition in range(LOGS):
        await storage.create(key(partition))
    partitions = [key(partition) for partition in range(LOGS)]
    await storage.fence(LEADER, 1, partitions)
    for partition in partitions:
        await storage.append(LEADER, partition=partition, leader_epoch=1, records=batch(1), expected_offset=0)
    await storage.fence(FOLLOWER, 2, partitions)


@pytest.mark.parametrize("fully", [False, True], ids=["to", "fully"])
async def test_they_share_the_writes_of_checkpoints(
    tmp_path: Path, fully: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    lower = LogManager.lower_checkpoints

    def counted(manager: LogManager, log_dir: LogDir) -> None:
        nonlocal written
        written += 1
        lower(manager, log_dir)

    async with running(tmp_path) as storage:
        await followed(storage)
        for hosted in storage.service._manager.logs:  # so that the recovery point promises the record
            await storage.service._servicer.flushes.flush(hosted)
        monkeypatch.setattr(LogManager, "lower_checkpoints", counted)
        answers = await asyncio.gather(*(cut(storage, partition, fully=fully) for partition in range(LOGS)))
        assert {(answer.error.code, answer.log.log_end_offset) for answer in answers} == {(0, 0)}
        assert 1 <= written <= LOGS / 5
        (log_dir,) = storage.service._manager.logs.log_dirs
        points = checkpoints.read_offsets(log_dir.path / checkpoints.RECOVERY_POINTS)
        assert all(point == 0 for point in points.values())


async def test_where_the_checkpoints_cannot_be_written_all_logs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(manager: LogManager, log_dir: LogDir) -> None:
        raise LogError(ErrorCode.STORAGE_FULL, "no space")

    async with running(tmp_path) as storage:
        await followed(storage)
        monkeypatch.setattr(LogManager, "lower_checkpoints", refused)
        answers = await asyncio.gather(*(cut(storage, partition, fully=True) for partition in range(LOGS)))
        assert {answer.error.code for answer in answers} == {ErrorCode.STORAGE_FULL}
        monkeypatch.undo()
        assert all(
            (hosted.online().log_start_offset, hosted.online().log_end_offset) == (0, 1)
            for hosted in storage.service._manager.logs
        )
        answers = await asyncio.gather(*(cut(storage, partition, fully=True) for partition in range(LOGS)))
        assert {(answer.error.code, answer.log.log_end_offset) for answer in answers} == {(0, 0)}
