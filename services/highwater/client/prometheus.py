"""The statistics of producers and consumers for Prometheus, in an application that has its client library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol
from weakref import WeakSet

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_TOTAL = "-total"


class Measured(Protocol):
    """A producer or a consumer, the blocking ones too."""

    client_id: str

    def metrics(self) -> Mapping[str, float]: ...


class ClientMetrics(Collector):
    """Has what `metrics()` of the clients tells read with `registry`: `request-total` is
    `highwater_client_request_total`, with the label `client_id`: give each client one of its own. A client that is
    dropped is gone from it."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._clients: WeakSet[Measured] = WeakSet()
        registry.register(self)

    def add(self, client: Measured) -> None:
        self._clients.add(client)

    def discard(self, client: Measured) -> None:
        self._clients.discard(client)

    def collect(self) -> Iterator[Metric]:
        found: dict[str, dict[str, float]] = {}  # by name and client id
        for client in list(self._clients):
            for name, value in client.metrics().items():
                found.setdefault(name, {})[client.client_id] = value
        for name, values in found.items():
            kind = CounterMetricFamily if name.endswith(_TOTAL) else GaugeMetricFamily
            written = f"highwater_client_{name.removesuffix(_TOTAL).replace('-', '_')}"
            family = kind(written, f"{name}, as metrics() of the SDK tells it", labels=("client_id",))
            for client_id, value in values.items():
                family.add_metric((client_id,), value)
            yield family
