"""Appends: against a bare loop of `write`, and with an fdatasync before each answer."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from bench.storage_logs import append, batch_of, opened
from bench.storage_process import Appender, connected, log_storage_process
from highwater.model.partition import PartitionKey

BATCH_BYTES = (1 << 20) - 4096
BATCHES_A_TURN = 64
TURNS = 16

APPENDERS = 16
FSYNC_BATCH_BYTES = 64 << 10
APPENDS_A_TURN = 100  # of each appender
FSYNC_TURNS = 6


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
    with log_storage_process(directory, {}) as address:
        return {"fsync": asyncio.run(_measure_fsync(address))}


async def _measure_fsync(address: str) -> float:
    key = PartitionKey(bytes(16), 0)
    spent = {True: 0.0, False: 0.0}
    async with connected(address) as storage:
        for turn in range(FSYNC_TURNS):
            for flushed in (True, False):
                config = {"flush.messages": "1"} if flushed else {}
                appender = await Appender.leading(storage, key, config, leader_epoch=2 * turn + (not flushed))
                await storage.calls.record_boot("")  # which flushes everything
                began = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for _ in range(APPENDERS):
                        group.create_task(_append_often(appender))
                if turn:
                    spent[flushed] += time.perf_counter() - began
    return 100 * spent[False] / spent[True]


async def _append_often(appender: Appender) -> None:
    records = batch_of(FSYNC_BATCH_BYTES)
    for _ in range(APPENDS_A_TURN):
        await appender.append(records)
