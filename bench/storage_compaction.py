"""Compaction of a log of many more records than keys, by the process that a log-storage starts for it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.storage_logs import BASE_TIMESTAMP_MS, append, opened
from highwater.log_storage.compaction.cleaner_job import CleanedGroup, PassLimits, PassReport
from highwater.log_storage.compaction.cleaner_selection import CleanableRange
from highwater.log_storage.compaction.cleaner_worker import CleanerWorker
from highwater.log_storage.compaction.segment_swap import clean_job, swap_in
from highwater.log_storage.log.log import Log
from highwater.records import Codec, encode_arrays, iter_batches

RECORDS = 10_000_000
KEYS = 1_000_000
VALUE_BYTES = 100
BATCH_RECORDS = 2_000  # about 250 KB


def measure_compaction(directory: Path, _: float) -> dict[str, float]:
    """Seconds of a pass over the whole log, and the peak memory of the process in MB."""
    log = _filled(directory / "log")
    log.writer.roll(log.log_end_offset)
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.flush()
    began = time.perf_counter()
    report = asyncio.run(_clean(log))
    spent_s = time.perf_counter() - began
    assert report.records_read == RECORDS, report
    assert _records_of(log) == KEYS
    return {"compaction": spent_s, "compaction_memory": report.peak_memory_bytes / 1e6}


async def _clean(log: Log) -> PassReport:
    worker = CleanerWorker(PassLimits())
    try:
        job, present = clean_job(log, CleanableRange(0, log.log_end_offset), BASE_TIMESTAMP_MS)
        async for answer in worker.run(job):
            match answer:
                case CleanedGroup():
                    assert swap_in(log, answer, present)
                case PassReport():
                    return answer
                case failed:
                    raise RuntimeError(str(failed))
        raise AssertionError("a pass ends with a report")
    finally:
        await worker.close()


def _filled(directory: Path) -> Log:
    """Keys at random, each of them somewhere; values that do not compress."""
    log = opened(directory)
    keys = pa.array(f"user-{number:07d}".encode() for number in range(KEYS)).cast(pa.binary())
    chosen = np.random.default_rng(7)
    order = np.concatenate((chosen.permutation(KEYS), chosen.integers(0, KEYS, RECORDS - KEYS)))
    values = [pa.array([os.urandom(VALUE_BYTES) for _ in range(BATCH_RECORDS)], pa.binary()) for _ in range(16)]
    for number, start in enumerate(range(0, RECORDS, BATCH_RECORDS)):
        timestamps = np.arange(start, start + BATCH_RECORDS, dtype=np.int64) + BASE_TIMESTAMP_MS
        batch_keys = keys.take(pa.array(order[start : start + BATCH_RECORDS]))
        append(log, encode_arrays(timestamps, batch_keys, values[number % len(values)], codec=Codec.NONE))
    return log


def _records_of(log: Log) -> int:
    found, offset = 0, 0
    while offset < log.log_end_offset:
        content = log.read(offset, -1, 1 << 20)
        if not content:
            break
        for _, header in iter_batches(content):
            found += header.record_count
            offset = header.next_offset
    return found
