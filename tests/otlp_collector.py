"""A double of an OpenTelemetry collector: takes OTLP over HTTP, and keeps what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

WAIT_S = 20.0


@dataclass(frozen=True)
class SeenSpan:
    service: str
    instance: str
    name: str
    trace: str
    span: str
    parent: str  # empty: it begins the trace
    start_ns: int
    end_ns: int
    error: str
    attributes: dict[str, object]


@dataclass
class CollectorDouble:
    """`status`: what it answers with."""

    endpoint: str = ""
    status: int = 200
    spans: list[SeenSpan] = field(default_factory=list)
    metrics: list[tuple[str, Metric]] = field(default_factory=list)  # and the service that told of it
    headers: list[dict[str, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def await_spans(self, done: object, within_s: float = WAIT_S) -> list[SeenSpan]:
        """Waits until `done`, a function of all spans, holds of them."""
        deadline = monotonic() + within_s
        with self.changed:
            while not done(self.spans):  # type: ignore[operator]
                left_s = deadline - monotonic()
                assert left_s > 0, [(span.service, span.name, span.trace[:6], span.attributes) for span in self.spans]
                self.changed.wait(left_s)
            return list(self.spans)

    def await_metric(self, service: str, name: str, within_s: float = WAIT_S) -> Metric:
        """The latest of that name."""
        deadline = monotonic() + within_s
        with self.changed:
            while True:
                found = [metric for teller, metric in self.metrics if teller == service and metric.name == name]
                if found:
                    return found[-1]
                left_s = deadline - monotonic()
                assert left_s > 0, {metric.name for _, metric in self.metrics}
                self.changed.wait(left_s)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        with self.changed:
            self.headers.append(headers)
            if path == "/v1/traces":
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            else:
                assert path == "/v1/metrics", path
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    teller = {each.key: each.value.string_value for each in resource.resource.attributes}
                    for scope in resource.scope_metrics:
                        self.metrics += [(teller["service.name"], metric) for metric in scope.metrics]
            self.changed.notify_all()

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            teller = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
                    self.spans.append(
                        SeenSpan(
                            teller["service.name"],
                            teller.get("service.instance.id", ""),
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.message,
                            values,
                        )
                    )


@contextmanager
def otlp_collector() -> Iterator[CollectorDouble]:
    """One that listens at `endpoint`."""
    double = CollectorDouble()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if double.status == 200:
                double.take(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
            self.send_response(double.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    double.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
