"""The replica-manager's metrics. Kafka's names where it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.partition.leadership import Leadership
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.replicas.topic_traffic import TopicTraffic
from highwater.telemetry.metrics import LATENCY_BUCKETS_S, Metrics
from highwater.telemetry.request_times import RequestMetrics
from highwater.telemetry.tallies import Reader


class ReplicaManagerMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self.produced_bytes = metrics.counter("produced_bytes", "Bytes of record batches that producers sent")
        self.produce = metrics.timing(
            "produce", "From a produce request to its response", (), LATENCY_BUCKETS_S
        ).labels()
        self.refused_produces = metrics.counter("refused_produces", "Produced partitions refused", ("error",))
        fetched = metrics.counter("fetched_bytes", "Bytes of record batches given out", ("role",))
        self.fetched_bytes = {role: fetched.labels(role) for role in ("replica", "consumer", "debug")}
        self.isr_shrinks = metrics.counter("isr_shrinks", "ISR changes written by which replicas leave")
        self.isr_expands = metrics.counter("isr_expands", "ISR changes written by which replicas join")
        self.isr_changes = metrics.counter("isr_changes", "ISR changes proposed to etcd", ("outcome",))
        self.leaders = metrics.gauge("leader_partitions", "Partitions led here")
        self.partitions = metrics.gauge("partitions", "Replicas hosted here")
        self.under_replicated = metrics.gauge(
            "under_replicated_partitions", "Partitions led here with fewer in-sync than assigned replicas"
        )
        self.under_min_isr = metrics.gauge(
            "under_min_isr_partitions", "Partitions led here with fewer in-sync replicas than min.insync.replicas"
        )
        self.at_min_isr = metrics.gauge(
            "at_min_isr_partitions", "Partitions led here with just as many in-sync replicas as min.insync.replicas"
        )
        self.state = metrics.gauge("broker_state", "The broker's state, by Kafka's numbers")
        self.ready = metrics.gauge("ready", "1 while the broker says that it is ready")
        self.unreadable_acls = metrics.gauge(
            "unreadable_acls", "ACLs in etcd that cannot be read: nobody but super users may what they may be about"
        )
        self.out_of_sync = metrics.gauge(
            "out_of_sync_partitions", "Replicas assigned here that are outside their ISRs, as the controller last said"
        )
        self.delayed_produces = metrics.gauge("delayed_produces", "Produced partitions that wait to be committed")
        self.task_failures = metrics.counter("task_failures", "Long-lived tasks that failed", ("task",))
        self.waiting_fetches = metrics.gauge("waiting_fetches", "Fetches that wait for data")
        held = metrics.gauge("fetch_response_bytes", "Bytes of fetch responses that are read or written", ("share",))
        self.fetch_response_bytes = {share: held.labels(share) for share in ("replicas", "consumers")}
        waits = metrics.counter("fetch_response_waits", "Fetches that waited for room for their response", ("outcome",))
        self.fetch_response_waits = {outcome: waits.labels(outcome) for outcome in ("granted", "refused")}
        self.requests = RequestMetrics(metrics)
        self.produces = self.requests.of("Produce")
        self.fetches = {
            role: self.requests.of("FetchFollower" if role == "replica" else "FetchConsumer")
            for role in ("replica", "consumer", "debug")
        }
        throttled = metrics.counter("throttled_requests", "Requests whose client was told to pause", ("quota",))
        self.throttled_requests = {quota: throttled.labels(quota.value) for quota in Quota}
        paused = metrics.counter("throttle_seconds", "Time that clients were told to pause", ("quota",))
        self.throttle_seconds = {quota: paused.labels(quota.value) for quota in Quota}
        refused = metrics.counter("refused_calls", "Calls and requests refused before any work", ("cause",))
        self.refused_calls = {cause: refused.labels(cause) for cause in ("open", "quota", "rate")}
        self.unread_responses = metrics.counter("unread_responses", "Connections closed: a response was not taken")

    def throttled(self, quota: Quota, pause_s: float) -> None:
        """A client is told to pause."""
        self.throttled_requests[quota].inc()
        self.throttle_seconds[quota].inc(pause_s)


def export_partitions(counted: ReplicaManagerMetrics, partitions: Callable[[], Iterable[Partition]]) -> None:
    """Counts those that are led, by how their ISRs are. `partitions` is called from the thread that serves the
    metrics."""

    def led(counts: Callable[[Leadership], bool]) -> Callable[[], float]:
        return lambda: sum(
            1 for partition in partitions() if (leadership := partition.leadership) is not None and counts(leadership)
        )

    counted.leaders.set_function(led(lambda _: True))
    counted.under_replicated.set_function(
        led(lambda each: len(each.proposals.committed.state.isr) < len(each.followers) + 1)
    )
    counted.under_min_isr.set_function(led(lambda each: not each.enough_committed_replicas))
    counted.at_min_isr.set_function(
        led(lambda each: len(each.proposals.committed.state.isr) == each.min_insync_replicas)
    )


def export_traffic(metrics: Metrics, traffic: TopicTraffic) -> None:
    """By topic; of the topics that this broker hosts."""
    by_topic = ("topic",)
    for_each = traffic.values
    metrics.read_counter("topic_bytes_in", "Bytes that producers wrote", by_topic, lambda: for_each("bytes_in"))
    metrics.read_counter("topic_messages_in", "Records that producers wrote", by_topic, lambda: for_each("messages_in"))
    metrics.read_counter(
        "topic_failed_produces", "Produced partitions refused", by_topic, lambda: for_each("failed_produces")
    )
    metrics.read_counter("topic_bytes_out", "Bytes given to consumers", by_topic, lambda: for_each("bytes_out"))
    metrics.read_counter(
        "topic_replication_bytes_out",
        "Bytes given to replicas",
        by_topic,
        lambda: for_each("replication_bytes_out"),
    )
    metrics.read_counter(
        "topic_failed_fetches", "Fetched partitions refused", by_topic, lambda: for_each("failed_fetches")
    )


def export_throttles(metrics: Metrics, callers: Reader, held_back: Reader) -> None:
    """By caller, and by topic: of a bounded number of either."""
    metrics.read_counter(
        "caller_throttle_seconds", "Time that a user's client was told to pause", ("quota", "user", "client"), callers
    )
    metrics.read_gauge(
        "held_back_partitions",
        "Partitions led here of which followers get nothing: leader.replication.throttled.rate",
        ("topic",),
        held_back,
    )
