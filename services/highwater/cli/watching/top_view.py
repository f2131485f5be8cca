"""The pages of `highwater top`: what two looks at a cluster come to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highwater.cli.watching.exposition import Sample

if TYPE_CHECKING:
    from highwater.cli.groups.lag_rounds import Round
    from highwater.client import ClusterDescription

PREFIX = "highwater_replica_manager_"
_FETCHER_PREFIX = "highwater_fetcher_"
_HELD_BACK = "held_back_partitions"
_CALLERS = f"{PREFIX}caller_throttle_seconds_total"
# Kafka's numbers.
_STATES = {0: "not running", 1: "starting", 2: "recovery", 3: "running", 6: "shutting down", 7: "stopping"}


@dataclass(frozen=True)
class Look:
    """All that is known of a cluster at one time. `metrics` are replica-managers' and fetchers', by broker id, where
    they are known."""

    at_s: float
    cluster: ClusterDescription
    metrics: Mapping[int, Sequence[Sample]] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)  # the high watermarks of each topic's partitions together
    lags: Round | None = None
    notes: Sequence[str] = ()  # sentences about what could not be found out


@dataclass(frozen=True)
class BrokerRow:
    broker: int
    address: str
    state: str
    leaders: int
    replicas: int
    under_replicated: int | None  # None, here and below: not known
    isr_changes: float | None  # a second: shrinks and expands
    bytes_in: float | None  # a second
    bytes_out: float | None  # to consumers


@dataclass(frozen=True)
class TopicRow:
    topic: str
    messages_in: float
    bytes_in: float | None
    bytes_out: float | None


@dataclass(frozen=True)
class GroupRow:
    group: str
    members: int
    lag: int
    lag_s: float


@dataclass(frozen=True)
class ThrottleRow:
    """One row of those that are throttled now. Of a quota `paused` is the share of time for which its callers are told
    to pause, over all brokers; of replication `partitions` are those that are held back."""

    throttle: str  # a quota, "leader replication" or "follower replication"
    user: str
    client: str
    topic: str
    paused: float | None
    partitions: int | None


@dataclass(frozen=True)
class View:
    cluster: ClusterDescription
    brokers: Sequence[BrokerRow]
    topics: Sequence[TopicRow]  # the hottest first
    groups: Sequence[GroupRow]  # those that lag most first
    throttles: Sequence[ThrottleRow]
    more_topics: int
    more_groups: int
    more_throttles: int
    notes: Sequence[str]


def view(before: Look, now: Look, *, most: int) -> View:
    """`most`: of the topics, the groups and the throttles that are shown."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    topics = _topics(before, now, seconds)
    groups = _groups(now.lags)
    throttles = _throttles(before, now, seconds)
    return View(
        now.cluster,
        _brokers(before, now, seconds),
        topics[:most],
        groups[:most],
        throttles[:most],
        max(len(topics) - most, 0),
        max(len(groups) - most, 0),
        max(len(throttles) - most, 0),
        now.notes,
    )


def _brokers(before: Look, now: Look, seconds: float) -> list[BrokerRow]:
    rows = []
    for broker in now.cluster.brokers:
        told = now.metrics.get(broker.broker_id)
        then = before.metrics.get(broker.broker_id)
        rates = {} if told is None or then is None else _rates(_sums(then), _sums(told), seconds)
        gauges = {} if told is None else _sums(told)
        state = gauges.get("broker_state")
        rows.append(
            BrokerRow(
                broker.broker_id,
                broker.address,
                "shutting down"
                if broker.shutting_down
                else "tail lost"
                if broker.tail_lost
                else "live"
                if state is None
                else _STATES.get(int(state), f"state {state:.0f}"),
                broker.leaders,
                broker.replicas,
                None if told is None else int(gauges.get("under_replicated_partitions", 0)),
                None if not rates else rates.get("isr_shrinks_total", 0.0) + rates.get("isr_expands_total", 0.0),
                rates.get("topic_bytes_in_total", 0.0) if rates else None,
                rates.get("topic_bytes_out_total", 0.0) if rates else None,
            )
        )
    return rows


def _sums(samples: Iterable[Sample]) -> dict[str, float]:
    """Of each metric without its prefix, all its values together."""
    sums: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.name.startswith(PREFIX):
            sums[sample.name.removeprefix(PREFIX)] += sample.value
    return dict(sums)


def _rates(then: Mapping[str, float], now: Mapping[str, float], seconds: float) -> dict[str, float]:
    """A second. A counter that is lower than it was has begun anew."""
    return {
        name: (value - then.get(name, 0.0) if value >= then.get(name, 0.0) else value) / seconds
        for name, value in now.items()
        if name.endswith("_total")
    }


def _topics(before: Look, now: Look, seconds: float) -> list[TopicRow]:
    if not now.metrics:
        rows = [
            TopicRow(topic, max(end - before.ends.get(topic, end), 0) / seconds, None, None)
            for topic, end in now.ends.items()
        ]
        return sorted((row for row in rows if row.messages_in), key=lambda row: (-row.messages_in, row.topic))
    rates: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for broker, samples in now.metrics.items():
        if broker not in before.metrics:
            continue  # without an earlier look there is no rate
        then = dict(_of_topics(before.metrics[broker]))
        for (topic, name), value in _of_topics(samples):
            earlier = then.get((topic, name), 0.0)
            rates[topic][name] += (value - earlier if value >= earlier else value) / seconds
    rows = [
        TopicRow(topic, found["messages_in"], found["bytes_in"], found["bytes_out"]) for topic, found in rates.items()
    ]
    busy = (row for row in rows if row.bytes_in or row.bytes_out or row.messages_in)
    return sorted(busy, key=lambda row: (-((row.bytes_in or 0) + (row.bytes_out or 0)), row.topic))


def _of_topics(samples: Iterable[Sample]) -> list[tuple[tuple[str, str], float]]:
    found = []
    for name in ("messages_in", "bytes_in", "bytes_out"):
        full = f"{PREFIX}topic_{name}_total"
        found += [((each.labels.get("topic", ""), name), each.value) for each in samples if each.name == full]
    return found


def _throttles(before: Look, now: Look, seconds: float) -> list[ThrottleRow]:
    """The quotas that hold most up first, then replication, by the partitions that are held back."""
    paused: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    held: defaultdict[tuple[str, str], float] = defaultdict(float)
    for broker, samples in now.metrics.items():
        then = {_caller(each): each.value for each in before.metrics.get(broker, ()) if each.name == _CALLERS}
        for each in samples:
            if each.name == _CALLERS and broker in before.metrics:
                earlier = then.get(_caller(each), 0.0)
                paused[_caller(each)] += (each.value - earlier if each.value >= earlier else each.value) / seconds
            for prefix, throttle in ((PREFIX, "leader replication"), (_FETCHER_PREFIX, "follower replication")):
                if each.name == prefix + _HELD_BACK:
                    held[throttle, each.labels.get("topic", "")] += each.value
    quotas = [ThrottleRow(quota, user, client, "", rate, None) for (quota, user, client), rate in paused.items()]
    copies = [ThrottleRow(throttle, "", "", topic, None, int(count)) for (throttle, topic), count in held.items()]
    return [
        *sorted((row for row in quotas if row.paused), key=lambda row: (-(row.paused or 0), row.user, row.client)),
        *sorted((row for row in copies if row.partitions), key=lambda row: (-(row.partitions or 0), row.topic)),
    ]


def _caller(sample: Sample) -> tuple[str, str, str]:
    return sample.labels.get("quota", ""), sample.labels.get("user", ""), sample.labels.get("client", "")


def _groups(lags: Round | None) -> list[GroupRow]:
    if lags is None:
        return []
    rows = [
        GroupRow(
            group,
            members,
            sum(lag.offsets for lag in lags.lags.get(group, {}).values()),
            max((lag.seconds for lag in lags.lags.get(group, {}).values()), default=0.0),
        )
        for group, members in lags.members.items()
    ]
    return sorted(rows, key=lambda row: (-row.lag, row.group))
