"""Statistics of a producer, under Kafka's names: a few additions a request."""

from __future__ import annotations

from highwater.client.windowed import Windowed


class ProducerStatistics:
    def __init__(self) -> None:
        self._requests = self._batches = self._records = self._bytes = 0
        self._retries = self._errors = 0
        self._batch_size = Windowed()
        self._records_of_request = Windowed()
        self._latency_ms = Windowed()
        self._throttle_ms = Windowed()

    def sent(self, sizes: list[tuple[int, int]]) -> None:
        """A request, with the records and bytes of each of its batches."""
        records = 0
        for count, size in sizes:
            records += count
            self._bytes += size
            self._batch_size.note(size)
        self._requests += 1
        self._batches += len(sizes)
        self._records += records
        self._records_of_request.note(records)

    def answered(self, took_s: float) -> None:
        self._latency_ms.note(1000 * took_s)

    def throttled(self, throttle_ms: float) -> None:
        """The broker has held back its answer for so long; 0: it has not."""
        self._throttle_ms.note(throttle_ms)

    def retried(self, records: int) -> None:
        """They go again."""
        self._retries += records

    def failed(self, records: int) -> None:
        """They are given up."""
        self._errors += records

    def metrics(self, *, buffer_bytes: int, buffer_used_bytes: int, waiting_records: int) -> dict[str, float]:
        return {
            "request-total": self._requests,
            "batch-total": self._batches,
            "record-send-total": self._records,
            "outgoing-byte-total": self._bytes,
            "record-retry-total": self._retries,
            "record-error-total": self._errors,
            "batch-size-avg": self._batch_size.mean,
            "batch-size-max": self._batch_size.maximum,
            "records-per-request-avg": self._records_of_request.mean,
            "request-latency-avg": self._latency_ms.mean,
            "request-latency-max": self._latency_ms.maximum,
            "produce-throttle-time-avg": self._throttle_ms.mean,
            "produce-throttle-time-max": self._throttle_ms.maximum,
            "buffer-total-bytes": buffer_bytes,
            "buffer-available-bytes": buffer_bytes - buffer_used_bytes,
            "records-waiting": waiting_records,
        }
