"""The sizes of logs, by topic and, where that is wanted, by partition, for whoever reads the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.politely import politely

OTHERS = "(others)"  # no topic's name

_Values = Iterator[tuple[Sequence[str], float]]


class LogSizes:
    """Read in the thread that serves the metrics, beside the event loop. Topics beyond `max_topics` are told together,
    partitions beyond `max_partitions` not at all."""

    def __init__(self, logs: LogRegistry, *, max_topics: int, max_partitions: int) -> None:
        self._logs = logs
        self._max_topics = max_topics
        self._max_partitions = max_partitions

    def export(self, metrics: Metrics) -> None:
        metrics.read_gauge("log_size_bytes", "Bytes of logs by topic", ("topic",), self._by_topic)
        if self._max_partitions:
            labels = ("topic", "partition")
            metrics.read_gauge("partition_size_bytes", "Bytes of a log", labels, self._sizes)
            metrics.read_gauge("partition_log_start_offset", "First offset of a log", labels, self._log_starts)
            metrics.read_gauge("partition_log_end_offset", "End offset of a log", labels, self._log_ends)

    def _by_topic(self) -> _Values:
        sizes: dict[str, int] = {}
        others = 0
        for hosted in politely(list(self._logs)):
            size = _size_bytes(hosted)
            if hosted.topic in sizes or len(sizes) < self._max_topics:
                sizes[hosted.topic] = sizes.get(hosted.topic, 0) + size
            else:
                others += size
        for topic, size in sizes.items():
            yield (topic,), float(size)
        yield (OTHERS,), float(others)

    def _sizes(self) -> _Values:
        for hosted in self._some():
            yield _labels(hosted), float(_size_bytes(hosted))

    def _log_starts(self) -> _Values:
        for hosted in self._some():
            if hosted.log is not None:
                yield _labels(hosted), float(hosted.log.log_start_offset)

    def _log_ends(self) -> _Values:
        for hosted in self._some():
            if hosted.log is not None:
                yield _labels(hosted), float(hosted.log.log_end_offset)

    def _some(self) -> Iterator[HostedLog]:
        return politely(islice(list(self._logs), self._max_partitions))


def _labels(hosted: HostedLog) -> tuple[str, str]:
    return hosted.topic, str(hosted.key.partition)


def _size_bytes(hosted: HostedLog) -> int:
    return 0 if hosted.log is None else hosted.log.size_bytes
