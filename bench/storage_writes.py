"""Appends: against a bare loop of `write`, and with an fdatasync before each answer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from bench.storage_logs import append, batch_of, opened
from highwater.cli.child_process import ChildProcess
from highwater.errors import ErrorCode
from highwater.log_storage.fence import Role
from highwater.metadata.models import PartitionKey
from highwater.records import read_header
from highwater.replica_manager.append_pipeline import AppendPipeline
from highwater.replica_manager.append_stream import AppendAnswer
from highwater.replica_manager.storage import LogStorage

BATCH_BYTES = (1 << 20) - 4096
BATCHES_A_TURN = 64
TURNS = 16

APPENDERS = 16
FSYNC_BATCH_BYTES = 64 << 10
APPENDS_A_TURN = 100  # of each appender
FSYNC_TURNS = 6
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 30


def measure_append(directory: Path, _: float) -> dict[str, float]:
    """Per cent of the bare loop's rate."""
    batches = [batch_of(BATCH_BYTES) for _ in range(8)]
    log = opened(directory / "log")
    spent = {"log": 0.0, "bare": 0.0}
    descriptor = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        for turn in range(TURNS):
            for side in ("log", "bare") if turn % 2 else ("bare", "log"):
                began = time.perf_counter()
                for number in range(BATCHES_A_TURN):
                    records = batches[number % len(batches)]
                    if side == "log":
                        append(log, records)
                    else:
                        os.write(descriptor, records)
                if turn:  # the first is to warm up
                    spent[side] += time.perf_counter() - began
            os.fdatasync(descriptor)  # what one side has left to be written must not slow down the other
            log.flush()
    finally:
        os.close(descriptor)
    return {"append": 100 * spent["bare"] / spent["log"]}


def measure_fsync(directory: Path, _: float) -> dict[str, float]:
    """Per cent of the rate without a flush, of a log-storage in a process of its own, as a broker appends to it."""
    address = f"unix:{directory / 'socket'}"
    settings = ["--set", "broker.id=1", "--set", f"listen={address}", "--set", f"log.dirs={directory / 'data'}"]
    process = ChildProcess(
        "log-storage", [sys.executable, "-m", "highwater.log_storage", *settings], directory / "output"
    )
    process.start()
    try:
        return {"fsync": asyncio.run(_measure_fsync(address))}
    finally:
        process.terminate()
        if not process.wait(STOP_TIMEOUT_S):
            process.kill()


async def _measure_fsync(address: str) -> float:
    key = PartitionKey(bytes(16), 0)
    storage = LogStorage(address, lambda incarnation: None)
    storage.start()
    try:
        await storage.probe(START_TIMEOUT_S)
        spent = {True: 0.0, False: 0.0}
        for turn in range(FSYNC_TURNS):
            for flushed in (True, False):
                await storage.create_log("bench", key, {"flush.messages": "1"} if flushed else {}, "")
                await storage.record_boot()  # which flushes everything
                # A leadership of its own for each: so it is known what the log's end is (RULES 3.2).
                epoch = 2 * turn + (not flushed)
                (fenced,) = await storage.fence(Role.LEADER, "bench", [(key, epoch)])
                pipeline = AppendPipeline(
                    key,
                    epoch,
                    fenced.log_end_offset,
                    send=storage.appends.send,
                    interrupted=_failed,
                    log_failed=_failed,
                )
                began = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for _ in range(APPENDERS):
                        group.create_task(_append_often(pipeline))
                if turn:
                    spent[flushed] += time.perf_counter() - began
        return 100 * spent[False] / spent[True]
    finally:
        await storage.stop()


def _failed() -> None:
    raise RuntimeError("the log takes no appends")


async def _append_often(pipeline: AppendPipeline) -> None:
    records = batch_of(FSYNC_BATCH_BYTES)
    offsets = read_header(records).last_offset_delta + 1
    for _ in range(APPENDS_A_TURN):
        answered: asyncio.Future[AppendAnswer] = asyncio.get_running_loop().create_future()
        pipeline.append(records, offsets, answered.set_result)
        answer = await answered
        if answer.error is not ErrorCode.NONE:
            raise RuntimeError(f"{answer.error.name}: {answer.message}")
