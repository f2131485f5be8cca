"""Starts: what is believed after a clean stop, what is looked at, and what is told meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from log_storage_batches import batch, lead, make_log, produced, read_all
from log_storage_client import running

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager import log_loader
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.recovery import recovery_progress
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.recovery.recovery_progress import OpeningStopped, RecoveryProgress
from highwater.log_storage.segment.index_file import IndexFile
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import file_name
from highwater.log_storage.server.gate import SERVICE_NAME, Gate
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.settings import load
from highwater.v1 import log_storage_pb2, log_storage_pb2_grpc

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)
DEADLINE_S = 20


def filled(directory: Path, batches: int = 20) -> Log:
    """Batches of one record, two to a segment; a new epoch every five."""
    log = make_log(directory, SMALL)
    for number in range(batches):
        lead(log, batch(value=b"x" * 300, timestamp=1_000 + number), epoch=1 + number // 5)
    return log


def test_a_clean_start_opens_no_sealed_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    log.offsets.raise_high_watermark(20)
    log.close()
    opened: list[str] = []
    open_file = os.open

    def observed(path: str | Path, *arguments: int) -> int:
        opened.append(Path(path).name)
        return open_file(path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", observed)
        again = make_log(tmp_path, SMALL, Checkpointed(True, 20, 0, 20))
    assert {name for name in opened if name.endswith((".log", "index"))} == {
        file_name(18, suffix) for suffix in (".log", ".index", ".timeindex")
    }
    assert again.state == log.state
    assert again.epochs == log.epochs
    assert [segment.max_timestamp for segment in again.segments] == [segment.max_timestamp for segment in log.segments]
    assert [segment.first_timestamp for segment in again.segments] == [1_000 + 2 * number for number in range(10)]
    assert read_all(again) == read_all(log)


def test_timestamps_are_read_from_the_ends_of_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many segments that nobody reads a lookup by time costs little; retention asks only those that may go."""
    log = filled(tmp_path)
    log.offsets.raise_high_watermark(20)
    log.close()
    again = make_log(tmp_path, replace(SMALL, retention_ms=1_000), Checkpointed(True, 20, 0, 20))
    loaded: list[str] = []
    load_index = IndexFile.load

    def observed(index: IndexFile) -> bool:
        loaded.append(index.path.name)
        return load_index(index)

    monkeypatch.setattr(IndexFile, "load", observed)
    learned = Segment.resume
    monkeypatch.setattr(Segment, "resume", lambda segment: loaded.append("resumed") or learned(segment))  # type: ignore[func-returns-value]
    assert again.log_start.expired(2_006) == 3
    assert [segment._learned for segment in again.segments] == [True] * 4 + [False] * 5 + [True]
    assert again.reader.list_offset(1_011).offset == 11
    assert loaded == [file_name(10, ".index"), file_name(10, ".timeindex")]


def test_only_what_reaches_above_the_recovery_point_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    log.flush()
    walked: list[tuple[int, bool]] = []
    headers = Segment.headers

    def observed(segment: Segment, position: int, *, check_crcs: bool = False) -> object:
        walked.append((segment.base_offset, check_crcs))
        return headers(segment, position, check_crcs=check_crcs)

    monkeypatch.setattr(Segment, "headers", observed)
    again = make_log(tmp_path, SMALL, Checkpointed(False, 13))
    assert [base for base, checked in walked if checked] == [12, 14, 16, 18]
    assert [base for base, checked in walked if not checked and base < 12] == [10]  # its last batch, for its epoch
    assert again.epochs == log.epochs
    assert again.log_end_offset == 20


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, b"damaged", b"0\n1\n1 0\n", b"0\n1\n1 7\n"])
def test_epochs_on_file_that_do_not_fit_are_made_again(tmp_path: Path, clean: bool, content: bytes | None) -> None:
    log = filled(tmp_path)
    log.close()
    path = tmp_path / "leader-epoch-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    again = make_log(tmp_path, SMALL, Checkpointed(clean, 20))
    assert again.epochs == log.epochs


def test_damage_below_the_recovery_point_is_told_when_it_is_read(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    path = tmp_path / file_name(4, ".log")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    for known in (Checkpointed(True, 20), Checkpointed(False, 20)):
        again = make_log(tmp_path, SMALL, known)
        assert again.log_end_offset == 20
        assert again.read(3, -1, 1)
        with pytest.raises(LogError, match="CRC"):
            again.read(4, -1, 1)
        assert again.read(5, -1, 1)
        assert path.read_bytes() == content  # nothing was cut


@pytest.mark.parametrize("missing", ["indexes", "snapshots", "epochs", "everything"])
def test_files_that_can_be_made_again_are(tmp_path: Path, missing: str) -> None:
    """Removed one by one, and all at once."""
    original = tmp_path / "original"
    log = make_log(original, SMALL)
    for number in range(12):
        lead(log, produced(2, sequence=2 * number), epoch=1 + number // 4)
        lead(log, batch(value=b"x" * 200, timestamp=2_000 + number), epoch=1 + number // 4)
    log.close()
    found = [log.reader.list_offset(2_000 + number) for number in range(12)]
    patterns = {"indexes": ["*index"], "snapshots": ["*.snapshot"], "epochs": ["leader-epoch-checkpoint"]}
    every = [pattern for some in patterns.values() for pattern in some]
    chosen = [path.name for pattern in patterns.get(missing, every) for path in original.glob(pattern)]
    assert chosen
    for number, removed in enumerate([chosen] if missing == "everything" else [[name] for name in chosen]):
        for known in (Checkpointed(True, log.log_end_offset), Checkpointed(False, 20)):
            directory = tmp_path / f"{number}-{known.clean}"
            shutil.copytree(original, directory)
            for name in removed:
                (directory / name).unlink()
            again = make_log(directory, SMALL, known)
            assert again.state == log.state
            assert again.epochs == log.epochs
            assert again.producers.get(7) == log.producers.get(7)
            assert read_all(again) == read_all(log)
            assert [again.reader.list_offset(2_000 + number) for number in range(12)] == found


def test_a_start_scans_in_parallel_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = LogManager([tmp_path], SMALL, broker_id=0)
    manager.load()
    for number in range(8):
        key = PartitionKey(bytes(16), number)
        manager.create("t", key, {})
        for _ in range(6):
            lead(manager.logs.get(key).online(), batch(value=b"x" * 300))
    total = sum(hosted.online().size_bytes for hosted in manager.logs)
    manager.unlock()  # as if it had been killed
    together = threading.Barrier(3, timeout=DEADLINE_S)
    opened = log_loader.open_log
    waited = threading.local()

    def opened_together(*arguments: object) -> Log:
        if not hasattr(waited, "once"):
            waited.once = True
            together.wait()  # three at a time
        return opened(*arguments)  # type: ignore[arg-type]

    again = LogManager([tmp_path], SMALL, broker_id=0, recovery_threads=3)
    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "highwater"):
        patched.setattr(log_loader, "open_log", opened_together)
        patched.setattr(recovery_progress, "TOLD_EVERY_MS", 0)
        again.load()
    progress = again.logs.log_dirs[0].recovery
    assert progress is not None
    assert (progress.total_logs, progress.opened_logs) == (8, 8)
    assert (progress.total_bytes, progress.scanned_bytes) == (total, total)
    assert f"scanned_bytes={total}/{total}" in caplog.text
    again.close()


def test_progress_is_told_from_time_to_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    progress = RecoveryProgress(tmp_path, lambda: now[0], threading.Event())
    with caplog.at_level(logging.INFO, "highwater"):
        progress.begin(3, 1_000)
        for _ in range(20):
            now[0] += 1_000
            progress.scanned(10)
    assert len(caplog.records) == 1 + 4
    assert "scanned_bytes=200/1000" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("stop_at", range(0, 60, 7))
def test_a_recovery_that_is_stopped_leaves_everything_as_it_was(tmp_path: Path, stop_at: int, threads: int) -> None:
    """At whichever log and batch: the next start has all of it."""
    key = PartitionKey(b"t" * 16, 0)
    manager = LogManager([tmp_path], SMALL, broker_id=0)
    manager.load()
    for number in range(6):
        manager.create("t", key._replace(partition=number), {})
        log = manager.logs.get(key._replace(partition=number)).online()
        for each in range(20):
            lead(log, batch(value=b"x" * 300, timestamp=1_000 + each), epoch=1 + each // 5)
    manager.unlock()  # as a kill leaves it
    stopped = LogManager([tmp_path], SMALL, broker_id=0, recovery_threads=threads)
    scans = itertools.count()
    real = RecoveryProgress.scanned

    def scanned(progress: RecoveryProgress, size_bytes: int) -> None:
        if next(scans) == stop_at:
            stopped.stop_loading()
        real(progress, size_bytes)

    with patch.object(RecoveryProgress, "scanned", scanned), pytest.raises(OpeningStopped):
        stopped.load()
    stopped.unlock()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    again = LogManager([tmp_path], SMALL, broker_id=0)
    again.load()
    assert [hosted.online().log_end_offset for hosted in again.logs] == [20] * 6
    again.close()


def test_while_logs_are_opened_only_their_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_while_logs_are_opened(tmp_path, monkeypatch))


async def _while_logs_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    manager = LogManager([data], LogConfig(), broker_id=0)
    manager.load()
    manager.create("t", PartitionKey(b"t" * 16, 0), {})
    manager.close()
    begun, may_go_on = threading.Event(), threading.Event()
    opened = log_loader.open_log

    def opened_later(*arguments: object) -> Log:
        begun.set()
        assert may_go_on.wait(DEADLINE_S)
        return opened(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(log_loader, "open_log", opened_later)
    address = f"unix:{tmp_path}/storage.sock"
    settings = load(LogStorageSettings, {"listen": address, "log.dirs": str(data), "broker.id": "0"})
    service = LogStorageService(settings)
    channel = open_channel(address)
    stub = log_storage_pb2_grpc.LogStorageStub(channel)
    start = asyncio.create_task(service.start())
    try:
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        answer = await stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest(), timeout=DEADLINE_S)
        assert answer.opening
        assert answer.log_dirs[0].recovery == log_storage_pb2.RecoveryProgress(total_logs=1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Flush(log_storage_pb2.FlushRequest(), timeout=DEADLINE_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError, match="DescribeLogs tells how far it is"):
            await stub.Append(timeout=DEADLINE_S).read()  # nothing was sent yet
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        may_go_on.set()
        await start
        assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        answer = await stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest(), timeout=DEADLINE_S)
        assert not answer.opening
        assert answer.log_dirs[0].recovery == log_storage_pb2.RecoveryProgress(total_logs=1, opened_logs=1)
        assert not (await stub.Flush(log_storage_pb2.FlushRequest(), timeout=DEADLINE_S)).errors
    finally:
        may_go_on.set()
        await asyncio.gather(start, return_exceptions=True)
        await channel.close()
        await service.stop()


async def test_a_stream_goes_by_the_gate_once_however_many_appends_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_by = []
    intercept = Gate.intercept_service

    async def counted(gate: Gate, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        gone_by.append(details.method.rpartition("/")[2])
        return await intercept(gate, continuation, details)

    monkeypatch.setattr(Gate, "intercept_service", counted)
    async with running(tmp_path) as storage:
        gone_by.clear()
        call = storage.stub.Append()
        for number in range(10):
            await call.write(log_storage_pb2.AppendRequest(correlation_id=number))
            assert (await call.read()).correlation_id == number
        await call.done_writing()
    assert gone_by == ["Append"]


async def test_a_start_that_was_cancelled_writes_nothing_to_a_directory_that_it_has_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LogManager([tmp_path / "data"], LogConfig(), broker_id=1)
    manager.load()
    manager.logs.log_dirs[0].record_boot()  # its tail is not lost: a clean stop leaves the mark
    manager.close()
    mark = tmp_path / "data" / CLEAN_SHUTDOWN
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    load = log_loader.LogLoader.load

    def slow_load(loader: log_loader.LogLoader) -> None:
        begun.set()
        go_on.wait(DEADLINE_S)
        try:
            load(loader)
        finally:
            ended.set()

    monkeypatch.setattr(log_loader.LogLoader, "load", slow_load)
    service = LogStorageService(
        LogStorageSettings(broker_id=1, log_dirs=[tmp_path / "data"], listen=[f"unix:{tmp_path}/log-storage"])
    )
    starting = asyncio.create_task(service.start())
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    go_on.set()
    assert await asyncio.to_thread(ended.wait, DEADLINE_S)
    assert not mark.exists()
    await service.stop()
    assert not mark.exists(), "another log-storage may have the directory, and be writing to it"
