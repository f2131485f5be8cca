"""Appends: against a bare loop of `write`, and with an fdatasync before each answer."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.storage_logs import CONFIG, append, batch_of, opened
from highwater.log_storage.fence import Fence, Role
from highwater.log_storage.hosted import HostedLog
from highwater.log_storage.log_manager import LogManager
from highwater.log_storage.serving.servicer import LogStorageServicer
from highwater.metadata.models import PartitionKey
from highwater.telemetry.metrics import Metrics
from highwater.v1 import common_pb2, log_storage_pb2

BATCH_BYTES = (1 << 20) - 4096
BATCHES_A_TURN = 64
TURNS = 16

APPENDERS = 16
FSYNC_BATCH_BYTES = 64 << 10
APPENDS_A_TURN = 100  # of each appender
FSYNC_TURNS = 6
INCARNATION = "bench"


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
    """Per cent of the rate without a flush."""
    return {"fsync": asyncio.run(_measure_fsync(directory))}


async def _measure_fsync(directory: Path) -> float:
    key = PartitionKey(bytes(16), 0)
    manager = LogManager([directory / "data"], CONFIG, broker_id=0)
    manager.load()
    manager.create("bench", key, {})
    hosted = manager.get(key)
    hosted.log_dir.fences.fences[key] = Fence(1, Role.LEADER, INCARNATION, INCARNATION)
    spent = {True: 0.0, False: 0.0}
    with ThreadPoolExecutor(8) as threads:
        servicer = LogStorageServicer(manager, INCARNATION, threads, Metrics("log-storage"))
        for turn in range(FSYNC_TURNS):
            for flushed in (True, False):
                log = hosted.online()
                log.config = replace(CONFIG, flush_messages=1) if flushed else CONFIG
                await servicer.flush(hosted)
                began = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for _ in range(APPENDERS):
                        group.create_task(_append_often(servicer, hosted))
                if turn:
                    spent[flushed] += time.perf_counter() - began
        await servicer.settle()
    manager.close()
    return 100 * spent[False] / spent[True]


async def _append_often(servicer: LogStorageServicer, hosted: HostedLog) -> None:
    records = batch_of(FSYNC_BATCH_BYTES)
    for _ in range(APPENDS_A_TURN):
        request = log_storage_pb2.AppendRequest(role=log_storage_pb2.LEADER)
        request.partitions.add(
            partition=common_pb2.PartitionKey(topic_id=hosted.key.topic_id, partition=hosted.key.partition),
            records=records,
            leader_epoch=1,
            expected_offset=hosted.online().log_end_offset,
        )
        response = await servicer.append(request)
        if response.results[0].HasField("error"):
            raise RuntimeError(response.results[0].error.message)
