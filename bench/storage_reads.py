"""Random reads in a large log."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.storage_logs import BASE_TIMESTAMP_MS, append, batch_of, opened, values_of
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.records import read_header

BATCH_RECORDS = 16  # of 1 KiB
READS = 2_000
PAGE_BYTES = 4096
READ_BYTES = 16 << 10
READAHEAD_BYTES = 128 << 10


class Pages:
    """Counts what is read through `os.pread`, by the kind of the file."""

    def __init__(self) -> None:
        self._pread = os.pread
        self.index_pages: set[tuple[int, int]] = set()
        self.data_ranges: list[tuple[int, int, int]] = []

    def __enter__(self) -> Pages:
        os.pread = self._counted  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        os.pread = self._pread

    def _counted(self, descriptor: int, size: int, position: int) -> bytes:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith("index"):
            pages = range(position // PAGE_BYTES, (position + size - 1) // PAGE_BYTES + 1)
            self.index_pages.update((descriptor, page) for page in pages)
        else:
            self._add_range(descriptor, position, position + size)
        return self._pread(descriptor, size, position)

    def _add_range(self, descriptor: int, start: int, end: int) -> None:
        """One that is within the kernel's readahead of another is part of it: the disk is asked once."""
        for number, (of, before, after) in enumerate(self.data_ranges):
            if of == descriptor and start <= after + READAHEAD_BYTES and end + READAHEAD_BYTES >= before:
                self.data_ranges[number] = (of, min(start, before), max(end, after))
                return
        self.data_ranges.append((descriptor, start, end))


def measure_lookup(directory: Path, gigabytes: float) -> dict[str, float]:
    """The worst number of pages and ranges, and the median of the times in ms, of both kinds of reads."""
    log = _large_log(directory / "log", int(gigabytes * 1e9))
    log.close()
    log = opened(directory / "log", Checkpointed(True, log.log_end_offset, 0, log.log_end_offset))
    end = log.log_end_offset
    kinds: dict[str, Callable[[int], None]] = {
        "offset": lambda offset: _read(log, offset),
        "timestamp": lambda offset: _read_by_timestamp(log, offset),
    }
    for segment in log.segments:  # the first use of an index reads it whole
        for read in kinds.values():
            read(segment.base_offset)
    chosen = random.Random(7)
    spent_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
    pages, ranges = 0, 0
    for _ in range(READS):
        offset = chosen.randrange(end)
        for kind, read in kinds.items():
            began = time.perf_counter()
            read(offset)
            spent_ms[kind].append(1000 * (time.perf_counter() - began))
    for _ in range(READS // 4):
        offset = chosen.randrange(end)
        for read in kinds.values():
            with Pages() as touched:
                read(offset)
            pages = max(pages, len(touched.index_pages))
            ranges = max(ranges, len(touched.data_ranges))
    return {
        "lookup": max(statistics.median(spent) for spent in spent_ms.values()),
        "lookup_pages": pages,
        "lookup_ranges": ranges,
    }


def _large_log(directory: Path, size_bytes: int) -> Log:
    log = opened(directory)
    values = values_of(BATCH_RECORDS)
    timestamp, together = BASE_TIMESTAMP_MS, 64
    while log.size_bytes < size_bytes:
        batches = []
        for _ in range(together):
            batches.append(batch_of(0, timestamp, values))
            timestamp += BATCH_RECORDS
        append(log, b"".join(batches))
    return log


def _read(log: Log, offset: int) -> None:
    header = read_header(log.read(offset, -1, READ_BYTES))
    assert header.base_offset <= offset <= header.last_offset


def _read_by_timestamp(log: Log, offset: int) -> None:
    assert log.reader.list_offset(BASE_TIMESTAMP_MS + offset).offset == offset
