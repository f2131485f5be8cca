"""The metrics and logs of a cluster of real processes, through a lost broker and a deleted topic."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from replica_manager_cluster import eventually
from running_cluster import running_cluster

from bench.scale.samples import Samples, by_label, samples_of, total
from highwater.cli.local_cluster import LocalCluster
from highwater.client import Admin, Consumer, NewTopic, Producer

SETTINGS = {
    "metrics.topics": "2",
    "metrics.partitions": "3",
    "metrics.reporters": "csv,log",
    "metrics.reporter.interval.ms": "200",
    "log.format": "json",
    "replica.lag.time.max.ms": "1500",
}
MANAGER, STORAGE, FETCHER, CONTROLLER = (
    f"highwater_{service}_" for service in ("replica_manager", "log_storage", "fetcher", "controller")
)
BATCHES, RECORDS, VALUE = 20, 50, b"x" * 100
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def csv_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, csv_dir: Path) -> Iterator[LocalCluster]:
    settings = {**SETTINGS, "csv.metrics.dir": str(csv_dir)}
    with running_cluster(tmp_path_factory.mktemp("metrics"), brokers=2, settings=settings) as running:
        yield running


def scrape(cluster: LocalCluster, process: str) -> Samples:
    with urlopen(f"http://{cluster.metrics_addresses[process]}/metrics", timeout=10) as answer:
        return samples_of(answer.read().decode())


async def told(cluster: LocalCluster, process: str, name: str, value: float, **labels: str) -> None:
    async def is_so() -> bool:
        found = await asyncio.to_thread(scrape, cluster, process)
        return total(found, name, **labels) == value

    await eventually(is_so, f"{process} tells {name} {labels} {value}", WITHIN_S)


def test_every_process_serves_its_metrics(cluster: LocalCluster) -> None:
    assert len(cluster.metrics_addresses) == 7
    for name in cluster.metrics_addresses:
        found = scrape(cluster, name)
        service = name.rstrip("-12").replace("-", "_")
        for metric in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
            assert total(found, metric) > 0, name
        assert 0 <= total(found, f"highwater_{service}_loop_idle_ratio") <= 1
        assert total(found, f"highwater_{service}_loop_idle_seconds_total") > 0
    written = json.loads((cluster.settings.data / "cluster.json").read_text())
    assert written["metrics"] == cluster.metrics_addresses
    targets = json.loads(cluster.metrics_file.read_text())
    assert {target["labels"]["process"]: target["targets"] for target in targets} == {
        name: [address] for name, address in cluster.metrics_addresses.items()
    }
    assert {target["labels"].get("broker") for target in targets} == {None, "1", "2"}


async def test_topics_are_counted_while_they_are_there(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        for topic in ("first", "second", "third"):
            (made,) = await admin.create_topics([NewTopic(topic, assignment=[[1, 2]])])
            assert made.error is None
        for topic in ("first", "third"):
            for _ in range(BATCHES):
                await asyncio.gather(*[await producer.send(topic, VALUE) for _ in range(RECORDS)])
        async with Consumer("first", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            read = 0
            while read < BATCHES * RECORDS:
                read += len(await consumer.poll(timeout_ms=10_000))
        found = scrape(cluster, "replica-manager-1")
        messages = by_label(found, MANAGER + "topic_messages_in_total", "topic")
        assert messages == {"first": BATCHES * RECORDS, "second": 0, "(others)": BATCHES * RECORDS}
        bytes_in = total(found, MANAGER + "topic_bytes_in_total", topic="first")
        assert bytes_in > BATCHES * 61  # their headers
        assert total(found, MANAGER + "topic_bytes_out_total", topic="first") == bytes_in
        assert total(found, MANAGER + "topic_replication_bytes_out_total", topic="first") == bytes_in
        assert total(found, MANAGER + "topic_failed_produces_total") == 0
        assert total(scrape(cluster, "log-storage-2"), STORAGE + "log_size_bytes", topic="first") == bytes_in
        await told(cluster, "fetcher-2", FETCHER + "partition_lag_records", 0.0, topic="first")
        sizes = by_label(scrape(cluster, "log-storage-1"), STORAGE + "partition_size_bytes", "topic")
        assert len(sizes) <= 3

        for phase in ("total", "queue", "local", "remote", "response"):
            count = total(found, MANAGER + "request_seconds_count", request="Produce", phase=phase)
            assert count >= BATCHES, phase
        assert total(found, MANAGER + "request_seconds_count", request="FetchFollower", phase="total") > 0
        assert total(found, MANAGER + "request_seconds_count", request="FetchConsumer", phase="response") > 0
        assert total(found, MANAGER + "request_seconds_count", request="Metadata", phase="total") > 0
        spent = {
            phase: total(found, MANAGER + "request_seconds_sum", request="Produce", phase=phase)
            for phase in ("total", "queue", "local", "remote")
        }
        parts_s = spent["queue"] + spent["local"] + spent["remote"]
        assert abs(spent["total"] - parts_s) < 0.01 * spent["total"] + 0.001

        await admin.delete_topics(["first"])

    async def is_gone() -> bool:
        after = await asyncio.to_thread(scrape, cluster, "replica-manager-1")
        return "first" not in by_label(after, MANAGER + "topic_messages_in_total", "topic")

    await eventually(is_gone, "the topic's metrics are gone", WITHIN_S)


async def test_a_lost_broker_is_seen(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        (made,) = await admin.create_topics([NewTopic("lost", assignment=[[2, 1], [1, 2]])])
        assert made.error is None
    await told(cluster, "replica-manager-2", MANAGER + "broker_state", 3.0)
    before, elected = scrape(cluster, "replica-manager-1"), scrape(cluster, "controller")
    cluster.kill_broker(2)
    await told(cluster, "controller", CONTROLLER + "live_brokers", 1.0)
    # A broker is missed at once; another leads what it led, and has been counted, once etcd has that.
    await told(cluster, "controller", CONTROLLER + "preferred_leader_imbalance", 1.0)
    await told(cluster, "controller", CONTROLLER + "offline_partitions", 0.0)
    after = scrape(cluster, "controller")
    clean = CONTROLLER + "elections_total"
    assert total(after, clean, kind="clean") - total(elected, clean, kind="clean") == 1
    assert total(after, clean, kind="unclean") == 0
    assert total(after, CONTROLLER + "election_seconds_count") > total(elected, CONTROLLER + "election_seconds_count")
    await told(cluster, "replica-manager-1", MANAGER + "at_min_isr_partitions", 4.0)
    await told(cluster, "replica-manager-1", MANAGER + "under_replicated_partitions", 4.0)
    shrunk = scrape(cluster, "replica-manager-1")
    assert total(shrunk, MANAGER + "isr_shrinks_total") > total(before, MANAGER + "isr_shrinks_total")
    cluster.start_broker(2)

    async def grown() -> bool:
        """Each of the four has grown once more often than it shrank: on a busy machine a follower may fall behind
        again."""
        found = await asyncio.to_thread(scrape, cluster, "replica-manager-1")
        expands, shrinks = (
            total(found, MANAGER + name) - total(shrunk, MANAGER + name)
            for name in ("isr_expands_total", "isr_shrinks_total")
        )
        return total(found, MANAGER + "under_replicated_partitions") == 0 and expands - shrinks == 4

    await eventually(grown, "every ISR has grown again", WITHIN_S)
    await told(cluster, "replica-manager-2", MANAGER + "broker_state", 3.0)
    opened = scrape(cluster, "log-storage-2")
    for left in ("opening", "remaining_logs_to_open", "remaining_bytes_to_recover"):
        assert total(opened, STORAGE + left) == 0


async def test_reports_are_written(cluster: LocalCluster, csv_dir: Path) -> None:
    path = csv_dir / "replica-manager-1" / "highwater_replica_manager_leader_partitions.csv"

    async def is_there() -> bool:
        return path.exists() and len(path.read_text().splitlines()) > 2

    await eventually(is_there, "two reports are written", WITHIN_S)
    assert path.read_text().startswith("time,labels,value\n")
    assert set(os.listdir(csv_dir)) == set(cluster.metrics_addresses) - {"controller"} | {"controller-0"}


async def test_lines_of_an_incident_have_ids_in_common(cluster: LocalCluster) -> None:
    lines = []
    for name in cluster.metrics_addresses:
        for text in (cluster.settings.data / "logs" / f"{name}.log").read_text().splitlines():
            lines.append(json.loads(text))
    assert {line["service"] for line in lines} == {"controller", "fetcher", "log-storage", "replica-manager"}
    led = [line for line in lines if line["message"] == "leading" and line.get("topic") == "lost"]
    assert led
    for line in led:
        assert line["broker_id"] in (1, 2)
        assert line["broker_epoch"] > 0
    assert any(line["service"] == "controller" and line.get("controller_epoch") for line in lines)
    assert any(line["logger"] == "highwater.telemetry.metrics" for line in lines)
