"""Appends while another log of the same log-storage is compacted, in turn with appends while nothing else is done."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.storage_logs import BASE_TIMESTAMP_MS, batch_of
from bench.storage_process import Appender, connected, log_storage_process
from highwater.model.partition import PartitionKey
from highwater.records import Codec, encode_arrays

SETTINGS = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(64 << 20)}
TURNS = 3
RECORDS_A_TURN = 3_000_000
KEYS = 1_000_000
BATCH_RECORDS = 2_000  # about 250 KB
IN_FLIGHT = 4
APPENDED_BYTES = 16 << 10
ALONE_S = 3.0
PASS_TIMEOUT_S = 120.0


def measure_beside_compaction(directory: Path, _: float) -> dict[str, float]:
    """Per cent of the rate of appends, one after another, that there is without compaction; and what one in a hundred
    of them takes at least beside it, in ms."""
    with log_storage_process(directory, SETTINGS) as address:
        alone, beside = asyncio.run(_measure(address, directory / "data" / "cleaner-offset-checkpoint"))
    rates = [len(taken) / sum(taken) for taken in (beside, alone)]
    return {"append_compacting": 100 * rates[0] / rates[1], "append_compacting_p99": _p99_ms(beside)}


async def _measure(address: str, checkpoint: Path) -> tuple[list[float], list[float]]:
    """How long the appends took: alone, and beside compaction."""
    key, other = PartitionKey(bytes(16), 0), PartitionKey(bytes(16), 1)
    alone: list[float] = []
    beside: list[float] = []
    async with connected(address) as storage:
        compacted = await Appender.leading(storage, key, CONFIG)
        appended = await Appender.leading(storage, other, {})
        for turn in range(TURNS):
            await _fill(compacted, turn)
            await storage.calls.record_boot("")  # which flushes everything
            alone += await _appends(appended, _for_so_long(ALONE_S))
            # Nothing above the high watermark is compacted: now there is something to do.
            going_on = _until_written(checkpoint)
            await storage.checkpoint_high_watermarks([(key, 0, compacted.log_end_offset)])
            beside += await _appends(appended, going_on)
    return alone, beside


async def _fill(appender: Appender, turn: int) -> None:
    """Keys at random; values that do not compress."""
    chosen = np.random.default_rng(turn)
    keys = pa.array(f"user-{number:07d}".encode() for number in range(KEYS)).cast(pa.binary())
    values = pa.array([chosen.bytes(100) for _ in range(BATCH_RECORDS)], pa.binary())
    room = asyncio.Semaphore(IN_FLIGHT)

    async def send(records: bytes) -> None:
        await appender.append(records)
        room.release()

    async with asyncio.TaskGroup() as group:
        for start in range(0, RECORDS_A_TURN, BATCH_RECORDS):
            timestamps = np.arange(start, start + BATCH_RECORDS, dtype=np.int64) + BASE_TIMESTAMP_MS
            batch_keys = keys.take(pa.array(chosen.integers(0, KEYS, BATCH_RECORDS)))
            records = encode_arrays(timestamps, batch_keys, values, codec=Codec.NONE)
            await room.acquire()
            group.create_task(send(records))


async def _appends(appender: Appender, go_on: Callable[[], bool]) -> list[float]:
    """One after another; how long each took, in seconds."""
    records = batch_of(APPENDED_BYTES)
    taken = []
    while go_on():
        began = time.perf_counter()
        await appender.append(records)
        taken.append(time.perf_counter() - began)
    return taken


def _for_so_long(seconds: float) -> Callable[[], bool]:
    until = time.perf_counter() + seconds
    return lambda: time.perf_counter() < until


def _until_written(checkpoint: Path) -> Callable[[], bool]:
    """Compaction ends by writing it. Raises `RuntimeError` when that takes too long."""

    def content() -> bytes:
        return checkpoint.read_bytes() if checkpoint.exists() else b""

    before = content()
    in_time = _for_so_long(PASS_TIMEOUT_S)

    def going_on() -> bool:
        if not in_time():
            raise RuntimeError(f"nothing was compacted within {PASS_TIMEOUT_S:g} s")
        return content() == before

    return going_on


def _p99_ms(taken: list[float]) -> float:
    return 1000 * sorted(taken)[math.ceil(0.99 * len(taken)) - 1]
