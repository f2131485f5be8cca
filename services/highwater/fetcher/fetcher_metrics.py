"""The fetcher's metrics."""

from __future__ import annotations

from highwater.telemetry.metrics import Metrics


class FetcherMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self.fetched_bytes = metrics.counter("fetched_bytes", "Bytes of record batches that leaders returned")
        self.went_offline = metrics.counter(
            "offline_partitions", "Partitions that refused to be cut below their high watermark"
        )
        self.fetches = metrics.timing("fetch", "From a fetch to its answer, by leader", ("leader",))
        self.followed = metrics.gauge("followed_partitions", "Partitions followed, by what they do", ("state",))
        self.task_failures = metrics.counter("task_failures", "Long-lived tasks that failed", ("task",))
        self.max_lag = metrics.gauge(
            "max_lag_records", "The largest lag behind a leader's high watermark over all partitions"
        )
        self.held_bytes = metrics.gauge(
            "fetch_held_bytes",
            "Bytes granted to requests at leaders, and of data that log-storage has not answered for",
        )
