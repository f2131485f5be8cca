"""Statistics of a consumer, under Kafka's names: a few additions an answer."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.windowed import Windowed


class ConsumerStatistics:
    def __init__(self) -> None:
        self._fetches = self._bytes = 0
        self._retries = self._resets = 0
        self._fetch_size = Windowed()
        self._latency_ms = Windowed()
        self._throttle_ms = Windowed()

    def fetched(self, size_bytes: int, took_s: float) -> None:
        """An answer."""
        self._fetches += 1
        self._bytes += size_bytes
        self._fetch_size.note(size_bytes)
        self._latency_ms.note(1000 * took_s)

    def throttled(self, throttle_ms: float) -> None:
        """The broker has held back its answer for so long; 0: it has not."""
        self._throttle_ms.note(throttle_ms)

    def retried(self) -> None:
        """A partition is fetched again after an error that may pass."""
        self._retries += 1

    def was_reset(self) -> None:
        """A position was not in the log any more."""
        self._resets += 1

    def metrics(self, buffers: Iterable[FetchBuffer]) -> dict[str, float]:
        found = list(buffers)
        lags = [
            max(buffer.high_watermark - buffer.position, 0)
            for buffer in found
            if buffer.position is not None and buffer.high_watermark >= 0
        ]
        return {
            "fetch-total": self._fetches,
            "bytes-consumed-total": self._bytes,
            "fetch-retry-total": self._retries,
            "position-reset-total": self._resets,
            "fetch-size-avg": self._fetch_size.mean,
            "fetch-size-max": self._fetch_size.maximum,
            "fetch-latency-avg": self._latency_ms.mean,
            "fetch-latency-max": self._latency_ms.maximum,
            "fetch-throttle-time-avg": self._throttle_ms.mean,
            "fetch-throttle-time-max": self._throttle_ms.maximum,
            "records-lag-max": max(lags, default=0),
            "records-lag": sum(lags),
            "assigned-partitions": len(found),
            "buffered-bytes": sum(buffer.buffered_bytes for buffer in found),
        }
