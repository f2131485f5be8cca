"""`highwater pipeline replay`: an archive back into a topic, each record once and in order, through kill -9, too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from archived import FIRST_MS, in_topic, produce_all_kinds
from conftest import FOREVER, send
from pipeline_process import pipeline_process
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.errors import UserError
from highwater.spark.pipelines import archive, replay
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.replay import ReplayOptions
from highwater.spark.pipelines.sending.replay_progress import ReplayProgress, Step

KEPT = ("key", "value", "headers", "timestamp")


def archived(cluster: LocalCluster, topic: str, directory: Path, kind: ArchiveFormat | None = None) -> None:
    to, checkpoint = str(directory / "archive"), str(directory / "checkpoint")
    archive.run(ArchiveOptions(bootstrap=cluster.bootstrap, topic=[topic], to=to, checkpoint=checkpoint, format=kind))


def options(cluster: LocalCluster, directory: Path, to: str, **more: Any) -> ReplayOptions:
    given = {"archive": str(directory / "archive"), "checkpoint": str(directory / f"replay-{to}"), **more}
    return ReplayOptions(bootstrap=cluster.bootstrap, to=to, **given)


def kept(rows: Iterable[dict[str, Any]], *more: str) -> list[str]:
    return [repr([row[name] for name in (*KEPT, *more)]) for row in rows]


def by_key(rows: Iterable[dict[str, Any]]) -> dict[bytes, list[str]]:
    """Records that have a key, in the topic's order within each."""
    found: dict[bytes, list[str]] = defaultdict(list)
    for row in rows:
        if row["key"] is not None:
            found[row["key"]] += kept([row])
    return found


@pytest.mark.timeout(900)
def test_records_come_back_as_they_were(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    same, other = f"{topic}-same", f"{topic}-other"
    admin.create_topic(same, 3, 1, FOREVER)
    admin.create_topic(other, 5, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(1500))
    archived(cluster, topic, tmp_path)
    rows = in_topic(cluster.bootstrap, topic)
    keeping = options(cluster, tmp_path, same, keep_partitions=True, step=600)
    replay.run(keeping)
    assert kept(in_topic(cluster.bootstrap, same), "partition", "offset") == kept(rows, "partition", "offset")
    archived(cluster, topic, tmp_path / "files", ArchiveFormat.PARQUET)
    replay.run(options(cluster, tmp_path / "files", other, step=600))
    found = in_topic(cluster.bootstrap, other)
    assert by_key(found) == by_key(rows)
    assert Counter(kept(found)) == Counter(kept(rows))
    # What the archive has since then, and nothing twice.
    replay.run(keeping)
    produce_all_kinds(cluster.bootstrap, topic, range(300))
    archived(cluster, topic, tmp_path)
    replay.run(keeping)
    rows = in_topic(cluster.bootstrap, topic)
    assert len(rows) == 1800
    assert kept(in_topic(cluster.bootstrap, same), "partition", "offset") == kept(rows, "partition", "offset")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stamped_by", ["CreateTime", pytest.param("LogAppendTime", marks=pytest.mark.long)])
def test_kill_9_of_the_replay(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, stamped_by: str
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    to = f"{topic}-to"
    admin.create_topic(to, 2, 1, {**FOREVER, "message.timestamp.type": stamped_by})
    produce_all_kinds(cluster.bootstrap, topic, range(20_000))
    archived(cluster, topic, tmp_path)
    partitions = [TopicPartition(to, 0), TopicPartition(to, 1)]

    def arrived() -> int:
        return sum(found.offset for found in admin.list_offsets(partitions).values())

    arguments = ["--archive", str(tmp_path / "archive"), "--to", to, "--checkpoint", str(tmp_path / "replay")]
    arguments += ["--bootstrap", cluster.bootstrap, "--step", "6000", "--option", "highwater.batch.size=1000"]
    arguments += ["--conf", "spark.sql.shuffle.partitions=2"]
    with pipeline_process("replay", tmp_path) as process:
        process.start(arguments)
        until_more_than(process, arrived, arrived())
        process.kill()
    send(cluster, to, range(50))  # records of others do not matter
    given = options(cluster, tmp_path, to, checkpoint=str(tmp_path / "replay"), step=6000)
    replay.run(given)
    rows = in_topic(cluster.bootstrap, topic)
    found = [row for row in in_topic(cluster.bootstrap, to) if not is_of_others(row)]
    if stamped_by == "LogAppendTime":
        rows, found = ([{**row, "timestamp": None} for row in some] for some in (rows, found))
    assert len(rows) == 20_000
    assert Counter(kept(found)) == Counter(kept(rows))
    assert by_key(found) == by_key(rows)


def test_a_step_of_which_some_has_arrived_goes_on_partition_by_partition(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Its records are equal: which partition has one does matter where partitions are kept."""
    to = f"{topic}-to"
    for name in (topic, to):
        admin.create_topic(name, 2, 1, FOREVER)

    def produce(name: str, partition: int) -> None:
        with Producer(cluster.bootstrap) as producer:
            producer.send(name, b"7", partition=partition, timestamp_ms=FIRST_MS)

    produce(topic, 0)
    produce(topic, 1)
    archived(cluster, topic, tmp_path)
    given = options(cluster, tmp_path, to, keep_partitions=True)
    (described,) = admin.describe_topics([to])
    files = HadoopFiles(spark, given.checkpoint)
    begun = Step(
        1,
        files.qualified(given.archive),
        topic,
        described.topic_id.hex(),
        sent={0: 0, 1: 0},
        until={0: 1, 1: 1},
        ends={0: 0, 1: 0},
        keep_partitions=True,
    )
    ReplayProgress(files, files.qualified(given.checkpoint)).write(begun)
    produce(to, 1)
    with pytest.raises(UserError, match="is of a replay with --keep-partitions: go on as it began"):
        replay.run(options(cluster, tmp_path, to))
    replay.run(given)
    assert [(row["partition"], row["value"]) for row in in_topic(cluster.bootstrap, to)] == [(0, b"7"), (1, b"7")]


def until_more_than(process: Any, count: Any, before: int) -> None:
    process.until(lambda: count() > before)


def is_of_others(row: dict[str, Any]) -> bool:
    return row["value"] is not None and not row["value"].startswith(b"value")


@pytest.mark.timeout(900)
def test_replays_that_are_refused(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    to = f"{topic}-to"
    admin.create_topic(to, 2, 1, FOREVER)
    with pytest.raises(UserError, match="is no archive: it has neither a table nor a directory topic="):
        replay.run(options(cluster, tmp_path, to))
    send(cluster, topic, range(100))
    archived(cluster, topic, tmp_path)
    with pytest.raises(UserError, match=f"has no topic nothing; it has {topic}"):
        replay.run(options(cluster, tmp_path, to, topic="nothing"))
    with pytest.raises(UserError, match=f"the archive has partition 2, and topic {to} only 2 partitions"):
        replay.run(options(cluster, tmp_path, to, keep_partitions=True))
    given = options(cluster, tmp_path, to)
    replay.run(given)
    lost = options(cluster, tmp_path, to, checkpoint=str(tmp_path / "another"))
    with pytest.raises(UserError, match=f"topic {to} has records, and checkpoint .*another is new: .* say --append"):
        replay.run(lost)
    replay.run(options(cluster, tmp_path, to, checkpoint=str(tmp_path / "another"), append=True))
    assert len(in_topic(cluster.bootstrap, to)) == 200
    admin.delete_topic(to)
    admin.create_topic(to, 2, 1, FOREVER)
    with pytest.raises(UserError, match=f"is of a replay to another topic than {to} is now"):
        replay.run(given)
