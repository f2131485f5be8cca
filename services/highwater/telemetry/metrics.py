"""Prometheus metrics of one process. Names are `highwater_<service>_<what>_<unit>`; `docs/metrics.md` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from highwater.errors import UserError
from highwater.telemetry.metrics_server import MetricsServer
from highwater.telemetry.otlp.collector import Collector
from highwater.telemetry.otlp.start import report_metrics
from highwater.telemetry.reporters import ReporterName, ReporterOptions, Reporters
from highwater.telemetry.tallies import TIMING_BUCKETS_S, Reader, ReadFamily, TimingFamily

if TYPE_CHECKING:  # needs the extra `otel`
    from highwater.telemetry.otlp.metrics import OtlpReporter

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MetricsSettings(Protocol):
    """The settings that every service has of its metrics."""

    @property
    def metrics_listen(self) -> str: ...
    @property
    def metrics_reporters(self) -> Sequence[ReporterName]: ...
    @property
    def metrics_interval_s(self) -> float: ...
    @property
    def csv_metrics_dir(self) -> str: ...
    @property
    def csv_metrics_reporter_enabled(self) -> bool: ...
    @property
    def collector(self) -> Collector: ...


class Metrics:
    """The registry of one service, passed in at construction so that several services may share a test's process."""

    def __init__(self, service: str) -> None:
        self._prefix = f"highwater_{service.replace('-', '_')}"
        self.service = service
        self.registry = CollectorRegistry()
        self._server: MetricsServer | None = None
        self._reporters: Reporters | None = None
        self._otlp: OtlpReporter | None = None

    def counter(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{self._prefix}_{name}", documentation, labels, registry=self.registry)

    def gauge(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"{self._prefix}_{name}", documentation, labels, registry=self.registry)

    def latency(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(
            f"{self._prefix}_{name}_seconds", documentation, labels, buckets=LATENCY_BUCKETS_S, registry=self.registry
        )

    def timing(
        self,
        name: str,
        documentation: str,
        labels: tuple[str, ...],
        bounds_s: Sequence[float] = TIMING_BUCKETS_S,
    ) -> TimingFamily:
        """A histogram for what each request passes: a tenth of `latency`'s cost, as one thread alone observes."""
        family = TimingFamily(f"{self._prefix}_{name}_seconds", documentation, labels, bounds_s)
        self.registry.register(family)
        return family

    def read_counter(self, name: str, documentation: str, labels: tuple[str, ...], read: Reader) -> None:
        """A counter that is kept elsewhere: `read` gives its values by labels, in the thread that serves them."""
        self.registry.register(ReadFamily(CounterMetricFamily, f"{self._prefix}_{name}", documentation, labels, read))

    def read_gauge(self, name: str, documentation: str, labels: tuple[str, ...], read: Reader) -> None:
        """As `read_counter`, a gauge."""
        self.registry.register(ReadFamily(GaugeMetricFamily, f"{self._prefix}_{name}", documentation, labels, read))

    @property
    def address(self) -> str:
        """`host:port`, as bound; empty: they are not served."""
        return "" if self._server is None else self._server.address

    def serve(self, listen: str) -> None:
        """Serves `/metrics` on `host:port` (port 0: a free one) from threads of its own, until `close`. Raises
        `OSError`."""
        self._server = MetricsServer(listen, self.registry)

    def publish(self, settings: MetricsSettings, process: str) -> None:
        """Serves them, and gives them to the reporters, as the settings say: from threads of its own, until `close`.
        `process` names this one among the cluster's. Raises `UserError` where the address is taken, and where the
        extra `otel` is missing that the reporter otlp needs."""
        names = [name for name in settings.metrics_reporters if name != "csv" or settings.csv_metrics_reporter_enabled]
        if not settings.metrics_listen and not names:
            return
        ProcessCollector(registry=self.registry)
        if settings.metrics_listen:
            try:
                self.serve(settings.metrics_listen)
            except OSError as error:
                raise UserError(
                    f"cannot serve metrics on {settings.metrics_listen}: {error.strerror or error} (metrics.listen)"
                ) from error
        if "otlp" in names:
            self._otlp = report_metrics(
                self.registry, settings.collector, self.service, process, settings.metrics_interval_s
            )
            names = [name for name in names if name != "otlp"]
        if names:
            options = ReporterOptions(names, settings.metrics_interval_s, Path(settings.csv_metrics_dir), process)
            self._reporters = Reporters(self.registry, options)

    def close(self) -> None:
        """Ends what `publish` has begun."""
        if self._reporters is not None:
            self._reporters.stop()
            self._reporters = None
        if self._otlp is not None:
            self._otlp.stop()
            self._otlp = None
        if self._server is not None:
            self._server.close()
            self._server = None
