"""The time that requests take, by type and phase: Kafka's `RequestMetrics`."""

from __future__ import annotations

from highwater.telemetry.metrics import Metrics
from highwater.telemetry.tallies import Timing


class RequestTimes:
    """Those of one type of request."""

    __slots__ = ("local", "queue", "remote", "response", "total")

    def __init__(self, total: Timing, queue: Timing, local: Timing, remote: Timing, response: Timing) -> None:
        self.total = total  # from the request's arrival to its answer; its number is that of requests
        self.queue = queue  # before anything was done for it
        self.local = local  # at this broker: with log-storage, or what has it in memory
        self.remote = remote  # waiting for others: followers of a produce, data of a fetch
        self.response = response  # until the answer was written


class RequestMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._family = metrics.timing("request", "Time of requests by type and phase", ("request", "phase"))

    def of(self, request: str) -> RequestTimes:
        """Of a type whose phases are told apart."""
        labels = self._family.labels
        return RequestTimes(
            labels(request, "total"),
            labels(request, "queue"),
            labels(request, "local"),
            labels(request, "remote"),
            labels(request, "response"),
        )

    def total(self, request: str) -> Timing:
        """Of any other type."""
        return self._family.labels(request, "total")
