"""The text of metrics, and what two looks at a cluster come to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from highwater.cli.groups.lag_rounds import Lag, Round
from highwater.cli.watching import top
from highwater.cli.watching.exposition import NotServedError, Sample, local_addresses, parse, scrape
from highwater.cli.watching.top_drawing import drawn
from highwater.cli.watching.top_view import PREFIX, Look, view
from highwater.client import BrokerDescription, ClusterDescription, TopicPartition
from highwater.errors import UserError
from highwater.telemetry.metrics import Metrics

CLUSTER = ClusterDescription("c", 0, 4, (BrokerDescription(1, 7, "here:1", "", False, False, 2, 3),), 3, 5, 0, 1)


def samples(**values: float) -> list[Sample]:
    """`topic_bytes_in_total__orders` is that of the topic `orders`."""
    found = []
    for name, value in values.items():
        metric, _, topic = name.partition("__")
        found.append(Sample(PREFIX + metric, {"topic": topic} if topic else {}, value))
    return found


def test_what_a_service_writes_is_read_as_it_was() -> None:
    metrics = Metrics("replica-manager")
    odd = 'a "quoted" \\ name,\nof two lines}'
    metrics.counter("topic_bytes_in", "In", ("topic", "other")).labels(odd, "x").inc(1.5e9)
    metrics.gauge("ready", "Ready").set(float("inf"))
    found = {sample.name: sample for sample in parse(generate_latest(metrics.registry).decode())}
    assert found[f"{PREFIX}topic_bytes_in_total"] == (
        f"{PREFIX}topic_bytes_in_total",
        {"topic": odd, "other": "x"},
        1.5e9,
    )
    assert found[f"{PREFIX}ready"].value == float("inf")
    assert list(parse("# HELP a b\nno value\na{b=\n\nx 1 2\n")) == [Sample("x", {}, 1.0)]


def test_an_address_without_metrics_is_a_sentence() -> None:
    with pytest.raises(NotServedError, match="no metrics at 127.0.0.1:1: "):
        scrape("127.0.0.1:1")


def test_a_directory_without_a_cluster_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no cluster of highwater up runs in {tmp_path}"):
        local_addresses(tmp_path)
    (tmp_path / "cluster.json").write_text('{"bootstrap": "here:1"}')
    with pytest.raises(UserError, match="serves no metrics"):
        local_addresses(tmp_path)


def test_traffic_is_the_difference_of_two_looks() -> None:
    before = Look(
        10.0,
        CLUSTER,
        {1: samples(topic_bytes_in_total__orders=1000, topic_bytes_out_total__orders=0, isr_shrinks_total=1)},
    )
    now = Look(
        12.0,
        CLUSTER,
        {
            1: samples(
                topic_bytes_in_total__orders=3000,
                topic_messages_in_total__orders=10,
                topic_bytes_out_total__orders=400,
                topic_bytes_in_total__cold=0,
                isr_shrinks_total=2,
                isr_expands_total=1,
                broker_state=3,
                under_replicated_partitions=2,
            )
        },
    )
    page = view(before, now, most=10)
    (topic,) = page.topics
    assert (topic.topic, topic.messages_in, topic.bytes_in, topic.bytes_out) == ("orders", 5, 1000, 200)
    (broker,) = page.brokers
    assert (broker.state, broker.under_replicated, broker.isr_changes) == ("running", 2, 1.0)
    assert (broker.bytes_in, broker.bytes_out) == (1000, 200)


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    before = Look(0.0, CLUSTER, {1: samples(topic_bytes_in_total__orders=1_000_000)})
    now = Look(1.0, CLUSTER, {1: samples(topic_bytes_in_total__orders=50)})
    assert view(before, now, most=1).topics[0].bytes_in == 50


def test_a_broker_that_was_not_seen_before_has_no_traffic_yet() -> None:
    now = Look(1.0, CLUSTER, {1: samples(topic_bytes_in_total__orders=50, broker_state=2)})
    page = view(Look(0.0, CLUSTER), now, most=1)
    assert not page.topics
    assert (page.brokers[0].state, page.brokers[0].bytes_in) == ("recovery", None)


def test_the_hottest_topics_and_the_groups_that_lag_most_come_first() -> None:
    many = {f"topic_bytes_in_total__t{number}": float(number) for number in range(50)}
    lags = Round(
        members={"near": 1, "far": 2, "read": 0},
        lags={
            "near": {TopicPartition("t", 0): Lag(1, 0.5)},
            "far": {TopicPartition("t", 0): Lag(5, 2.0), TopicPartition("t", 1): Lag(6, 9.0)},
        },
    )
    zero = dict.fromkeys(many, 0.0)
    page = view(Look(0, CLUSTER, {1: samples(**zero)}), Look(1, CLUSTER, {1: samples(**many)}, {}, lags), most=2)
    assert [row.topic for row in page.topics] == ["t49", "t48"]
    assert page.more_topics == 47  # t0 has no traffic
    assert [(row.group, row.members, row.lag, row.lag_s) for row in page.groups] == [
        ("far", 2, 11, 9.0),
        ("near", 1, 1, 0.5),
    ]
    assert page.more_groups == 1


def test_without_metrics_topics_are_ranked_by_the_ends_of_their_logs() -> None:
    before = Look(0.0, CLUSTER, ends={"slow": 10, "fast": 10, "still": 3})
    now = Look(2.0, CLUSTER, ends={"slow": 12, "fast": 40, "still": 3, "new": 9})
    rows = view(before, now, most=5).topics
    assert [(row.topic, row.messages_in, row.bytes_in) for row in rows] == [("fast", 15, None), ("slow", 1, None)]


def test_a_page_is_drawn_with_units_and_notes() -> None:
    before = Look(0.0, CLUSTER, {1: samples(topic_bytes_in_total__orders=0)})
    now = Look(1.0, CLUSTER, {1: samples(topic_bytes_in_total__orders=2_500_000)}, notes=["broker 2: \x1b[31mgone"])
    out = io.StringIO()
    Console(file=out, width=160).print(drawn(view(before, now, most=1)))
    text = out.getvalue()
    assert "2.5 MB" in text
    assert "3 topics, 5 partitions: 0 without a leader, 1 under-replicated" in text
    assert "\x1b[31mgone" not in text


def paused(value: float, client: str, quota: str = "producer_byte_rate") -> Sample:
    labels = {"quota": quota, "user": "anna", "client": client}
    return Sample(f"{PREFIX}caller_throttle_seconds_total", labels, value)


def held_back(count: float, topic: str, service: str = "replica_manager") -> Sample:
    return Sample(f"highwater_{service}_held_back_partitions", {"topic": topic}, count)


def test_what_is_throttled_is_told_by_caller_and_by_topic() -> None:
    before = Look(10.0, CLUSTER, {1: [paused(5, "app"), paused(7, "idle")], 2: [paused(9, "app")]})
    now = Look(
        12.0,
        CLUSTER,
        {
            1: [paused(6, "app"), paused(7, "idle"), paused(1, "new", "request_percentage"), held_back(3, "t")],
            2: [paused(0.5, "app"), held_back(4, "t", "fetcher"), held_back(0, "u", "fetcher")],
        },
    )
    page = view(before, now, most=10)
    assert [(row.throttle, row.client, row.topic, row.paused, row.partitions) for row in page.throttles] == [
        ("producer_byte_rate", "app", "", 0.75, None),  # 1 s on one broker, and 0.5 s on one that began anew
        ("request_percentage", "new", "", 0.5, None),
        ("follower replication", "", "t", None, 4),
        ("leader replication", "", "t", None, 3),
    ]
    console = Console(file=io.StringIO(), width=150)
    console.print(drawn(page))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "throttled by" in text
    assert "75%" in text
    assert "anna" in text
    assert view(before, now, most=1).more_throttles == 3
    console = Console(file=io.StringIO(), width=150)
    console.print(drawn(view(now, now, most=10)))
    assert "throttled by" in console.file.getvalue()  # type: ignore[attr-defined]  # replication still is
    console = Console(file=io.StringIO(), width=150)
    console.print(drawn(view(before, before, most=10)))
    assert "throttled by" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_metrics_of_both_services_of_a_broker_are_looked_at(tmp_path: Path) -> None:
    metrics = {"replica-manager-1": "a:1", "fetcher-1": "a:2", "log-storage-1": "a:3", "replica-manager-2": "a:4"}
    (tmp_path / "cluster.json").write_text(json.dumps({"bootstrap": "here:1", "metrics": metrics}))
    assert top._found([], tmp_path, "here:1")[0] == {1: ["a:1", "a:2"], 2: ["a:4"]}
    assert top._found(["1=a:1", "1=a:2"], tmp_path, "here:1")[0] == {1: ["a:1", "a:2"]}
