"""One request is one trace, through the processes of a real cluster; and nobody waits for a collector."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator

import pytest
from otlp_collector import CollectorDouble, SeenSpan, otlp_collector
from replica_manager_cluster import eventually
from running_cluster import deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Consumer, Producer, TopicPartition, Tracing

ASSIGNMENT = [[1, 2, 3]]


@pytest.fixture(scope="module")
def collector() -> Iterator[CollectorDouble]:
    with otlp_collector() as double:
        yield double


@pytest.fixture(scope="module")
def traced_cluster(collector: CollectorDouble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {
        "tracing.enabled": "true",
        "otlp.endpoint": collector.endpoint,
        "otlp.headers": "x-token=a%20secret",
        "metrics.reporters": "otlp",
        "metrics.reporter.interval.ms": "1000",
        "tail.cache.bytes": "0",  # so that consumers' fetches are read from log-storage
    }
    with running_cluster(tmp_path_factory.mktemp("traced"), settings=settings) as cluster:
        yield cluster


def of_trace(spans: list[SeenSpan], trace: str) -> list[SeenSpan]:
    return [span for span in spans if span.trace == trace]


def shape(spans: list[SeenSpan], parent: str = "") -> list[object]:
    """The tree below a span: service and name of each, and what is below it."""
    below = sorted((each for each in spans if each.parent == parent), key=lambda each: (each.service, each.name))
    return [(each.service.removeprefix("highwater-"), each.name, shape(spans, each.span)) for each in below]


async def test_a_produce_is_one_tree_over_all_services(
    traced_cluster: LocalCluster, collector: CollectorDouble
) -> None:
    async with deployment(traced_cluster) as deployed:
        await deployed.create_topic("produced", ASSIGNMENT)
        await deployed.healed("produced")
        tracing = Tracing(collector.endpoint, sample_ratio=1.0)
        async with Producer(traced_cluster.bootstrap, client_id="teller", tracing=tracing) as producer:
            await (await producer.send("produced", b"value", key=b"key"))
    copy = ("fetcher", "copy", [("log-storage", "append", [])])
    expected = [
        (
            "teller",
            "send",
            [
                ("teller", "gather", []),
                (
                    "teller",
                    "request",
                    [
                        (
                            "replica-manager",
                            "produce",
                            [
                                copy,
                                copy,
                                ("replica-manager", "append", [("log-storage", "append", [])]),
                                ("replica-manager", "check", []),
                                ("replica-manager", "replicate", []),
                            ],
                        )
                    ],
                ),
            ],
        )
    ]

    def whole(spans: list[SeenSpan]) -> bool:
        roots = [span for span in spans if span.name == "send" and span.attributes["topic"] == "produced"]
        return any(shape(of_trace(spans, root.trace)) == expected for root in roots)

    spans = await asyncio.to_thread(collector.await_spans, whole)
    (root,) = [span for span in spans if span.name == "send" and span.attributes["topic"] == "produced"]
    tree = of_trace(spans, root.trace)
    assert all(not span.error and span.start_ns <= span.end_ns for span in tree)
    # One clock: what is below something is within it, as far as this trace waits for it.
    by_id = {span.span: span for span in tree}
    assert all(by_id[span.parent].start_ns <= span.start_ns for span in tree if span.parent)
    assert {span.instance for span in tree if span.name == "copy"} == {"2", "3"}
    assert {span.instance for span in tree if span.name == "produce"} == {"1"}
    assert root.attributes["records"] == 1
    assert any(each.get("x-token") == "a secret" for each in collector.headers)


async def test_a_fetch_is_one_tree_down_to_the_read(traced_cluster: LocalCluster, collector: CollectorDouble) -> None:
    async with deployment(traced_cluster) as deployed:
        await deployed.create_topic("fetched", ASSIGNMENT)
        async with Producer(traced_cluster.bootstrap) as producer:
            for _ in range(2):  # a reader of both asks for what no follower has asked for: no read is shared
                await (await producer.send("fetched", b"value"))
        tracing = Tracing(collector.endpoint, sample_ratio=1.0)
        async with Consumer(
            "fetched", bootstrap=traced_cluster.bootstrap, auto_offset_reset="earliest", client_id="reader",
            tracing=tracing,
        ) as consumer:  # fmt: skip
            record = await anext(aiter(consumer))
            assert record.value == b"value"
    expected = [("reader", "fetch", [("replica-manager", "fetch", [("log-storage", "read", [])])])]

    def whole(spans: list[SeenSpan]) -> bool:
        roots = [span for span in spans if span.service == "reader" and not span.parent]
        return any(shape(of_trace(spans, root.trace)) == expected for root in roots)

    await asyncio.to_thread(collector.await_spans, whole)


async def test_what_is_not_sampled_makes_no_spans(traced_cluster: LocalCluster, collector: CollectorDouble) -> None:
    async with deployment(traced_cluster) as deployed:
        await deployed.create_topic("untraced", ASSIGNMENT)
        await deployed.healed("untraced")
        before = len(collector.spans)
        tracing = Tracing(collector.endpoint, sample_ratio=0.0)
        async with (
            Producer(traced_cluster.bootstrap, client_id="quiet", tracing=tracing) as producer,
            Consumer(
                bootstrap=traced_cluster.bootstrap,
                client_id="quiet",
                auto_offset_reset="earliest",
                tracing=tracing,
            ) as consumer,
        ):
            consumer.assign([TopicPartition("untraced", 0)])
            for _ in range(20):
                await (await producer.send("untraced", b"value"))
            assert len(await consumer.poll()) > 0
        # What a traced one makes after them comes; of theirs there is nothing.
        async with Producer(
            traced_cluster.bootstrap, client_id="last", tracing=Tracing(collector.endpoint, sample_ratio=1.0)
        ) as producer:
            await (await producer.send("untraced", b"value"))
    spans = await asyncio.to_thread(
        collector.await_spans, lambda spans: sum(span.name == "copy" for span in spans[before:]) >= 2
    )
    (trace,) = {span.trace for span in spans[before:]}
    assert {span.service for span in of_trace(spans, trace)} >= {"last", "highwater-fetcher"}


async def test_metrics_reach_the_collector_too(traced_cluster: LocalCluster, collector: CollectorDouble) -> None:
    for service, name in (
        ("controller", "live_brokers"),
        ("replica-manager", "partitions"),
        ("log-storage", "logs"),
        ("fetcher", "max_lag_records"),
    ):
        metric = f"highwater_{service.replace('-', '_')}_{name}"
        found = await asyncio.to_thread(collector.await_metric, f"highwater-{service}", metric)
        assert len(found.gauge.data_points) == 1


async def test_a_collector_that_is_away_costs_spans_and_nothing_else(
    traced_cluster: LocalCluster, collector: CollectorDouble
) -> None:
    async with deployment(traced_cluster) as deployed:
        await deployed.create_topic("away", ASSIGNMENT)
        collector.status = 503
        metrics = f"http://{traced_cluster.metrics_addresses['replica-manager-1']}/metrics"

        async def told() -> bool:
            with await asyncio.to_thread(urllib.request.urlopen, metrics) as answer:
                counted = re.search(rb'spans_total{outcome="dropped"} (.*)', answer.read())
            return counted is not None and float(counted[1]) >= 20

        try:
            tracing = Tracing("http://127.0.0.1:1", sample_ratio=1.0)
            async with Producer(traced_cluster.bootstrap, client_id="away", tracing=tracing) as producer:
                for _ in range(20):
                    await (await producer.send("away", b"value"))
            await eventually(told, "the broker counts the spans that it drops")
        finally:
            collector.status = 200
