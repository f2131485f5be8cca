"""The beginning of tracing in a service, or in a client of the SDK; and of the reporter of metrics."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from highwater import __version__
from highwater.extras import needing
from highwater.telemetry.otlp.collector import Collector, Tracing
from highwater.telemetry.tracing import Tracer, Value

if TYPE_CHECKING:  # clients have none
    from prometheus_client import CollectorRegistry, Counter

    from highwater.telemetry.otlp.metrics import OtlpReporter


def open_tracer(
    tracing: Tracing | None,
    service: str,
    attributes: Mapping[str, Value],
    *,
    exported: Callable[[int], object] = lambda count: None,
    dropped: Callable[[int], object] = lambda count: None,
) -> Tracer | None:
    """None where tracing is off. `service` and `attributes` say whose the spans are; `exported` and `dropped` are
    called with how many. Raises `MissingExtraError`."""
    if tracing is None:
        return None
    with needing("otel", "tracing"):
        from highwater.telemetry.otlp.span_exporter import SpanExporter

    exporter = SpanExporter(tracing.collector, teller(service, attributes), exported=exported, dropped=dropped)
    return Tracer(exporter, tracing.sample_ratio)


def service_tracer(tracing: Tracing | None, service: str, broker_id: int, spans: Counter) -> Tracer | None:
    """That of a broker's service. `spans` has the label `outcome`. Raises `MissingExtraError`."""
    return open_tracer(
        tracing,
        f"highwater-{service}",
        {"service.instance.id": str(broker_id)},
        exported=spans.labels("exported").inc,
        dropped=spans.labels("dropped").inc,
    )


def report_metrics(
    registry: CollectorRegistry, collector: Collector, service: str, process: str, interval_s: float
) -> OtlpReporter:
    """Begins the reporter `otlp` of a process, `replica-manager-1` say. Raises `MissingExtraError`."""
    with needing("otel", "the reporter otlp"):
        from highwater.telemetry.otlp.metrics import OtlpMetrics, OtlpReporter

    instance = process.rpartition("-")[2]
    attributes = teller(f"highwater-{service}", {"service.instance.id": instance if instance.isdigit() else process})
    return OtlpReporter(OtlpMetrics(registry, collector, attributes), interval_s)


def teller(service: str, attributes: Mapping[str, Value]) -> dict[str, Value]:
    """The attributes of whoever tells, by OpenTelemetry's names."""
    return {
        "service.namespace": "highwater",
        "service.name": service,
        "service.version": __version__,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        **attributes,
    }
