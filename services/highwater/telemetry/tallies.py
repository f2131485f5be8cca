"""Counters and histograms of what happens for each request: a few additions on integers, without the locks of the
Prometheus client. One thread alone counts, that of the event loop; whoever serves the metrics reads beside it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

TIMING_BUCKETS_S = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 5.0)


class Timing:
    """Times in a few buckets."""

    __slots__ = ("_bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = TIMING_BUCKETS_S) -> None:
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)  # not cumulative; the last: longer than all
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds_s, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: cumulative."""
        found, total = [], 0
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Family(Protocol):
    """A metric whose values are made when it is read."""

    def collect(self) -> Iterable[Metric]: ...


Labelled = Iterable[tuple[Sequence[str], float]]


class ReadFamily:
    """The values that `read` gives of each list of labels, when somebody asks. It is called in the thread that serves
    the metrics."""

    def __init__(self, kind: type[Metric], name: str, documentation: str, labels: Sequence[str], read: Reader) -> None:
        self._kind, self._name, self._documentation = kind, name, documentation
        self._labels = tuple(labels)
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = self._kind(self._name, self._documentation, labels=self._labels)  # type: ignore[call-arg]
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family


class Reader(Protocol):
    def __call__(self) -> Labelled: ...


class TimingFamily:
    """A histogram by labels, whose children are `Timing`s."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds_s: Sequence[float] = TIMING_BUCKETS_S
    ) -> None:
        self._name, self._documentation = name, documentation
        self._labels = tuple(labels)
        self._bounds_s = bounds_s
        self._children: dict[tuple[str, ...], Timing] = {}

    def labels(self, *labels: str) -> Timing:
        timing = self._children.get(labels)
        if timing is None:
            assert len(labels) == len(self._labels), labels
            timing = self._children[labels] = Timing(self._bounds_s)
        return timing

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, timing in list(self._children.items()):
            family.add_metric(labels, buckets=timing.buckets(), sum_value=timing.sum_s)
        yield family
