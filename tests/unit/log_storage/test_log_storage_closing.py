"""A clean stop of many logs: side by side, within its time, and what is left where that is over."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from log_storage_batches import batch, lead

from highwater.errors import UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.files import boot_record
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN, Boot
from highwater.log_storage.log.flusher import Sync
from highwater.log_storage.log_manager.log_manager import CLOSED_AT_ONCE, LogManager
from highwater.log_storage.log_manager.side_by_side import side_by_side
from highwater.log_storage.service import THREADS, LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.settings import load

KEY = PartitionKey(b"t" * 16, 0)
RECORDS = 3
DEADLINE_S = 20


def opened(*paths: Path) -> LogManager:
    manager = LogManager(paths, LogConfig(), broker_id=0)
    manager.load()
    return manager


def filled(logs: int, *paths: Path) -> LogManager:
    """Logs with records that are not on disk yet, in directories whose tail is not lost."""
    manager = opened(*paths)
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
    for number in range(logs):
        key = KEY._replace(partition=number)
        manager.create("t", key, {})
        for _ in range(RECORDS):
            lead(manager.logs.get(key).online(), batch(), epoch=1)
    return manager


class SlowDisk:
    """Each sync of a log's batches takes a while; or for ever, of the logs named."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float, stuck: frozenset[int] = frozenset()) -> None:
        self.at_once = self.most_at_once = self.begun = 0
        self.free = threading.Event()
        self._lock = threading.Lock()
        real = Sync.run

        def run(sync: Sync) -> None:
            with self._lock:
                self.begun += 1
                number = self.begun
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
            if number in stuck:
                self.free.wait(DEADLINE_S)
            time.sleep(takes_s)
            real(sync)
            with self._lock:
                self.at_once -= 1

        monkeypatch.setattr(Sync, "run", run)


def test_logs_are_closed_side_by_side_and_so_are_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = (tmp_path / "a", tmp_path / "b")
    manager = filled(64, *paths)
    disk = SlowDisk(monkeypatch, 0.05)
    began_s = time.monotonic()
    manager.close()
    assert time.monotonic() - began_s < 64 * 0.05 / 2
    assert CLOSED_AT_ONCE < disk.most_at_once <= 2 * CLOSED_AT_ONCE
    assert disk.begun == 64
    assert all((path / CLEAN_SHUTDOWN).exists() for path in paths)
    assert len(opened(*paths).logs) == 64


@pytest.mark.parametrize("lost_power", [False, True])
def test_what_is_not_reached_in_time_is_recovered_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_power: bool
) -> None:
    manager = filled(60, tmp_path)
    with monkeypatch.context() as patched:
        # As many as are closed at once, and then no more: a busy machine has a second for those.
        disk = SlowDisk(patched, 0, stuck=frozenset(range(CLOSED_AT_ONCE + 1, 61)))
        manager.close(1)
        disk.free.set()
        while disk.at_once:  # those that were under way
            time.sleep(0.01)
        assert 0 < disk.begun <= 2 * CLOSED_AT_ONCE
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    written = [line.split() for line in (tmp_path / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]]
    synced = sum(int(offset) == RECORDS for _, _, offset in written)
    assert 0 < synced <= CLOSED_AT_ONCE
    if lost_power:
        monkeypatch.setattr(boot_record, "present_boot", lambda directory: Boot("after the power failure", "mount"))
    for log_dir in manager.logs.log_dirs:
        log_dir.close()  # as the end of the process does
    again = opened(tmp_path)
    # RULES 7.2: a process that ends loses nothing; a machine, what was not on disk, on this replica alone.
    assert [log_dir.tail_lost for log_dir in again.logs.log_dirs] == [lost_power]
    assert {hosted.online().log_end_offset for hosted in again.logs} == {RECORDS}
    assert len(again.logs) == 60
    again.close()
    assert (tmp_path / CLEAN_SHUTDOWN).exists() is not lost_power


def test_a_disk_that_does_not_answer_keeps_its_directory_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, sound = tmp_path / "a", tmp_path / "b"
    manager = filled(12, stuck, sound)
    real = Sync.run
    free = threading.Event()

    def run(sync: Sync) -> None:
        if str(sync.segments[0].path).startswith(str(stuck)):
            free.wait(DEADLINE_S)
        real(sync)

    monkeypatch.setattr(Sync, "run", run)
    began_s = time.monotonic()
    manager.close(0.3)
    assert time.monotonic() - began_s < 3
    assert (sound / CLEAN_SHUTDOWN).exists()
    assert not (stuck / CLEAN_SHUTDOWN).exists()
    assert "the time was over" in caplog.text
    with pytest.raises(UserError, match="in use"):  # somebody may still be writing there
        LogManager([stuck], LogConfig(), broker_id=0).lock()
    free.set()


def test_nothing_is_begun_after_the_time_and_all_is_told() -> None:
    ran: list[int] = []

    def work(number: int) -> bool:
        ran.append(number)
        if number == 3:
            raise ValueError("a mistake")
        return True

    def works(count: int) -> list[object]:
        return [lambda number=number: work(number) for number in range(count)]

    outcome = side_by_side(works(3), 2, None)  # type: ignore[arg-type]
    assert (outcome.well, outcome.late, outcome.running, sorted(ran)) == (True, 0, False, [0, 1, 2])
    outcome = side_by_side(works(5), 2, None)  # type: ignore[arg-type]
    assert (outcome.well, outcome.late) == (False, 0)
    ran.clear()
    outcome = side_by_side(works(3), 2, time.monotonic() - 1)  # type: ignore[arg-type]
    assert (outcome.well, outcome.late, ran) == (False, 3, [])
    assert side_by_side([], 2, None).well


async def test_a_disk_that_has_not_answered_before_keeps_its_directory_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More flushes wait for it than there are threads, and each keeps its log."""
    stuck, sound = tmp_path / "a", tmp_path / "b"
    settings = {
        "broker.id": "0",
        "log.dirs": f"{stuck},{sound}",
        "listen": f"unix:{tmp_path}/s",
        "log.close.max.wait.ms": "600",
        "log.flush.interval.ms": "50",
        "log.flush.scheduler.interval.ms": "50",
    }
    service = LogStorageService(load(LogStorageSettings, settings))
    await service.start()
    for log_dir in service._manager.logs.log_dirs:
        log_dir.record_boot()
    real = Sync.run
    free, begun = threading.Event(), threading.Event()

    def run(sync: Sync) -> None:
        if str(sync.segments[0].path).startswith(str(stuck)):
            begun.set()
            free.wait(DEADLINE_S)
        real(sync)

    monkeypatch.setattr(Sync, "run", run)
    for number in range(4 * THREADS):
        key = KEY._replace(partition=number)
        service._manager.create("t", key, {})
        lead(service._manager.logs.get(key).online(), batch(), epoch=1)
    try:
        assert await asyncio.to_thread(begun.wait, DEADLINE_S)
        began_s = time.monotonic()
        assert not await service.stop()
        assert time.monotonic() - began_s < 5
        assert (sound / CLEAN_SHUTDOWN).exists()
        assert not (stuck / CLEAN_SHUTDOWN).exists()
        assert f"{stuck} is not stopped cleanly" in caplog.text
        with pytest.raises(UserError, match="in use"):
            LogManager([stuck], LogConfig(), broker_id=0).lock()
    finally:
        free.set()


HUNG = """
import asyncio, sys, threading
from highwater.log_storage import process
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.settings import LogStorageSettings
from highwater.rpc.settings import load

def hang(*arguments):
    begun.set()
    threading.Event().wait()

async def main():
    stop = asyncio.Event()
    serving = asyncio.create_task(process.serve(load(LogStorageSettings, settings), stop))
    await asyncio.to_thread(begun.wait, 20)
    stop.set()
    await serving

directory = sys.argv[1]
settings = {{"broker.id": "0", "log.dirs": directory + "/a", "listen": f"unix:{{directory}}/s",
    "metrics.listen": "", "log.close.max.wait.ms": "100", "log.flush.offset.checkpoint.interval.ms": "50"}}
begun = threading.Event()
process.INTERRUPTED_S = 0.2
{owner}.{name} = hang
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("owner", "name"), [("LogManager", "load"), ("LogRegistry", "write_checkpoint")], ids=["starting", "serving"]
)
def test_a_process_ends_although_a_disk_never_answers(tmp_path: Path, owner: str, name: str) -> None:
    program = HUNG.format(owner=owner, name=name)
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (ended.returncode, "a disk did not answer" in ended.stderr) == (1, True), ended.stderr
    assert not (tmp_path / "a" / CLEAN_SHUTDOWN).exists()


async def test_what_cannot_be_removed_does_not_keep_logs_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"broker.id": "0", "log.dirs": str(tmp_path / "a"), "listen": f"unix:{tmp_path}/s"}
    service = LogStorageService(load(LogStorageSettings, values))
    await service.start()
    for log_dir in service._manager.logs.log_dirs:
        log_dir.record_boot()
    (tmp_path / "kept").mkdir()
    service._to_remove.append((0, [tmp_path / "kept"]))  # a directory is not unlinked
    assert await service.stop()
    assert (tmp_path / "a" / CLEAN_SHUTDOWN).exists()
