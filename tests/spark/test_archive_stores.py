"""A table in an object store, by a cluster whose two executors have disks of their own. For `make test-stores`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from archived import in_topic, produce_all_kinds, sorted_rows
from conftest import FOREVER
from machines import can_have_disks_of_their_own, two_machines
from pipeline_process import pipeline_process

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin

pytestmark = [
    pytest.mark.skipif("HIGHWATER_TEST_STORES" not in os.environ, reason="make test-stores installs what it needs"),
    pytest.mark.skipif(not can_have_disks_of_their_own(), reason="needs root, or the right to make mount namespaces"),
]

if TYPE_CHECKING:
    from object_store import ObjectStore


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    from object_store import object_store

    with object_store("highwater") as started:
        yield started


def executors(group: int) -> list[int]:
    """The process ids of Spark's executors in a process group."""
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if one.info["cmdline"]
        and "org.apache.spark.executor.CoarseGrainedExecutorBackend" in one.info["cmdline"]
        and os.getpgid(one.pid) == group
    ]


@pytest.mark.timeout(900)
def test_kill_9_of_an_executor_and_of_the_driver(
    cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path, store: ObjectStore
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(3000))
    disk = tmp_path / "disk"
    disk.mkdir()
    master, *conf = two_machines(disk, tmp_path)
    given = ["--master", master, "--topic", topic, "--bootstrap", cluster.bootstrap]
    given += ["--to", f"s3a://{store.bucket}/archive", "--checkpoint", f"s3a://{store.bucket}/checkpoint"]
    for setting in (*conf, *store.settings(disk), "spark.sql.shuffle.partitions=2"):
        given += ["--conf", setting]

    def commits() -> int:
        numbers = [Path(name).stem for name in store.names("archive/_delta_log/") if Path(name).suffix == ".json"]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def one_more_commit() -> None:
        before = commits()
        process.until(lambda: commits() > before, every_s=0.1)

    with pipeline_process("archive", tmp_path) as process:
        group = process.start([*given, "--trigger", "10ms", "--max-offsets-per-trigger", "100"])
        for _ in range(2):  # the first one of a table makes it
            one_more_commit()
        os.kill(executors(group)[0], signal.SIGKILL)
        for _ in range(2):
            one_more_commit()
        process.kill()
        produce_all_kinds(cluster.bootstrap, topic, range(500))
        process.start(given)
        process.end()
    assert sorted_rows(store.table("archive").to_pyarrow_table()) == in_topic(cluster.bootstrap, topic)
