"""The bar of a read that takes long: within a task, with micro-batches, and where reports of tasks do not arrive."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import available_now, started, wait_until, waiting_for
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer
from highwater.spark import progress_bar
from highwater.spark.progress.display import ProgressBar
from highwater.spark.progress.read_progress import LISTENER_PROPERTY

RECORDS = 800_000
Read = Callable[..., DataFrame]


@pytest.fixture
def filled(admin: Admin, cluster: LocalCluster, topic: str) -> str:
    """A topic of one partition, 160 MB: longer than what is buffered between a reader and what comes after it."""
    admin.create_topic(topic, 1, 1)
    values = pa.array([b"%0200d" % number for number in range(RECORDS)], pa.binary())
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(topic, pa.table({"value": values}))
    return topic


def test_a_task_in_the_middle_of_its_range(filled: str, read: Read, spark: SparkSession, tmp_path: Path) -> None:
    assert read(subscribe=filled).count() == RECORDS  # a warm worker stands still before its time to report
    go_on, drawn = tmp_path / "go-on", io.StringIO()
    frame = read(subscribe=filled, columns="value").mapInArrow(waiting_for(go_on), "value binary")
    console = Console(file=drawn, force_terminal=True, width=120)
    with progress_bar(spark, console=console) as bar:
        query = started(lambda: frame.write.format("noop").mode("append").save())
        try:
            wait_until(lambda: any(0 < one.done < one.total for one in bar.reads), lambda: (bar.reads, bar.stages))
            assert [(one.label, one.total) for one in bar.reads] == [(filled, RECORDS)]
            assert [(one.tasks_done, one.tasks) for one in bar.stages] == [(0, 1)]
        finally:
            go_on.touch()
            query.join()
    assert [one.done for one in bar.reads] == [RECORDS]
    assert f"of {RECORDS:,} records" in drawn.getvalue()
    assert "0 of 1 tasks" in drawn.getvalue()
    assert spark.sparkContext.getLocalProperty(LISTENER_PROPERTY) is None


def test_without_reports_it_counts_tasks(
    filled: str, read: Read, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProgressBar, "_listen", lambda self: "token@127.0.0.1:9")  # nobody listens there
    go_on = tmp_path / "go-on"
    frame = read(subscribe=filled, columns="value", minPartitions=4).mapInArrow(waiting_for(go_on), "value binary")
    with progress_bar(spark, console=Console(file=io.StringIO())) as bar:
        query = started(lambda: frame.write.format("noop").mode("append").save())
        try:
            wait_until(lambda: any(one.tasks == 4 for one in bar.stages), lambda: bar.stages)
        finally:
            go_on.touch()
            query.join()
    assert bar.reads == ()


def test_an_address_that_is_none_stops_no_task(filled: str, read: Read, spark: SparkSession) -> None:
    for wrong in ("nonsense", "token@no-such-host.invalid:1", "token@127.0.0.1:x"):
        spark.sparkContext.setLocalProperty(LISTENER_PROPERTY, wrong)
        try:
            assert read(subscribe=filled, columns="offset").count() == RECORDS
        finally:
            spark.sparkContext.setLocalProperty(LISTENER_PROPERTY, None)


def test_micro_batches(
    filled: str, cluster: LocalCluster, spark: SparkSession, read_stream: Read, tmp_path: Path
) -> None:
    frame = read_stream(subscribe=filled, startingOffsets="earliest", maxOffsetsPerTrigger=RECORDS // 2)
    with progress_bar(spark, console=Console(file=io.StringIO())) as bar:
        available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert [(one.label, one.done, one.total) for one in bar.reads] == [(filled, RECORDS // 2, RECORDS // 2)]
