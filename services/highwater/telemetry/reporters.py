"""Reporters of a process's metrics: they print, log or write them at an interval."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TextIO

from prometheus_client import CollectorRegistry

from highwater.telemetry.csv_reporter import CsvReporter
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.politely import politely

_log = get_logger("telemetry.metrics")

ReporterName = Literal["console", "log", "csv", "otlp"]
_LEFT_OUT = ("_bucket", "_created")  # of a histogram the sum and the count are enough
# Whoever reads it begins it anew: that is for whom the metrics are served to.
_ONE_READER = "_loop_longest_delay_seconds"


class Sample(NamedTuple):
    name: str
    labels: str  # `a=1,b=x`
    value: float


class Reporter(Protocol):
    def report(self, time_s: float, samples: Sequence[Sample]) -> None:
        """Takes all that there is at a time of the wall clock."""


@dataclass(frozen=True, slots=True)
class ReporterOptions:
    names: Sequence[str]  # but for otlp, which reads the registry itself
    interval_s: float
    directory: Path  # of the CSV files; each process has a folder of its own in it
    process: str  # `replica-manager-1`


class Reporters:
    """Runs them in a thread of its own, until `stop`."""

    def __init__(self, registry: CollectorRegistry, options: ReporterOptions) -> None:
        self._registry = registry
        self._interval_s = options.interval_s
        self._reporters = [_MAKERS[name](options) for name in dict.fromkeys(options.names)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-reporters", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Reports once more, and ends."""
        self._stopping.set()
        self._thread.join(timeout=self._interval_s)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(self._interval_s)
            now_s = time.time()
            samples = samples_of(self._registry)
            for reporter in self._reporters:
                try:
                    reporter.report(now_s, samples)
                except Exception as error:  # a full disk, say: the next report may be written again
                    _log.warning("metrics are not reported %s", pairs(by=type(reporter).__name__, error=error))


def samples_of(registry: CollectorRegistry) -> list[Sample]:
    """All values but the buckets of histograms."""
    return [
        Sample(sample.name, ",".join(f"{key}={value}" for key, value in sample.labels.items()), sample.value)
        for family in politely(registry.collect(), at_once=4)
        for sample in politely(family.samples)
        if not sample.name.endswith((*_LEFT_OUT, _ONE_READER))
    ]


class ConsoleReporter:
    """Prints what is not zero, with the rate of what counts."""

    def __init__(self, process: str, out: TextIO) -> None:
        self._process = process
        self._out = out
        self._before: Mapping[tuple[str, str], float] = {}
        self._before_s = 0.0

    def report(self, time_s: float, samples: Sequence[Sample]) -> None:
        lines = [f"-- {datetime.fromtimestamp(time_s, UTC):%Y-%m-%dT%H:%M:%SZ} {self._process}"]
        for name, labels, value in samples:
            if not value:
                continue
            shown = f"{name}{{{labels}}}" if labels else name
            before = self._before.get((name, labels))
            counts = name.endswith(("_total", "_count", "_sum")) and before is not None and time_s > self._before_s
            rate = f" ({(value - (before or 0)) / (time_s - self._before_s):.6g}/s)" if counts else ""
            lines.append(f"{shown} {value:.12g}{rate}")
        self._before, self._before_s = _values(samples), time_s
        print("\n".join(lines), file=self._out, flush=True)


class LogReporter:
    """Logs what has changed since the last report: one line."""

    def __init__(self) -> None:
        self._before: Mapping[tuple[str, str], float] = {}

    def report(self, time_s: float, samples: Sequence[Sample]) -> None:
        changed = {
            f"{name}{{{labels}}}" if labels else name: f"{value:.12g}"
            for name, labels, value in samples
            if self._before.get((name, labels), 0.0) != value
        }
        self._before = _values(samples)
        if changed:
            _log.info("metrics %s", pairs(**changed), extra={"summed": "metrics"})


def _values(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
    return {(sample.name, sample.labels): sample.value for sample in samples}


_MAKERS: Mapping[str, Callable[[ReporterOptions], Reporter]] = {
    "console": lambda options: ConsoleReporter(options.process, sys.stdout),
    "log": lambda options: LogReporter(),
    "csv": lambda options: CsvReporter(options.directory / re.sub(r"[^\w.-]", "_", options.process)),
}
