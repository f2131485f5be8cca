"""A step of a replay reads the files of its range, and what lies in order in them is neither exchanged nor sorted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archived import in_topic
from conftest import FOREVER
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.spark.pipelines.archives import reading
from highwater.spark.pipelines.archives.files import write_files
from highwater.spark.pipelines.archives.reading import Archive, ArchivedTopic, whole_files
from highwater.spark.pipelines.replay import Replay, ReplayOptions
from highwater.spark.pipelines.replay import run as replay
from highwater.spark.pipelines.session.delta_session import DeltaSettings

FILES, RECORDS = 4, 500  # of each of two partitions


@pytest.fixture(params=["delta", "parquet"])
def archived(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Path:
    """Each file has its records in order."""
    directory = tmp_path / "archive"
    for number in range(FILES):
        first = number * RECORDS
        frame = records(spark, first, first + RECORDS)
        if request.param == "delta":
            written = frame.selectExpr("*", "'t' as topic", "date'2026-11-21' as date").write.format("delta")
            written.partitionBy("topic", "date").mode("append").save(str(directory))
        else:
            staged = tmp_path / f"staged-{number}"
            write_files(
                frame.selectExpr("*", "'t' as topic", "'2026-11-21' as date", "'02' as hour"), str(staged), "zstd"
            )
            for file in staged.rglob("*.parquet"):
                target = directory / file.parent.relative_to(staged) / f"{number}-{file.name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
    return directory


def records(spark: SparkSession, first: int, until: int) -> DataFrame:
    """With offsets in this range in two partitions, a task for each."""
    return (
        spark.range(2 * first, 2 * until)
        .selectExpr(
            "cast(concat('key', id) as binary) as key",
            "cast(concat('value', id) as binary) as value",
            "cast(id % 2 as int) as partition",
            "id div 2 as offset",
            "timestamp_millis(1795255200000 + id) as timestamp",
            "0 as timestampType",
            "cast(null as array<struct<key:string,value:binary>>) as headers",
        )
        .repartitionByRange(2, "partition")
        .sortWithinPartitions("partition", "offset")
    )


def opened(spark: SparkSession, archived: Path) -> ArchivedTopic:
    return Archive(spark, str(archived), DeltaSettings()).topic("t")


def leaves(rows: DataFrame) -> Iterator[Any]:
    found = rows._jdf.queryExecution().executedPlan().collectLeaves()
    return (found.apply(index) for index in range(found.size()))


def test_a_range_is_read_from_its_files_alone(spark: SparkSession, archived: Path) -> None:
    topic = opened(spark, archived)
    assert (topic.firsts, topic.ends) == ({0: 0, 1: 0}, {0: 2000, 1: 2000})
    rows = topic.rows({0: (600, 1100), 1: (1500, 1500)})
    assert rows is not None
    found = sorted((row.partition, row.offset) for row in rows.collect())
    assert found == [(0, offset) for offset in range(600, 1100)]
    (scan,) = leaves(rows)
    assert scan.metrics().apply("numFiles").value() == 2


@pytest.mark.parametrize("literal_ranges", [64, 0])
def test_many_partitions_are_joined_instead(
    spark: SparkSession, archived: Path, monkeypatch: pytest.MonkeyPatch, literal_ranges: int
) -> None:
    monkeypatch.setattr(reading, "_LITERAL_RANGES", literal_ranges)
    topic = opened(spark, archived)
    rows = topic.rows({0: (10, 20), 1: (995, 1010)})
    assert rows is not None
    found = sorted((row.partition, row.offset) for row in rows.collect())
    assert found == [*((0, offset) for offset in range(10, 20)), *((1, offset) for offset in range(995, 1010))]


def test_a_file_is_read_by_one_task_in_its_order(spark: SparkSession, archived: Path) -> None:
    """However small the pieces are that Spark is to cut files into, and into how few tasks it is to put them."""
    topic = opened(spark, archived)
    cut = {"spark.sql.files.maxPartitionBytes": "2000", "spark.sql.files.openCostInBytes": "0"}
    cut["spark.sql.files.maxPartitionNum"] = "1"
    limits = {0: (600, 900), 1: (0, RECORDS)}
    assert topic.layout.pieces.in_order(limits)
    rows = topic.rows(limits)
    assert rows is not None
    session = rows.sparkSession
    for name, value in cut.items():
        session.conf.set(name, value)
    with whole_files(rows):
        tasks = [[(row.partition, row.offset) for row in task] for task in rows.rdd.glom().collect()]
    assert sorted(tasks) == [[(0, offset) for offset in range(600, 900)], [(1, offset) for offset in range(RECORDS)]]
    assert {name: session.conf.get(name) for name in cut} == cut


def test_files_that_are_out_of_order_are_sorted(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    frame = records(spark, 0, RECORDS).selectExpr("*", "'t' as topic", "date'2026-11-21' as date")
    backwards = frame.repartitionByRange(1, "partition").sortWithinPartitions("partition", "value")
    backwards.write.format("delta").partitionBy("topic", "date").save(str(directory))
    topic = opened(spark, directory)
    assert not topic.layout.pieces.in_order({0: (0, RECORDS)})
    assert not topic.layout.pieces.in_order({1: (0, 2)})


@pytest.mark.timeout(900)
def test_what_lies_in_order_is_sent_without_an_exchange(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    archived: Path,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin.create_topic(topic, 2, 1, FOREVER)
    plans: list[str] = []
    write = Replay._write

    def noted(self: Replay, rows: DataFrame) -> None:
        plans.append(rows._jdf.queryExecution().executedPlan().toString())
        write(self, rows)

    monkeypatch.setattr(Replay, "_write", noted)
    given = {"archive": str(archived), "to": topic, "keep_partitions": True, "bootstrap": cluster.bootstrap}
    replay(ReplayOptions(checkpoint=str(tmp_path / "replay"), step=1600, **given))
    # 800 of each partition are a file and more, and end with the file: half a step is enough.
    assert len(plans) == 4
    assert not [plan for plan in plans if "Exchange" in plan or "Sort" in plan]
    found = [(row["partition"], row["offset"], row["value"]) for row in in_topic(cluster.bootstrap, topic)]
    assert found == [(p, offset, b"value%d" % (2 * offset + p)) for p in range(2) for offset in range(2000)]
