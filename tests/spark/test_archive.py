"""`highwater pipeline archive --format parquet`: every record in the files once, whatever is killed when."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from archived import (
    in_archive,
    in_topic,
    parquet_files,
    pending,
    produce_all_kinds,
    visible_in_archive,
)
from conftest import FOREVER, send
from pipeline_process import PipelineProcess, pipeline_process
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.errors import UserError
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions, run
from highwater.spark.pipelines.archives.files import directories
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles

PARQUET = ArchiveFormat.PARQUET


def options(cluster: LocalCluster, directory: Path, **more: Any) -> ArchiveOptions:
    given = {"to": str(directory / "archive"), "checkpoint": str(directory / "checkpoint"), "format": PARQUET, **more}
    return ArchiveOptions(bootstrap=cluster.bootstrap, **given)


@pytest.mark.timeout(900)
def test_topics_in_files_by_hour(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    for name, partitions in (("a", 3), ("b", 1)):
        admin.create_topic(f"{topic}-{name}", partitions, 1, FOREVER)
        produce_all_kinds(cluster.bootstrap, f"{topic}-{name}", range(600))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")  # a quarter of an hour beside the others
    try:
        given = options(cluster, tmp_path, pattern=f"{topic}-.", max_offsets_per_trigger=500)
        run(given)
        run(given)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    archive = tmp_path / "archive"
    expected = {name: in_topic(cluster.bootstrap, f"{topic}-{name}") for name in "ab"}
    everything = in_archive(archive)
    for name, rows in expected.items():
        assert len(rows) == 600
        assert [row for row in everything if row["topic"] == f"{topic}-{name}"] == rows
    assert_in_place_and_in_order(archive)
    assert not [path for path in archive.rglob("*") if path.is_file() and path.suffix not in (".parquet", ".json")]
    assert spark.read.parquet(str(archive)).count() == 1200


@pytest.mark.timeout(900)
def test_an_archive_goes_on_without_its_checkpoint_and_without_its_commits(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1, FOREVER)
    archive = tmp_path / "archive"
    for number, lost in enumerate((None, "checkpoint", "archive/_commits", "both")):
        produce_all_kinds(cluster.bootstrap, topic, range(number * 200, number * 200 + 200))
        for path in ("checkpoint", "archive/_commits") if lost == "both" else (lost,) if lost else ():
            shutil.rmtree(tmp_path / path)
        run(options(cluster, tmp_path, topic=[topic]))
        assert in_archive(archive) == in_topic(cluster.bootstrap, topic)
    admin.create_partitions(topic, 3)
    produce_all_kinds(cluster.bootstrap, topic, range(300))
    shutil.rmtree(tmp_path / "checkpoint")
    run(options(cluster, tmp_path, topic=[topic]))
    rows = in_archive(archive)
    assert rows == in_topic(cluster.bootstrap, topic)
    assert {row["partition"] for row in rows} == {0, 1, 2}


def test_a_topic_made_anew_does_not_go_into_the_archive_of_the_old_one(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Whatever its offsets are by now, and whatever is said about lost data."""
    given = options(cluster, tmp_path, topic=[topic], option=["failOnDataLoss=false"])
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(20))
    run(given)
    before = in_archive(tmp_path / "archive")
    admin.delete_topic(topic)
    admin.create_topic(topic, 1, 1)
    for values in (range(5), range(50)):
        send(cluster, topic, values)
        for _ in range(2):
            with pytest.raises(UserError, match=f"{topic} was deleted and made anew since .*/archive was written"):
                run(given)
    assert in_archive(tmp_path / "archive") == before
    elsewhere = options(cluster, tmp_path, topic=[topic], to=str(tmp_path / "anew"), checkpoint=str(tmp_path / "next"))
    run(elsewhere)
    assert in_archive(tmp_path / "anew") == in_topic(cluster.bootstrap, topic)


def test_files_are_listed_by_hadoop_as_by_the_driver_itself(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directories of HDFS and S3 as those of a local disk."""
    for path in (
        "topic=a/date=2026-11-20/hour=23/00000-3-2.parquet",
        "topic=a/date=2026-11-21/hour=02/00000-7-8.parquet",
        "topic=a/date=2026-11-21/hour=02/00001-7-8.parquet",
        "topic=a/date=2026-11-21/hour=02/.00001-7-8.parquet.crc",
        "topic=a/date=2026-11-21/_temporary/0/1.parquet",
        "topic=b/date=2026-11-20/hour=23/00000-3-2.parquet",
        "_commits/000000000008.json",
        "notes",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    files = HadoopFiles(spark, str(tmp_path))
    archive = files.qualified(str(tmp_path))
    everything = list(files.listings(archive))
    day = list(files.listings(archive, "topic=a/date=2026-11-21"))
    of_topics = list(directories(files, archive))
    monkeypatch.setattr(HadoopFiles, "_local", lambda self, path: None)
    assert list(files.listings(archive)) == everything
    assert list(files.listings(archive, "topic=a/date=2026-11-21")) == day
    assert list(directories(files, archive)) == of_topics
    assert [one.directory for one in everything[1:]] == [one.directory for one in of_topics]
    assert list(files.listings(archive, "topic=c")) == []
    assert [(one.directory, len(one.sizes_bytes)) for one in day] == [("topic=a/date=2026-11-21/hour=02", 2)]


@pytest.mark.timeout(900)
def test_small_files_are_merged(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    archive = tmp_path / "archive"
    produce_all_kinds(cluster.bootstrap, topic, range(400))
    run(options(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=200, compact_every=2))
    produce_all_kinds(cluster.bootstrap, topic, range(400, 600), hours=2)
    run(options(cluster, tmp_path, topic=[topic]))
    assert len(parquet_files(archive)) > 3
    capsys.readouterr()
    run(options(cluster, tmp_path, compact=True))
    assert re.fullmatch(r"archive: \d+ small files merged into \d, \d+\.\d s\n", capsys.readouterr().out)
    files = parquet_files(archive)
    assert len(files) == 3  # one an hour
    assert in_archive(archive) == in_topic(cluster.bootstrap, topic)
    assert_in_place_and_in_order(archive)
    assert not list((tmp_path / "checkpoint" / "staging").glob("*"))
    run(options(cluster, tmp_path, compact=True))
    assert capsys.readouterr().out.startswith("archive: no small files to merge, ")
    assert parquet_files(archive) == files
    # An hour of now is not over: its files stay.
    with_now = options(cluster, tmp_path, topic=[topic])
    for _ in range(2):
        send(cluster, topic, range(10))
        run(with_now)
    before = parquet_files(archive)
    run(options(cluster, tmp_path, compact=True, closed_after="1d"))
    assert parquet_files(archive) == before
    assert in_archive(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.timeout(1800)
def test_kill_9_of_the_archive_and_of_its_compaction(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """While it runs, a second one is refused."""
    admin.create_topic(topic, 3, 1, FOREVER)
    archive, staging = tmp_path / "archive", tmp_path / "checkpoint" / "staging"
    common = ["--to", str(archive), "--checkpoint", str(tmp_path / "checkpoint"), "--format", "parquet"]
    common += ["--conf", "spark.sql.shuffle.partitions=2"]
    reading = [*common, "--topic", topic, "--bootstrap", cluster.bootstrap, "--max-offsets-per-trigger", "700"]

    def archived() -> int:
        return len(parquet_files(archive))

    def more_than(before: int, process: PipelineProcess) -> None:
        process.until(lambda: archived() > before)

    def is_staged() -> bool:
        return any(staging.glob("*/*/topic=*/**/*.parquet"))

    def is_pending() -> bool:
        return len(list((archive / "_commits").glob("*.json"))) > 1

    with pipeline_process("archive", tmp_path) as process:
        for number, killed_when in enumerate((is_staged, is_pending)):
            produce_all_kinds(cluster.bootstrap, topic, range(number * 1500, number * 1500 + 1500), hours=4)
            process.start([*reading, "--trigger", "10ms"])
            more_than(archived(), process)
            if number == 0:
                refused = r"another archive pipeline \(process \d+ on .*\) writes to .*/archive"
                with pytest.raises(UserError, match=refused):
                    run(options(cluster, tmp_path, topic=[topic]))
                produce_all_kinds(cluster.bootstrap, topic, range(1500), hours=4)  # it may have done all meanwhile
            process.until(killed_when)
            process.kill()
            rows = in_topic(cluster.bootstrap, topic)
            assert_each_once(in_archive(archive), rows)
        run(options(cluster, tmp_path, topic=[topic]))
        assert in_archive(archive) == rows

        small = archived()
        process.start([*common, "--compact"])
        process.until(lambda: archived() < small // 2)
        process.kill()
        assert visible_in_archive(archive) == rows
        assert in_archive(archive) == rows or pending(archive) is not None
        run(options(cluster, tmp_path, compact=True))
        assert archived() == 4
        assert in_archive(archive) == rows


def assert_in_place_and_in_order(archive: Path) -> None:
    """Each file's records are of its hour, sorted by partition and offset."""
    for path in parquet_files(archive):
        date, hour = path.split("/")[1:3]
        table = pq.read_table(archive / path, partitioning=None)
        times = table["timestamp"].to_pylist()
        assert {(time.strftime("date=%Y-%m-%d"), time.strftime("hour=%H")) for time in times} == {(date, hour)}
        order = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        assert order == sorted(order)


def assert_each_once(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """Some of the rows, each as it is, none twice."""
    by_offset = {(row["partition"], row["offset"]): row for row in rows}
    offsets = [(row["partition"], row["offset"]) for row in found]
    assert len(offsets) == len(set(offsets))
    assert all(by_offset[offset] == row for offset, row in zip(offsets, found, strict=True))


@pytest.mark.timeout(900)
def test_archives_that_are_refused(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="say which topics to read"):
        options(cluster, tmp_path)
    with pytest.raises(UserError, match="--closed-after is 'soon'; it is a duration"):
        options(cluster, tmp_path, topic=[topic], closed_after="soon")
    with pytest.raises(UserError, match=f"topic '{topic}' does not exist"):
        run(options(cluster, tmp_path, topic=[topic]))
    with pytest.raises(UserError, match="there is no archive in .*/nothing"):
        run(options(cluster, tmp_path, compact=True, to=str(tmp_path / "nothing")))
    with pytest.raises(UserError, match="are on two file systems"):
        run(options(cluster, tmp_path, topic=[topic], checkpoint="/proc/checkpoint"))
    with pytest.raises(UserError, match="checkpoint .*/archive/checkpoint is in .*/archive: what is staged"):
        run(options(cluster, tmp_path, topic=[topic], checkpoint=str(tmp_path / "archive" / "checkpoint")))
    admin.create_topic(topic, 1, 1, FOREVER)
    send(cluster, topic, range(10))
    run(options(cluster, tmp_path, topic=[topic]))
    shutil.rmtree(tmp_path / "archive")
    with pytest.raises(UserError, match="is of an archive that is no longer in .*: remove it"):
        run(options(cluster, tmp_path, topic=[topic]))
