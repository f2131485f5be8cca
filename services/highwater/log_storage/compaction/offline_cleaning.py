"""Compaction of a log that no log-storage has open, all of it at once: for measurements, and for tests."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from highwater.log_storage.compaction.cleaner_job import Answer, CleanedGroup, PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass, throttled
from highwater.log_storage.compaction.segment_swap import as_seen, clean_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed, open_log
from highwater.log_storage.segment.segment import Segment


class Compacted(NamedTuple):
    """The result of `compact_log`."""

    passes: int
    records_read: int  # decoded, in all passes; a record is read once for the map and once to be kept or dropped
    records_dropped: int
    bytes_read: int
    bytes_written: int
    seconds: float
    peak_memory_bytes: int  # of this process so far


def compact_log(log: Log, limits: PassLimits, wall_clock_ms: int) -> Compacted:
    """Cleans a log that nobody else uses, in this process, until nothing is dirty any more below the active segment.
    Raises `CleanerError`, `LogError`, `CorruptBatchError`, `OSError`."""
    started_s = time.monotonic()
    passes = records_read = records_dropped = bytes_read = bytes_written = 0
    while (cleanable := as_seen(None, log, wall_clock_ms).range).first_dirty_offset < cleanable.end_offset:
        job, present = clean_job(log, cleanable, wall_clock_ms)

        def swap(answer: Answer, present: Mapping[int, Segment] = present) -> None:
            assert isinstance(answer, CleanedGroup)
            swap_in(log, answer, present)

        report = run_pass(job, limits, swap, throttled(limits.bytes_per_second))
        log.offsets.cleaned_to = report.cleaned_to
        log.remove_deleted()
        passes += 1
        records_read += report.records_read
        records_dropped += report.records_dropped
        bytes_read += report.bytes_read
        bytes_written += report.bytes_written
    return Compacted(
        passes,
        records_read,
        records_dropped,
        bytes_read,
        bytes_written,
        time.monotonic() - started_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def compact_directory(directory: Path, config: LogConfig | None = None, limits: PassLimits | None = None) -> Compacted:
    """`compact_log` of the log in `directory`, which no log-storage has open: all of it but its last segment.

    For a measurement run it in a process of its own, whose peak memory is then the pass's:
    `python -m highwater.log_storage.compaction.offline_cleaning DIRECTORY` prints the result as JSON.
    Raises as `compact_log`, and `LogError` where the log cannot be opened."""
    log = open_log(directory, config or LogConfig(), Checkpointed(clean=True))
    log.offsets.raise_high_watermark(log.log_end_offset)
    return compact_log(log, limits or PassLimits(), time.time_ns() // 1_000_000)


if __name__ == "__main__":
    print(json.dumps(compact_directory(Path(sys.argv[1]))._asdict()))
