"""The lags of groups as metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

from highwater.cli.groups.lag_rounds import Lag, Round
from highwater.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from highwater.client import TopicPartition

_OF_TOPIC = ("group", "topic")
_OF_PARTITION = ("group", "topic", "partition")

_Values = Mapping[str, Mapping[tuple[str, ...], float]]  # by the gauge's name and its labels


@dataclass(frozen=True, slots=True)
class _Group:
    seen_s: float
    values: _Values


class LagMetrics:
    """Shows what rounds find, each as a whole: a scrape sees nothing of one that is being shown. A group that has not
    answered for `stale_s` is not shown any more."""

    def __init__(self, *, by_partition: bool, stale_s: float, clock_s: Callable[[], float]) -> None:
        self.metrics = metrics = Metrics("group")
        self._by_partition = by_partition
        self._stale_s = stale_s
        self._clock_s = clock_s
        self._groups: Mapping[str, _Group] = {}  # never changed, but replaced: it is read in the server's threads
        self._round_s = clock_s()
        metrics.registry.register(_Families(lambda: self._groups))
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
        answered = {
            group: _Group(now_s, self._values(group, found.members[group], lags)) for group, lags in found.lags.items()
        }
        self._groups = self._fresh({**self._groups, **answered}, lambda group: group in found.listed)

    def failed(self) -> None:
        self._failures.inc()
        self._groups = self._fresh(self._groups, lambda _: True)

    def _values(self, group: str, members: int, lags: Mapping[TopicPartition, Lag]) -> _Values:
        values: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        values["members"][group,] = members
        for (topic, number), lag in lags.items():
            labels = (group, topic)
            offsets, seconds = values["lag_offsets"], values["lag_seconds"]
            offsets[labels] = offsets.get(labels, 0) + lag.offsets
            seconds[labels] = max(seconds.get(labels, 0.0), lag.seconds)
            if self._by_partition:
                values["partition_lag_offsets"][*labels, str(number)] = lag.offsets
                values["partition_lag_seconds"][*labels, str(number)] = lag.seconds
        return values

    def _fresh(self, groups: Mapping[str, _Group], listed: Callable[[str], bool]) -> Mapping[str, _Group]:
        oldest_s = self._clock_s() - self._stale_s
        return {name: group for name, group in groups.items() if listed(name) and group.seen_s >= oldest_s}


class _Families:
    """The gauges of groups, all of the same rounds."""

    def __init__(self, read: Callable[[], Mapping[str, _Group]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        groups = self._read().values()

        def gauge(name: str, documentation: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
            family = GaugeMetricFamily(f"highwater_group_{name}", documentation, labels=labels)
            for group in groups:
                for labelled, value in group.values.get(name, {}).items():
                    family.add_metric(labelled, value)
            return family

        yield gauge("members", "Members of the group", ("group",))
        yield gauge("lag_offsets", "Offsets behind, over the partitions of a topic", _OF_TOPIC)
        yield gauge("lag_seconds", "Age of the next record to be read, the oldest", _OF_TOPIC)
        yield gauge("partition_lag_offsets", "Offsets behind", _OF_PARTITION)
        yield gauge("partition_lag_seconds", "Age of the next record to be read", _OF_PARTITION)
