"""What log-storage does from time to time goes on whatever happens in it, and logs may come and go meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from counted_turns import counted_turns
from log_storage_client import key, running

from highwater.log_storage import service as service_module
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.segment.damage import KnownDamage
from highwater.model.partition import PartitionKey
from highwater.rpc.process import loop_turn
from highwater.supervision import TaskSupervisor

TASKS = ["high-watermarks", "recovery-points", "flushes", "retention", "housekeeping", "directories", "moves"]


@pytest.mark.parametrize("walk", ["count_offline", "unidentified_logs", "in_directory"])
def test_a_log_may_be_made_while_another_thread_walks_over_all(
    tmp_path: Path, walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LogManager([tmp_path], LogConfig(), broker_id=1)
    manager.load()
    for partition in range(3):
        manager.create("t", PartitionKey(bytes(16), partition), {})
    made: list[int] = []

    def offline_reason(hosted: HostedLog) -> str:
        if not made:  # in the middle of the walk
            made.append(3)
            making = threading.Thread(target=manager.create, args=("t", PartitionKey(bytes(16), 3), {}))
            making.start()
            making.join()
        return ""

    monkeypatch.setattr(HostedLog, "offline_reason", property(offline_reason))
    monkeypatch.setattr(HostedLog, "misnamed", property(offline_reason))
    monkeypatch.setattr(KnownDamage, "noted", property(offline_reason))
    match walk:
        case "count_offline":
            manager.logs.count_offline()
        case "unidentified_logs":
            assert not manager.logs.unidentified_logs
        case _:
            assert [hosted.offline_reason for hosted in manager.logs.in_directory(manager.logs.log_dirs[0])] == [""] * 3
    assert made
    assert len(manager.logs) == 4
    manager.close()


async def test_every_loop_is_supervised(tmp_path: Path) -> None:
    async with running(tmp_path, log_scrub_bytes_per_second="1000000", log_cleaner_threads="2") as storage:
        supervisor = storage.service._tasks
        assert isinstance(supervisor, TaskSupervisor)
        assert sorted(task.get_name() for task in supervisor._tasks) == sorted(
            [*TASKS, "loop-delay", "scrubber", "cleaner", "cleaner"]
        )


@pytest.mark.parametrize("error", [RuntimeError("dictionary changed size during iteration"), OSError("no")])
async def test_a_directory_that_was_full_is_found_to_have_room_after_a_failure(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "HOUSEKEEPING_MS", 5)
    async with running(tmp_path) as storage:
        await storage.create(key())
        manager = storage.service._manager
        failed = asyncio.Event()
        recount = manager.logs.recount

        def fail_once() -> None:
            if not failed.is_set():
                failed.set()
                raise error
            recount()

        monkeypatch.setattr(manager.logs, "recount", fail_once)
        await failed.wait()
        disk = manager.logs.log_dirs[0].disk
        disk.full = True
        while disk.full:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        value = storage.service.metrics.registry.get_sample_value
        assert value("highwater_log_storage_task_failures_total", {"task": "directories"}) == 1


async def test_a_walk_over_thousands_of_logs_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention finds nothing to do, and has nothing to wait for."""
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    async with running(tmp_path) as storage:
        for partition in range(20):
            await storage.create(key(partition))
        with counted_turns() as turns:
            await storage.service._servicer.flushes.retain()
        assert turns.count >= 15


@pytest.mark.parametrize("task", ["flushes", "housekeeping", "retention"])
async def test_a_log_for_which_it_goes_wrong_keeps_none_of_the_others_from_its_turn(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "HOUSEKEEPING_MS", 5)
    intervals = {"log_flush_scheduler_interval_ms": "5", "log_retention_check_interval_ms": "5"}
    async with running(tmp_path, log_flush_interval_ms="1", **intervals) as storage:
        for partition in range(3):
            await storage.create(key(partition))
        manager, servicer = storage.service._manager, storage.service._servicer
        first, *others = manager.logs
        seen: set[HostedLog] = set()

        async def work(hosted: HostedLog) -> None:
            if hosted is first:
                raise ValueError("a bug")
            seen.add(hosted)

        match task:
            case "flushes":
                monkeypatch.setattr(manager.logs.due, "to_flush", lambda now_ms: list(manager.logs))
                monkeypatch.setattr(servicer.flushes, "_flush_due_log", work)
            case "housekeeping":
                monkeypatch.setattr(manager.logs.due, "with_chores", lambda: list(manager.logs))
                monkeypatch.setattr(storage.service, "_look_after", work)
            case _:
                monkeypatch.setattr(servicer.flushes, "retain_log", work)
        while seen != set(others):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        value = storage.service.metrics.registry.get_sample_value
        while not value("highwater_log_storage_task_failures_total", {"task": task}):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
