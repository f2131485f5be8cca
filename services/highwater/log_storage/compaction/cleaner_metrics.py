"""The metrics of compaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from highwater.log_storage.compaction.cleaner_job import PassReport
from highwater.log_storage.compaction.cleaner_selection import LogToClean
from highwater.telemetry.metrics import Metrics


class CleanerMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._passes = metrics.counter("cleaner_passes_total", "Passes of compaction over a log", ("outcome",))
        self._read = metrics.counter("cleaner_read_bytes_total", "Bytes of batches that compaction read")
        self._written = metrics.counter("cleaner_written_bytes_total", "Bytes of batches that compaction wrote")
        self._dropped = metrics.counter("cleaner_dropped_records_total", "Records that compaction dropped")
        self._last = metrics.gauge("cleaner_last_pass_seconds", "How long the last pass took")
        self._last_memory = metrics.gauge("cleaner_last_pass_peak_memory_bytes", "Memory that its process had at most")
        self._dirty = metrics.gauge("cleaner_max_dirty_ratio", "Dirty share of the filthiest log")
        self._overdue = metrics.gauge("cleaner_max_overdue_seconds", "The longest wait beyond max.compaction.lag.ms")
        self._uncleanable = metrics.gauge("cleaner_uncleanable_logs", "Logs that could not be cleaned")
        self._uncleanable_bytes = metrics.gauge("cleaner_uncleanable_bytes", "Bytes of those logs")

    def seen(self, logs: Iterable[LogToClean[Any]], uncleanable: int, uncleanable_bytes: int) -> None:
        """Takes note of what there was to choose from."""
        self._dirty.set(max((log.ratio for log in logs), default=0.0))
        self._overdue.set(max((log.overdue_ms for log in logs), default=0) / 1000)
        self._uncleanable.set(uncleanable)
        self._uncleanable_bytes.set(uncleanable_bytes)

    def passed(self, outcome: str) -> None:
        self._passes.labels(outcome).inc()

    def done(self, report: PassReport, seconds: float) -> None:
        self.passed("done")
        self._read.inc(report.bytes_read)
        self._written.inc(report.bytes_written)
        self._dropped.inc(report.records_dropped)
        self._last.set(seconds)
        self._last_memory.set(report.peak_memory_bytes)
