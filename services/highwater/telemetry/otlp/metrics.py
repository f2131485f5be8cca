"""The reporter `otlp`: a process's Prometheus registry, as OTLP's messages. There is no second set of instruments: what
`/metrics` would show is read at an interval, and sent. Importing this needs the extra `otel`."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.otlp.collector import METRICS, Collector, Connection, NotTakenError
from highwater.telemetry.otlp.messages import SCOPE, key_values, resource
from highwater.telemetry.politely import politely
from highwater.telemetry.tracing import Value

TELL_AGAIN_S = 60.0
STOP_S = 2.0
MAX_POINTS = 5_000
"""Of one message: values by their labels. There may be thousands."""

_CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
_NS = 1_000_000_000
# Prometheus has the unit at the end of the name, OTLP in a field.
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
_Labels = tuple[tuple[str, str], ...]

_log = get_logger("telemetry.metrics")


class OtlpReporter:
    """Sends a registry at an interval, from a thread of its own, until `stop`."""

    def __init__(self, metrics: OtlpMetrics, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=metrics.run, args=(interval_s, self._stopping), name="otlp-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Reports once more, and ends; a collector that does not answer is not waited for for long."""
        self._stopping.set()
        self._thread.join(min(self._interval_s, STOP_S))


class OtlpMetrics:
    """Sends a registry to a collector. Of one thread: `run`'s, or that of whoever calls `report`."""

    def __init__(self, registry: CollectorRegistry, collector: Collector, attributes: Mapping[str, Value]) -> None:
        self._registry = registry
        self._collector = collector
        self._resource = resource(attributes)
        self._connection = Connection(collector)
        self._started_ns = time.time_ns()
        self._told_s = -TELL_AGAIN_S
        self._failures = 0  # since it was told

    def run(self, interval_s: float, stopping: threading.Event) -> None:
        """Reports at each interval until `stopping` is set, and then once more."""
        stopped = False
        while not stopped:
            stopped = stopping.wait(interval_s)
            self.report(time.time())
        self._connection.close()

    def report(self, time_s: float) -> None:
        """Sends all that there is now, under this time of the wall clock. What the collector does not take is left out:
        the next report has it, as counters go on."""
        try:
            for request in requests(
                self._resource, politely(self._registry.collect(), at_once=4), self._started_ns, int(time_s * _NS)
            ):
                self._connection.post(METRICS, request.SerializeToString())
        except NotTakenError as error:
            self._failures += 1
            now_s = time.monotonic()
            if now_s - self._told_s >= TELL_AGAIN_S:
                details = pairs(count=self._failures, endpoint=self._collector.endpoint, reason=repr(str(error)))
                _log.warning("metrics are not reported %s", details)
                self._told_s, self._failures = now_s, 0


def requests(
    teller: Resource, families: Iterable[Metric], started_ns: int, now_ns: int
) -> Iterator[ExportMetricsServiceRequest]:
    """All of a registry, in messages of about `MAX_POINTS`. Counts without a time of their own began at
    `started_ns`."""
    metrics: list[metrics_pb2.Metric] = []
    points = 0
    for family in families:
        for metric in converted(family, started_ns, now_ns):
            metrics.append(metric)
            points += len(metric.sum.data_points) + len(metric.gauge.data_points) + len(metric.histogram.data_points)
        if points >= MAX_POINTS:
            yield _request(teller, metrics)
            metrics, points = [], 0
    if metrics:
        yield _request(teller, metrics)


def _request(teller: Resource, metrics: Iterable[metrics_pb2.Metric]) -> ExportMetricsServiceRequest:
    scope = metrics_pb2.ScopeMetrics(scope=SCOPE, metrics=metrics)
    return ExportMetricsServiceRequest(
        resource_metrics=[metrics_pb2.ResourceMetrics(resource=teller, scope_metrics=[scope])]
    )


def converted(family: Metric, started_ns: int, now_ns: int) -> Iterator[metrics_pb2.Metric]:
    """A family under the name that Prometheus shows it by: `_total` of counters too. What has no values is left out."""
    created = {
        _labels(sample): int(sample.value * _NS) for sample in family.samples if sample.name.endswith("_created")
    }

    def begun(labels: _Labels) -> int:
        return created.get(labels, started_ns)

    match family.type:
        case "counter":
            values = [sample for sample in family.samples if sample.name.endswith("_total")]
            made = _metric(family, f"{family.name}_total")
            made.sum.aggregation_temporality = _CUMULATIVE
            made.sum.is_monotonic = True
            made.sum.data_points.extend(_number(sample, now_ns, begun_ns=begun(_labels(sample))) for sample in values)
        case "histogram":
            made = _metric(family, family.name)
            made.histogram.aggregation_temporality = _CUMULATIVE
            made.histogram.data_points.extend(_histogram_points(family.samples, begun, now_ns))
            values = family.samples
        case _:
            values = [sample for sample in family.samples if sample.name == family.name]
            made = _metric(family, family.name)
            made.gauge.data_points.extend(_number(sample, now_ns) for sample in values)
    if values:
        yield made


def _metric(family: Metric, name: str) -> metrics_pb2.Metric:
    last = family.name.rpartition("_")[2]
    return metrics_pb2.Metric(name=name, description=family.documentation, unit=_UNITS.get(last, ""))


def _number(sample: Sample, now_ns: int, begun_ns: int = 0) -> metrics_pb2.NumberDataPoint:
    return metrics_pb2.NumberDataPoint(
        attributes=key_values(sample.labels),
        start_time_unix_nano=begun_ns,
        time_unix_nano=now_ns,
        as_double=sample.value,
    )


def _histogram_points(
    samples: Iterable[Sample], begun: Callable[[_Labels], int], now_ns: int
) -> Iterator[metrics_pb2.HistogramDataPoint]:
    """Prometheus counts what is at or below a bound, OTLP what is between two."""
    buckets: defaultdict[_Labels, list[tuple[float, float]]] = defaultdict(list)
    sums: dict[_Labels, float] = {}
    for sample in samples:
        labels = _labels(sample)
        if sample.name.endswith("_bucket"):
            buckets[labels].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, below in buckets.items():
        below.sort()
        counts = [int(count - before) for (_, count), before in zip(below, (0.0, *(c for _, c in below)), strict=False)]
        yield metrics_pb2.HistogramDataPoint(
            attributes=key_values(dict(labels)),
            start_time_unix_nano=begun(labels),
            time_unix_nano=now_ns,
            count=int(below[-1][1]),
            sum=sums.get(labels, 0.0),
            bucket_counts=counts,
            explicit_bounds=[bound for bound, _ in below[:-1]],
        )


def _labels(sample: Sample) -> _Labels:
    return tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
