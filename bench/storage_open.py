"""Starts: after a stop that was not clean, and after one that was."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

from bench.storage_logs import CONFIG, append, batch_of, opened, run_of
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.partition import PartitionKey

RECOVERED_BYTES = 4 << 30
RECOVERED_BATCH_BYTES = 64 << 10

LOGS = 1_000
SEGMENTS = 10
FILLED_AT_ONCE = 100  # what is appended to has all its files open


def measure_recovery(directory: Path, _: float) -> dict[str, float]:
    """MB/s. The files are in the page cache, as after a killed process: the disk is not what is measured."""
    log = opened(directory / "log")
    for records in run_of(batch_of(RECOVERED_BATCH_BYTES), RECOVERED_BYTES):
        append(log, records)
    size_bytes, end = log.size_bytes, log.log_end_offset
    del log
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        again = opened(directory / "log")
        rates.append(size_bytes / 1e6 / (time.perf_counter() - began))
        assert again.log_end_offset == end
    return {"recovery": max(rates)}


def measure_open(directory: Path, _: float) -> dict[str, float]:
    """Seconds for all logs."""
    logging.disable(logging.INFO)
    config = replace(CONFIG, segment_bytes=64 << 10)
    records = batch_of(32 << 10)
    for first in range(0, LOGS, FILLED_AT_ONCE):
        manager = LogManager([directory], config, broker_id=0)
        manager.load()
        for number in range(first, first + FILLED_AT_ONCE):
            key = PartitionKey(bytes(16), number)
            manager.create("bench", key, {})
            log = manager.logs.get(key).online()
            for _ in range(2 * SEGMENTS - 1):
                append(log, records)
            assert len(log.segments) >= SEGMENTS, len(log.segments)
        manager.close()
    began = time.perf_counter()
    manager = LogManager([directory], config, broker_id=0)
    manager.load()
    spent_s = time.perf_counter() - began
    assert len(manager.logs) == LOGS
    for number in range(LOGS):
        manager.logs.get(PartitionKey(bytes(16), number)).online()
    manager.unlock()
    return {"open": spent_s}
