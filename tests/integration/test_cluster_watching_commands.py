"""`highwater metrics` and `highwater top` against a running cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Run, runner
from running_cluster import running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Consumer, Producer


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("COLUMNS", "250")
    return runner(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("watched"), brokers=1) as started:
        with Admin(started.bootstrap) as admin, Producer(started.bootstrap) as producer:
            admin.create_topic("orders", 2, 1)
            for number in range(10):
                producer.send("orders", b"%d" % number, partition=0)
            producer.flush()
            with Consumer(
                "orders", bootstrap=started.bootstrap, group="readers", auto_offset_reset="earliest"
            ) as consumer:
                while len(consumer.poll(max_records=4)) < 4:
                    pass
        yield started


def test_the_processes_and_the_metrics_of_one(run: Run, cluster: LocalCluster) -> None:
    data = str(cluster.settings.data)
    listed = [json.loads(line) for line in run("metrics", "--data", data, "--json").out.splitlines()]
    assert [each["process"] for each in listed] == [
        "controller",
        "log-storage-1",
        "replica-manager-1",
        "fetcher-1",
    ]
    shown = run("metrics", "replica-manager-1", "--data", data, "--match", "leader_partitions|bytes_in").out
    assert "highwater_replica_manager_leader_partitions" in shown
    assert "topic=orders" in shown
    assert "under_replicated" not in shown
    by_address = run("metrics", listed[2]["address"], "--json", "--match", "^highwater_replica_manager_broker_state$")
    assert json.loads(by_address.out) == {
        "metric": "highwater_replica_manager_broker_state",
        "labels": {},
        "value": 3.0,
    }


def test_what_is_not_there_is_said_in_a_sentence(run: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    refused = run("metrics", "fetcher-9", "--data", str(cluster.settings.data))
    assert refused.status == 2
    assert "there are controller, log-storage-1" in " ".join(refused.err.split())
    assert "no cluster of highwater up runs" in run("metrics", "--data", str(tmp_path)).err
    assert run("metrics", "127.0.0.1:1").status == 1


def test_top_once_has_brokers_topics_and_groups(run: Run, cluster: LocalCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        # Between its two looks there is traffic: what is sent before the first counts for nothing.
        stop = False

        def send() -> None:
            while not stop:
                producer.send("orders", b"more", partition=1)
                producer.flush()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            page = json.loads(
                run("top", "--once", "--json", "--interval", "1", "--data", str(cluster.settings.data)).out
            )
            text = run("top", "--once", "--interval", "0.5", "--data", str(cluster.settings.data)).out
        finally:
            stop = True
            thread.join()
    (broker,) = page["brokers"]
    assert (broker["broker"], broker["state"], broker["under_replicated"]) == (1, "running", 0)
    assert page["topics"][0]["topic"] == "orders"
    assert page["topics"][0]["bytes_in"] > 0
    (group,) = page["groups"]
    assert group["group"] == "readers"
    assert group["lag"] > 0
    assert "orders" in text
    assert "readers" in text


def test_top_without_metrics_ranks_topics_by_records(run: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    page = json.loads(run("top", "--once", "--json", "--interval", "0.2", "--bootstrap", cluster.bootstrap).out)
    assert page["brokers"][0]["state"] == "live"
    assert page["brokers"][0]["bytes_in"] is None
    assert page["topics"] == []  # nothing is written meanwhile
