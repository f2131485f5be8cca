"""Calls that name thousands of logs let others have their turn between them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from counted_turns import Turns, counted_turns
from log_storage_client import key, running

from highwater.errors import ErrorCode
from highwater.log_storage.server import flush_and_checkpoint, log_lifecycle
from highwater.model.partition import PartitionKey
from highwater.rpc.partition_keys import from_key
from highwater.rpc.process import loop_turn
from highwater.v1 import common_pb2, log_storage_pb2

MANY = [key(number) for number in range(50)]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)


async def test_moves(tmp_path: Path) -> None:
    request = log_storage_pb2.AlterLogDirsRequest(
        moves=[log_storage_pb2.LogDirMove(partition=each, log_dir="/a") for each in MANY]
    )
    async with running(tmp_path) as storage:
        with counted_turns() as turns:
            response = await storage.service._servicer.moves.AlterReplicaLogDirs(request, None)
    assert [(each.partition, each.error.code) for each in response.results] == [
        (each, ErrorCode.UNKNOWN_TOPIC_ID) for each in MANY
    ]
    assert turns.count >= 45


async def test_what_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs that there are come first."""
    async with running(tmp_path) as storage:
        await storage.create(key(3))
        with counted_turns() as turns:
            read_in = _turns_of_keys(turns, log_lifecycle, monkeypatch)
            response = await storage.service._servicer.lifecycle.DescribeLogs(
                log_storage_pb2.DescribeLogsRequest(partitions=MANY), None
            )
    assert [each.partition.partition for each in response.logs] == [3, *(n for n in range(50) if n != 3)]
    assert [each.error.code for each in response.logs] == [0] + [ErrorCode.UNKNOWN_TOPIC_ID] * 49
    assert [each.logs for each in response.log_dirs] == [1]
    assert len(read_in) >= 45
    assert turns.count >= 90


async def test_what_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as storage:
        with counted_turns() as turns:
            read_in = _turns_of_keys(turns, flush_and_checkpoint, monkeypatch)
            response = await storage.service._servicer.flushes.Flush(
                log_storage_pb2.FlushRequest(partitions=MANY), None
            )
    assert [each.partition for each in response.errors] == MANY
    assert len(read_in) >= 45


async def test_moves_that_were_begun_go_on_though_their_caller_goes_away(tmp_path: Path) -> None:
    async with running(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b") as storage:
        for number in range(2):
            await storage.create(key(number))
        logs = [storage.service._manager.logs.get(from_key(key(number))) for number in range(2)]
        target = {hosted: next(each for each in ("a", "b") if hosted.log_dir.path.name != each) for hosted in logs}
        moves = storage.service._servicer.moves
        while moves._moves.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        request = log_storage_pb2.AlterLogDirsRequest(
            moves=[
                log_storage_pb2.LogDirMove(partition=key(number), log_dir=str(tmp_path / target[hosted]))
                for number, hosted in enumerate(logs)
            ]
        )
        call = asyncio.create_task(moves.AlterReplicaLogDirs(request, None))
        while logs[0].future is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        call.cancel()
        async with asyncio.timeout(10):
            while logs[0].log_dir.path.name != target[logs[0]]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert call.cancelled()


def _turns_of_keys(turns: Turns, module: Any, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """In which turns the keys of a request are read."""
    read_in: set[int] = set()

    def noted(partition: common_pb2.PartitionKey) -> PartitionKey:
        read_in.add(turns.count)
        return from_key(partition)

    monkeypatch.setattr(module, "from_key", noted)
    return read_in
