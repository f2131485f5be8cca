"""Many logs are made by one call: beside one another, each with an outcome of its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_turns import counted_turns
from log_storage_client import key, running

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log_manager import log_creation
from highwater.log_storage.log_manager.log_creation import WantedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.partition import PartitionKey
from highwater.rpc.process import loop_turn
from highwater.v1 import log_storage_pb2


def wanted(partitions: range, topic: str = "t", topic_id: bytes = b"t") -> list[WantedLog]:
    return [WantedLog(topic, PartitionKey(topic_id * 16, number), {}) for number in partitions]


def opened(*paths: Path) -> LogManager:
    manager = LogManager(paths, LogConfig(), broker_id=1)
    manager.load()
    return manager


def codes(outcomes: list[bool | LogError]) -> list[ErrorCode | bool]:
    return [outcome.code if isinstance(outcome, LogError) else outcome for outcome in outcomes]


def test_the_names_of_all_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(log_creation, "fsync_directory", synced.append)
    manager = opened(tmp_path)
    assert manager.create_all(wanted(range(50))) == [True] * 50
    assert synced.count(tmp_path) == 1
    assert len(synced) == 51  # each log's own directory
    assert manager.create_all(wanted(range(50))) == [False] * 50
    assert len(synced) == 51
    manager.unlock()
    again = opened(tmp_path)
    assert len(again.logs) == 50
    again.unlock()


def test_each_has_an_outcome_of_its_own(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create("old", PartitionKey(b"o" * 16, 0), {})
    outcomes = manager.create_all(
        [
            *wanted(range(2)),
            *wanted(range(1), topic="a/b"),
            *wanted(range(1), topic="old", topic_id=b"n"),
            *wanted(range(1, 3)),  # one of them a second time
            WantedLog("t", PartitionKey(b"t" * 16, 3), {"retention.ms": "soon"}),
        ]
    )
    assert codes(outcomes) == [
        True,
        True,
        ErrorCode.INVALID_TOPIC,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        True,
        ErrorCode.INVALID_CONFIG,
    ]
    manager.unlock()


def test_they_are_shared_out_over_the_directories(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    manager.create_all(wanted(range(4)))
    manager.create_all(wanted(range(4, 30)))
    assert [sum(1 for _ in manager.logs.in_directory(log_dir)) for log_dir in manager.logs.log_dirs] == [10, 10, 10]
    manager.unlock()


def test_a_full_disk_refuses_some_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call makes them; nothing is left of the first that would be in its way."""
    manager = opened(tmp_path)
    mkdir, made = Path.mkdir, list[Path]()

    def limited(path: Path, *arguments: object, **options: object) -> None:
        if len(made) >= 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        made.append(path)
        mkdir(path)

    monkeypatch.setattr(Path, "mkdir", limited)
    outcomes = codes(manager.create_all(wanted(range(10))))
    assert outcomes.count(ErrorCode.STORAGE_FULL) == outcomes.count(True) == 5
    monkeypatch.undo()
    manager.logs.log_dirs[0].disk.keep_reserve()
    assert codes(manager.create_all(wanted(range(10)))) == [outcome is not True for outcome in outcomes]
    manager.unlock()


def test_names_that_cannot_be_synced_are_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)
    fsync_directory = log_creation.fsync_directory

    def failing(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        fsync_directory(path)

    monkeypatch.setattr(log_creation, "fsync_directory", failing)
    assert codes(manager.create_all(wanted(range(3)))) == [ErrorCode.LOG_STORAGE_ERROR] * 3
    assert len(manager.logs) == 0
    manager.unlock()


async def test_as_the_service_answers_it(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key(1))
        asked = [
            log_storage_pb2.CreateLogRequest(topic="t", partition=key(number), config={"retention.ms": "1000"})
            for number in range(3)
        ]
        asked.append(log_storage_pb2.CreateLogRequest(topic="", partition=key(3)))
        answer = await storage.stub.CreateLogs(log_storage_pb2.CreateLogsRequest(logs=asked))
        assert answer.incarnation == storage.service.incarnation
        assert [result.created for result in answer.results] == [True, False, True, False]
        assert [result.error.code for result in answer.results] == [0, 0, 0, ErrorCode.INVALID_TOPIC]
        again = await storage.stub.CreateLogs(log_storage_pb2.CreateLogsRequest(logs=asked[:3]))
        assert [(result.created, result.error.code) for result in again.results] == [(False, 0)] * 3


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
async def test_thousands_in_one_call_let_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Before they are made, or take their configuration, and as they are answered."""
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    async with running(tmp_path) as storage:
        lifecycle = storage.service._servicer.lifecycle
        many = [log_storage_pb2.CreateLogRequest(topic="t", partition=key(number)) for number in range(50)]
        request = log_storage_pb2.CreateLogsRequest(logs=many)
        if there:
            await lifecycle.CreateLogs(request, None)
        with monkeypatch.context() as patched:
            patched.setattr(storage.service._servicer.access, "in_thread", _at_once)
            with counted_turns() as turns:
                response = await lifecycle.CreateLogs(request, None)
        assert [each.created for each in response.results] == [not there] * 50
        assert turns.count >= 140


async def _at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


def test_a_name_that_no_file_can_have_is_refused_by_itself(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    longest = "a" * 249
    outcomes = manager.create_all([*wanted(range(100_000, 100_001), longest), *wanted(range(9_999, 10_000), longest)])
    assert codes(outcomes) == [ErrorCode.INVALID_TOPIC, True]
    manager.unlock()


def test_a_partition_under_two_names_in_one_request_has_one_directory(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    outcomes = manager.create_all([*wanted(range(1)), *wanted(range(1), topic="u")])
    assert codes(outcomes) == [True, ErrorCode.INVALID_REQUEST]
    manager.unlock()
    again = opened(tmp_path)
    assert [path.name for path in tmp_path.glob("*-0")] == ["t-0"]
    again.unlock()
