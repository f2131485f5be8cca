"""The bridge from a Prometheus registry to a collector of OTLP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from otlp_collector import CollectorDouble, otlp_collector

from highwater.telemetry.metrics import Metrics
from highwater.telemetry.otlp import metrics as otlp_metrics
from highwater.telemetry.otlp.collector import Collector
from highwater.telemetry.otlp.metrics import OtlpMetrics

WHO = {"service.name": "here"}


@pytest.fixture
def collector() -> Iterator[CollectorDouble]:
    with otlp_collector() as double:
        yield double


def sent(metrics: Metrics, collector: CollectorDouble) -> dict[str, Metric]:
    OtlpMetrics(metrics.registry, Collector(collector.endpoint), WHO).report(1_700_000_000.0)
    return {metric.name: metric for _, metric in collector.metrics}


def test_counters_gauges_and_histograms_keep_their_names_and_values(collector: CollectorDouble) -> None:
    metrics = Metrics("log-storage")
    appended = metrics.counter("appended_bytes", "Bytes appended", ("role",))
    appended.labels("leader").inc(7)
    appended.labels("follower").inc(5)
    metrics.gauge("logs", "Logs hosted").set(3)
    fsync = metrics.latency("fsync", "Flushes")
    for seconds in (0.0001, 0.003, 0.003, 99.0):
        fsync.observe(seconds)
    found = sent(metrics, collector)

    counter = found["highwater_log_storage_appended_bytes_total"]
    assert (counter.unit, counter.description) == ("By", "Bytes appended")
    assert counter.sum.is_monotonic
    assert counter.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert {point.attributes[0].value.string_value: point.as_double for point in counter.sum.data_points} == {
        "leader": 7,
        "follower": 5,
    }
    assert all(
        point.start_time_unix_nano > 0 and point.time_unix_nano == 1_700_000_000 * 10**9
        for point in counter.sum.data_points
    )
    (logs,) = found["highwater_log_storage_logs"].gauge.data_points
    assert logs.as_double == 3
    (flushes,) = found["highwater_log_storage_fsync_seconds"].histogram.data_points
    assert (flushes.count, sum(flushes.bucket_counts)) == (4, 4)
    assert len(flushes.bucket_counts) == len(flushes.explicit_bounds) + 1
    assert flushes.sum == pytest.approx(99.0061)
    at = {bound: count for bound, count in zip(flushes.explicit_bounds, flushes.bucket_counts, strict=False) if count}
    assert at == {0.0005: 1, 0.004: 2}  # and one above all of them
    assert flushes.bucket_counts[-1] == 1
    assert {"highwater_log_storage_appended_bytes_created"} & set(found) == set()


def test_many_values_go_in_several_messages(collector: CollectorDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_metrics, "MAX_POINTS", 10)
    metrics = Metrics("fetcher")
    for family in range(3):
        gauge = metrics.gauge(f"lag_{family}", "Lag", ("partition",))
        for partition in range(10):
            gauge.labels(str(partition)).set(partition)
    assert len(sent(metrics, collector)) == 3
    assert len(collector.headers) == 3


def test_a_collector_that_does_not_answer_is_told_of_once_and_the_next_report_comes(
    collector: CollectorDouble, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics("fetcher")
    metrics.gauge("lag", "Lag").set(1)
    reporter = OtlpMetrics(metrics.registry, Collector(collector.endpoint), WHO)
    collector.status = 500
    with caplog.at_level(logging.WARNING):
        reporter.report(1.0)
        reporter.report(2.0)
    assert [record.message for record in caplog.records] == [
        f"metrics are not reported count=1 endpoint={collector.endpoint} reason='status 500 Internal Server Error'"
    ]
    collector.status = 200
    reporter.report(3.0)
    assert len(collector.metrics) == 1


def test_it_reports_at_its_interval_and_once_more_at_the_end(collector: CollectorDouble) -> None:
    metrics = Metrics("fetcher")
    gauge = metrics.gauge("lag", "Lag")
    stopping = threading.Event()
    reporter = OtlpMetrics(metrics.registry, Collector(collector.endpoint), WHO)
    thread = threading.Thread(target=reporter.run, args=(0.01, stopping))
    thread.start()
    collector.await_metric("here", "highwater_fetcher_lag")
    gauge.set(9)
    stopping.set()
    thread.join(10)
    assert collector.await_metric("here", "highwater_fetcher_lag").gauge.data_points[0].as_double == 9
