"""What the SDK counts of itself, and what it logs: retries, lost connections and resets, summed up."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster_double import ClusterDouble
from prometheus_client import CollectorRegistry, generate_latest

from highwater.client import Consumer, Producer
from highwater.client import blocking as plain
from highwater.client.cluster import cluster as client_cluster
from highwater.client.cluster import connection
from highwater.client.consumer import fetcher
from highwater.client.producer import sender
from highwater.client.prometheus import ClientMetrics
from highwater.client.windowed import WINDOW_S, Windowed
from highwater.errors import ErrorCode

METRICS_PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
DEADLINE_S = 10


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble() as double:
        double.create("t", partitions=50)
        yield double


@pytest.fixture(autouse=True)
def nothing_told_before() -> None:
    """What other tests have met was a moment ago: the same would be told later than otherwise."""
    for summed in (connection._losses, client_cluster._failures, sender._retries, fetcher._incidents):
        summed._waiting.clear()
        summed._told.clear()


async def send_all(producer: Producer, count: int) -> None:
    await asyncio.gather(*[await producer.send("t", b"v", partition=number % 50) for number in range(count)])


async def test_a_producer_counts_what_it_sends(cluster: ClusterDouble) -> None:
    async with Producer(cluster.bootstrap, client_id="p") as producer:
        assert set(producer.metrics().values()) - {0} == {
            producer.metrics()["buffer-total-bytes"]
        }  # all else is zero, and the buffer empty
        await send_all(producer, 1_000)
        told = producer.metrics()
    assert told["record-send-total"] == 1_000
    assert 50 <= told["batch-total"] <= 1_000
    assert told["request-total"] <= told["batch-total"]
    assert told["outgoing-byte-total"] > 61 * told["batch-total"]
    assert 0 < told["batch-size-avg"] <= told["batch-size-max"]
    assert 0 < told["request-latency-avg"] <= told["request-latency-max"] < 1000 * DEADLINE_S
    assert told["record-retry-total"] == told["record-error-total"] == told["records-waiting"] == 0
    assert told["produce-throttle-time-avg"] == 0


async def test_retries_are_counted_and_logged_by_cause_not_by_partition(
    cluster: ClusterDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "highwater.client")
    failing = set(range(50))

    def refuse(part: object, _: object) -> ErrorCode:
        number = part.partition.partition  # type: ignore[attr-defined]
        if number not in failing:
            return ErrorCode.NONE
        failing.discard(number)
        return ErrorCode.NOT_ENOUGH_REPLICAS

    for broker in cluster.brokers.values():
        broker.produce_error = refuse
    async with Producer(cluster.bootstrap) as producer:
        await send_all(producer, 50)
        assert producer.metrics()["record-retry-total"] == 50
        assert producer.metrics()["record-error-total"] == 0
        await cluster.until(lambda: "are sent again" in caplog.text, DEADLINE_S)
    lines = [record.getMessage() for record in caplog.records if "are sent again" in record.getMessage()]
    assert len(lines) <= 3
    assert all(
        re.match(r"batches are sent again (count=\d+ cause=NOT_ENOUGH_REPLICAS|topic=t)", line) for line in lines
    )


async def test_a_lost_broker_is_logged(cluster: ClusterDouble, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "highwater.client")
    async with Producer(cluster.bootstrap, request_timeout_ms=2_000) as producer:
        await send_all(producer, 50)
        for broker in cluster.brokers.values():
            await broker.stop()
        late = await producer.send("t", b"late")
        for text in ("a stream has ended", "no broker tells the metadata"):
            await cluster.until(lambda text=text: text in caplog.text, DEADLINE_S)
        for broker in cluster.brokers.values():
            await broker.start(broker.address)
        await late
        await producer.partitions_for("t")
        await producer._cluster.refresh()
        await cluster.until(lambda: "metadata is there again" in caplog.text, DEADLINE_S)
        lines = len(caplog.records)
        assert lines < 50
        await send_all(producer, 1_000)
    assert len(caplog.records) <= lines + 5, "no line is written for a record"


async def test_a_consumer_counts_what_it_reads_and_its_resets(
    cluster: ClusterDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "highwater.client")
    async with Producer(cluster.bootstrap) as producer:
        await send_all(producer, 500)
    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest", client_id="c") as consumer:
        read = 0
        async with asyncio.timeout(DEADLINE_S):
            while read < 100:
                read += len(await consumer.poll(timeout_ms=1_000, max_records=10))
            told = consumer.metrics()
            assert told["records-lag"] == 500 - read
            assert 0 < told["records-lag-max"] <= 10
            while read < 500:
                read += len(await consumer.poll(timeout_ms=1_000))
        told = consumer.metrics()
        assert told["records-lag"] == told["records-lag-max"] == 0
        assert told["bytes-consumed-total"] > 500
        assert told["fetch-total"] >= 1
        assert 0 < told["fetch-latency-avg"] <= told["fetch-latency-max"]
        assert told["assigned-partitions"] == 50
        assert told["position-reset-total"] == 0
        consumer.seek(("t", 0), 1_000_000)
        async with asyncio.timeout(DEADLINE_S):
            while not consumer.metrics()["position-reset-total"]:
                await consumer.poll(timeout_ms=100)
        line = "positions that are outside the log are reset topic=t partition=0 offset=1000000"
        await cluster.until(lambda: line in caplog.text, DEADLINE_S)


async def test_they_can_be_had_by_prometheus(cluster: ClusterDouble) -> None:
    registry = CollectorRegistry()
    told = ClientMetrics(registry)
    async with (
        Producer(cluster.bootstrap, client_id="p") as producer,
        Consumer("t", bootstrap=cluster.bootstrap, client_id="c") as consumer,
    ):
        told.add(producer)
        told.add(consumer)
        await send_all(producer, 10)
        text = generate_latest(registry).decode()
        assert 'highwater_client_record_send_total{client_id="p"} 10.0\n' in text
        assert 'highwater_client_assigned_partitions{client_id="c"} 50.0\n' in text
        told.discard(producer)
        assert 'client_id="p"' not in generate_latest(registry).decode()


async def test_the_blocking_ones_tell_the_same(cluster: ClusterDouble) -> None:
    def use() -> tuple[dict[str, float], dict[str, float]]:
        with plain.Producer(cluster.bootstrap, client_id="p") as producer:
            producer.send_and_wait("t", b"v", partition=0)
            assert producer.client_id == "p"
            sent = producer.metrics()
        with plain.Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(timeout_ms=5_000)) == 1
            return sent, consumer.metrics()

    sent, read = await asyncio.to_thread(use)
    assert sent["record-send-total"] == 1
    assert read["bytes-consumed-total"] > 0


def test_every_statistic_is_described() -> None:
    text = METRICS_PAGE.read_text().split("## The SDK", 1)[1].split("\n## ", 1)[0]
    described = set(re.findall(r"^\| `([a-z-]+)`", text, re.M))
    assert described == {*Producer("127.0.0.1:1").metrics(), *Consumer(bootstrap="127.0.0.1:1").metrics()}


def test_means_are_of_what_was_lately() -> None:
    now_s = 0.0
    windowed = Windowed(lambda: now_s)
    assert (windowed.mean, windowed.maximum) == (0.0, 0.0)
    windowed.note(1.0)
    windowed.note(3.0)
    assert (windowed.mean, windowed.maximum) == (2.0, 3.0)
    now_s = WINDOW_S + 1
    windowed.note(5.0)
    assert (windowed.mean, windowed.maximum) == (3.0, 5.0)
    now_s += WINDOW_S
    assert (windowed.mean, windowed.maximum) == (5.0, 5.0)
    now_s += 2 * WINDOW_S
    assert (windowed.mean, windowed.maximum) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("setup", "is_told"),
    [
        ("", False),  # the package's own handler takes nothing
        ("import logging; logging.basicConfig()", True),
    ],
)
def test_without_a_log_nothing_is_printed(setup: str, is_told: bool) -> None:
    program = f"{setup}\nimport logging, highwater.client\nlogging.getLogger('highwater.client.x').warning('trouble')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ("trouble" in done.stderr) == is_told


@pytest.mark.parametrize("setup", ["", "import logging; logging.basicConfig()"])
def test_what_must_be_heard_is_heard_once(setup: str) -> None:
    program = (
        f"{setup}\nimport logging, highwater.client\nfrom highwater.client.cluster.last_word import say\n"
        "say(logging.getLogger('highwater.client.x'), logging.WARNING, 'it %s', 'waits')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("it waits") == 1
