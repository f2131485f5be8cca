"""Prometheus metrics of one process. Names are `highwater_<service>_<what>_<unit>`; `docs/metrics.md` lists them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The registry of one service, passed in at construction so that several services may share a test's process."""

    def __init__(self, service: str) -> None:
        self._prefix = f"highwater_{service.replace('-', '_')}"
        self.registry = CollectorRegistry()

    def counter(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{self._prefix}_{name}", documentation, labels, registry=self.registry)

    def gauge(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"{self._prefix}_{name}", documentation, labels, registry=self.registry)

    def latency(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(
            f"{self._prefix}_{name}_seconds", documentation, labels, buckets=LATENCY_BUCKETS_S, registry=self.registry
        )

    def serve(self, listen: str) -> None:
        """Serves `/metrics` on `host:port` from a thread of its own; does nothing where `listen` is empty."""
        if not listen:
            return
        host, _, port = listen.rpartition(":")
        start_http_server(int(port), addr=host or "127.0.0.1", registry=self.registry)
