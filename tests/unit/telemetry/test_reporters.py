"""What reporters print, log and write, and that it is bounded."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from highwater.rpc.settings import ServiceSettings, load
from highwater.telemetry import csv_reporter
from highwater.telemetry.csv_reporter import CsvReporter
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.reporters import (
    ConsoleReporter,
    LogReporter,
    ReporterOptions,
    Reporters,
    Sample,
    samples_of,
)

NOON_S = 1_800_000_000.0


def test_samples_are_all_values_but_buckets() -> None:
    metrics = Metrics("s")
    metrics.counter("bytes", "B", ("role",)).labels("leader").inc(5)
    metrics.latency("fsync", "F").observe(0.5)
    metrics.timing("request", "R", ("request", "phase")).labels("Produce", "total").observe(0.25)
    assert samples_of(metrics.registry) == [
        Sample("highwater_s_bytes_total", "role=leader", 5.0),
        Sample("highwater_s_fsync_seconds_count", "", 1.0),
        Sample("highwater_s_fsync_seconds_sum", "", 0.5),
        Sample("highwater_s_request_seconds_count", "request=Produce,phase=total", 1.0),
        Sample("highwater_s_request_seconds_sum", "request=Produce,phase=total", 0.25),
    ]


def test_the_console_shows_values_and_rates() -> None:
    out = io.StringIO()
    reporter = ConsoleReporter("fetcher-1", out)
    for at_s, value in ((NOON_S, 100.0), (NOON_S + 10, 150.0)):
        reporter.report(at_s, [Sample("x_total", "a=b", value), Sample("y", "", 7.0), Sample("z", "", 0.0)])
    assert out.getvalue().splitlines() == [
        "-- 2027-01-15T08:00:00Z fetcher-1",
        "x_total{a=b} 100",
        "y 7",
        "-- 2027-01-15T08:00:10Z fetcher-1",
        "x_total{a=b} 150 (5/s)",
        "y 7",
    ]


def test_the_log_has_a_line_of_what_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    reporter = LogReporter()
    with caplog.at_level(logging.INFO):
        for value in (1.0, 1.0, 2.0):
            reporter.report(NOON_S, [Sample("x_total", "a=b", value), Sample("y", "", 7.0)])
    assert [record.getMessage() for record in caplog.records] == [
        "metrics x_total{a=b}=1 y=7",
        "metrics x_total{a=b}=2",
    ]


def test_csv_has_a_file_for_each_metric(tmp_path: Path) -> None:
    reporter = CsvReporter(tmp_path / "fetcher-1")
    reporter.report(NOON_S, [Sample("b", "x=1,y=2", 1.5), Sample("a_total", "", 3.0), Sample("b", "x=2,y=2", 2.0)])
    reporter.report(NOON_S + 10, [Sample("a_total", "", 4.0)])
    assert (tmp_path / "fetcher-1" / "a_total.csv").read_text().splitlines() == [
        "time,labels,value",
        "2027-01-15T08:00:00.000Z,,3",
        "2027-01-15T08:00:10.000Z,,4",
    ]
    assert (tmp_path / "fetcher-1" / "b.csv").read_text().splitlines()[1:] == [
        '2027-01-15T08:00:00.000Z,"x=1,y=2",1.5',
        '2027-01-15T08:00:00.000Z,"x=2,y=2",2',
    ]


def test_csv_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reporter, "MAX_FILE_BYTES", 1_000)
    monkeypatch.setattr(csv_reporter, "MAX_ROWS", 5)
    reporter = CsvReporter(tmp_path)
    for number in range(200):
        reporter.report(NOON_S + number, [Sample("x", f"topic={topic}", 1.0) for topic in range(100)])
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(files) == {"x.csv", "x.csv.1"}
    assert max(files.values()) <= 1_000
    for name in files:
        assert (tmp_path / name).read_text().startswith("time,labels,value\n")


def test_a_failing_reporter_is_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    Counter("x", "X", registry=registry).inc()
    (tmp_path / "file").touch()
    reporters = Reporters(registry, ReporterOptions(["csv"], 3600.0, tmp_path / "file", "fetcher-1"))
    reporters.stop()  # reports once more
    assert "metrics are not reported by=CsvReporter" in caplog.text
    whole = Reporters(registry, ReporterOptions(["csv"], 3600.0, tmp_path / "d", "fetcher/1"))
    whole.stop()
    assert (tmp_path / "d" / "fetcher_1" / "x_total.csv").exists()


def test_the_settings_have_the_seeds_names_too() -> None:
    settings = load(
        ServiceSettings,
        {
            "kafka.metrics.polling.interval.secs": "10",
            "kafka.metrics.reporters": "kafka.metrics.KafkaCSVMetricsReporter,console",
            "kafka.csv.metrics.dir": "/opt/data/metrics",
            "kafka.csv.metrics.reporter.enabled": "true",
        },
    )
    assert settings.metrics_reporters == ["csv", "console"]
    assert settings.metrics_interval_s == 10
    assert settings.csv_metrics_dir == "/opt/data/metrics"
    assert settings.csv_metrics_reporter_enabled
    assert load(ServiceSettings, {"metrics.reporter.interval.ms": "500"}).metrics_interval_s == 0.5
