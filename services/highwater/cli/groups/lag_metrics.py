"""The lags of groups as metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from highwater.cli.groups.lag_rounds import Lag, Round
from highwater.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from highwater.client import TopicPartition

_Labels = tuple[str, ...]


class LagMetrics:
    """Shows what rounds find. A group that has not answered for `stale_s` is not shown any more."""

    def __init__(self, *, by_partition: bool, stale_s: float, clock_s: Callable[[], float]) -> None:
        self.metrics = metrics = Metrics("group")
        self._by_partition = by_partition
        self._stale_s = stale_s
        self._clock_s = clock_s
        self._seen_s: dict[str, float] = {}  # by group
        self._shown: dict[str, dict[Gauge, set[_Labels]]] = {}
        self._round_s = clock_s()
        of_topic, of_partition = ("group", "topic"), ("group", "topic", "partition")
        self._members = metrics.gauge("members", "Members of the group", ("group",))
        self._offsets = metrics.gauge("lag_offsets", "Offsets behind, over the partitions of a topic", of_topic)
        self._seconds = metrics.gauge("lag_seconds", "Age of the next record to be read, the oldest", of_topic)
        self._partition_offsets = metrics.gauge("partition_lag_offsets", "Offsets behind", of_partition)
        self._partition_seconds = metrics.gauge(
            "partition_lag_seconds", "Age of the next record to be read", of_partition
        )
        self._took = metrics.gauge("export_round_seconds", "How long the last round took")
        self._left_out = metrics.gauge("export_left_out_groups", "Groups beyond --max-partitions")
        self._unknown = metrics.gauge("export_unknown_partitions", "Offsets of partitions whose end is not known")
        self._failures = metrics.counter("export_failures", "Rounds without a list of groups, or not done in time")
        age = metrics.gauge("export_age_seconds", "Time since the last round that was done, or the start")
        age.set_function(lambda: self._clock_s() - self._round_s)

    def took(self, found: Round, seconds: float) -> None:
        """Shows a round, which took so long."""
        now_s = self._round_s = self._clock_s()
        self._took.set(seconds)
        self._left_out.set(found.left_out)
        self._unknown.set(found.unknown)
        for group, lags in found.lags.items():
            self._seen_s[group] = now_s
            self._show(group, found.members[group], lags)
        self._drop(lambda group: group not in found.listed)

    def failed(self) -> None:
        self._failures.inc()
        self._drop(lambda _: False)

    def _show(self, group: str, members: int, lags: Mapping[TopicPartition, Lag]) -> None:
        values: defaultdict[Gauge, dict[_Labels, float]] = defaultdict(dict)
        values[self._members][(group,)] = members
        for (topic, number), lag in lags.items():
            labels: _Labels = (group, topic)
            offsets, seconds = values[self._offsets], values[self._seconds]
            offsets[labels] = offsets.get(labels, 0) + lag.offsets
            seconds[labels] = max(seconds.get(labels, 0.0), lag.seconds)
            if self._by_partition:
                values[self._partition_offsets][*labels, str(number)] = lag.offsets
                values[self._partition_seconds][*labels, str(number)] = lag.seconds
        self._remove(self._shown.get(group, {}), but=values)
        for gauge, labelled in values.items():
            for labels, value in labelled.items():
                gauge.labels(*labels).set(value)
        self._shown[group] = {gauge: set(labelled) for gauge, labelled in values.items()}

    def _drop(self, gone: Callable[[str], bool]) -> None:
        oldest_s = self._clock_s() - self._stale_s
        for group in [each for each, seen_s in self._seen_s.items() if gone(each) or seen_s < oldest_s]:
            del self._seen_s[group]
            self._remove(self._shown.pop(group), but={})

    def _remove(self, shown: Mapping[Gauge, set[_Labels]], but: Mapping[Gauge, Mapping[_Labels, float]]) -> None:
        for gauge, labelled in shown.items():
            for labels in labelled - but.get(gauge, {}).keys():
                gauge.remove(*labels)
