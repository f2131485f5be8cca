"""`highwater pipeline archive` into a Delta table: every record once, whatever is killed, and whoever else writes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from archived import FIRST_MS, HOUR_MS, in_table, in_topic, produce_all_kinds
from conftest import FOREVER, send, started, wait_until
from deltalake import DeltaTable
from pipeline_process import pipeline_process
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer
from highwater.errors import UserError
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions, run
from highwater.spark.pipelines.archives import snapshots
from highwater.spark.pipelines.archives.delta import DeltaArchive
from highwater.spark.pipelines.archives.history import Archived
from highwater.spark.pipelines.archives.reading import Archive
from highwater.spark.pipelines.session.delta_session import DeltaSettings


def options(cluster: LocalCluster, directory: Path, **more: Any) -> ArchiveOptions:
    given = {"to": str(directory / "archive"), "checkpoint": str(directory / "checkpoint"), **more}
    return ArchiveOptions(bootstrap=cluster.bootstrap, **given)


def files(archive: Path) -> list[str]:
    return sorted(DeltaTable(archive).file_uris())


@pytest.mark.timeout(900)
def test_topics_in_a_table(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, partitions in (("a", 3), ("b", 1)):
        admin.create_topic(f"{topic}-{name}", partitions, 1, FOREVER)
        produce_all_kinds(cluster.bootstrap, f"{topic}-{name}", range(600), hours=100)  # more days than open files
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        given = options(cluster, tmp_path, pattern=f"{topic}-.", max_offsets_per_trigger=500)
        run(given)
        run(given)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    archive = tmp_path / "archive"
    expected = [row for name in "ab" for row in in_topic(cluster.bootstrap, f"{topic}-{name}")]
    assert len(expected) == 1200
    found = in_table(archive)
    assert found == expected
    table = DeltaTable(archive)
    assert table.metadata().partition_columns == ["topic", "date"]
    assert {str(row["date"]) for row in table.to_pyarrow_table(columns=["date"]).to_pylist()} == {
        f"2020-09-{day}" for day in range(13, 18)
    }
    frame = spark.read.format("delta").load(str(archive))
    assert frame.count() == 1200
    assert frame.where("date != cast(to_utc_timestamp(timestamp, 'UTC') as date)").count() == 0
    # Small files become one a day and topic; readers see the same before and after.
    many = files(archive)
    version = table.version()
    before_merging = Archive(spark, str(archive), DeltaSettings())
    assert before_merging.topics == [f"{topic}-a", f"{topic}-b"]
    one = before_merging.topic(f"{topic}-a")
    capsys.readouterr()
    run(options(cluster, tmp_path, compact=True))
    assert re.fullmatch(r"archive: \d+ small files merged into \d+, \d+\.\d s\n", capsys.readouterr().out)
    assert len(files(archive)) == 10 < len(many)
    assert in_table(archive) == found == in_table(archive, version)
    produce_all_kinds(cluster.bootstrap, f"{topic}-a", range(30))
    run(given)
    assert len(in_table(archive)) == 1230
    # Who has begun to read goes on with what there was.
    assert sum(one.ends.values()) == 600
    rows = one.rows({partition: (first, 10_000) for partition, first in one.firsts.items()})
    assert rows is not None
    assert rows.count() == 600


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_table_goes_on_without_its_checkpoint_and_without_its_history(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    table = f"delta.`{archive}`"

    def without_history() -> None:
        """As after the 30 days that Delta keeps it."""
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 30 days')")
        DeltaTable(archive).create_checkpoint()
        log = archive / "_delta_log"
        last = max(int(path.stem) for path in log.glob("*.json") if path.stem.isdecimal())
        for path in log.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) < last:
                path.unlink()
                path.with_suffix(".crc").unlink(missing_ok=True)

    def restored() -> None:
        found = DeltaTable(archive)
        found.restore(found.version() - 1)

    def emptied() -> None:
        DeltaTable(archive).delete()
        without_history()

    def nothing() -> None: ...

    def equal() -> bool:
        return in_table(archive) == in_topic(cluster.bootstrap, topic)

    run(given)
    for number, change in enumerate((nothing, restored, without_history, emptied)):
        change()
        shutil.rmtree(tmp_path / "checkpoint")
        produce_all_kinds(cluster.bootstrap, topic, range(number * 200, number * 200 + 200))
        run(given)
        assert equal()
    # One partition has more, and the query is told to begin earlier than the archive ends.
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"more", partition=1, timestamp_ms=FIRST_MS)
    shutil.rmtree(tmp_path / "checkpoint")
    run(options(cluster, tmp_path, topic=[topic], option=["startingTimestamp=0"]))
    assert equal()
    # The table was put back, and the checkpoint was not.
    produce_all_kinds(cluster.bootstrap, topic, range(100))
    run(given)
    restored()
    produce_all_kinds(cluster.bootstrap, topic, range(100))
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"goes on at offset \d+ of .*, and archive .* ends at \d+: .* remove the che"
        ):
            run(given)
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    assert equal()


@pytest.mark.long
def test_a_table_that_is_restored_while_it_is_written_to(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    send(cluster, topic, range(20))
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic], trigger="100ms")

    def restore_and_send() -> None:
        wait_until((archive / "_delta_log" / f"{1:020d}.json").exists, lambda: list(archive.glob("*")))
        spark.sql(f"RESTORE TABLE delta.`{archive}` TO VERSION AS OF 0")
        send(cluster, topic, range(20, 30))

    beside = started(restore_and_send)
    with pytest.raises(
        UserError, match="was restored to an earlier version while it was archived to; remove checkpoint"
    ):
        run(given)
    beside.join()
    shutil.rmtree(tmp_path / "checkpoint")
    run(options(cluster, tmp_path, topic=[topic]))
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


def test_a_topic_made_anew_does_not_go_into_the_table_of_the_old_one(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    given = options(cluster, tmp_path, topic=[topic], option=["failOnDataLoss=false"])
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(20))
    run(given)
    before = in_table(tmp_path / "archive")
    admin.delete_topic(topic)
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(50))
    for lost in (None, "checkpoint"):
        if lost is not None:
            shutil.rmtree(tmp_path / lost)
        with pytest.raises(UserError, match=f"{topic} was deleted and made anew since .*/archive was written"):
            run(given)
    assert in_table(tmp_path / "archive") == before
    # Of one that was made anew before anything of it was archived, there is no old one.
    both = options(cluster, tmp_path / "both", pattern=f"{topic}.*", option=["failOnDataLoss=false"])
    for _ in range(2):
        admin.create_topic(f"{topic}-empty", 1, 1)
        run(both)
        admin.delete_topic(f"{topic}-empty")
    admin.create_topic(f"{topic}-empty", 1, 1)
    send(cluster, f"{topic}-empty", range(7))
    run(both)
    rows = [*in_topic(cluster.bootstrap, topic), *in_topic(cluster.bootstrap, f"{topic}-empty")]
    assert in_table(tmp_path / "both" / "archive") == rows


@pytest.mark.timeout(900)
def test_two_archives_of_one_topic_into_one_table(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """One of them goes on, the other one ends with a sentence; the table has each record once."""
    admin.create_topic(topic, 2, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(2000))
    refused: list[str] = []

    def archive(number: int) -> None:
        checkpoint = str(tmp_path / f"checkpoint-{number}")
        try:
            run(options(cluster, tmp_path, topic=[topic], checkpoint=checkpoint, max_offsets_per_trigger=200))
        except UserError as error:
            refused.append(str(error))

    threads = [started(lambda number=number: archive(number)) for number in range(2)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert len(refused) <= 1, refused
    assert all("another archive pipeline writes to" in said for said in refused), refused
    assert in_table(tmp_path / "archive") == in_topic(cluster.bootstrap, topic)


def test_a_table_that_was_only_begun(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """By a process that was killed, or by another one that is about to make it."""
    admin.create_topic(topic, 1, 1, FOREVER)
    send(cluster, topic, range(10))
    archive = tmp_path / "archive"
    (archive / "_delta_log").mkdir(parents=True)
    run(options(cluster, tmp_path, topic=[topic]))
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)
    assert DeltaTable(archive).metadata().partition_columns == ["topic", "date"]
    (tmp_path / "other" / "archive").mkdir(parents=True)
    (tmp_path / "other" / "archive" / "letter.txt").touch()
    with pytest.raises(UserError, match="has letter.txt in it and is no archive: name another directory"):
        run(options(cluster, tmp_path / "other", topic=[topic]))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kill_9_of_the_archive_of_a_table(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    archive = tmp_path / "archive"
    arguments = ["--to", str(archive), "--checkpoint", str(tmp_path / "checkpoint"), "--topic", topic]
    arguments += ["--bootstrap", cluster.bootstrap, "--max-offsets-per-trigger", "700", "--compact-every", "4"]
    arguments += ["--conf", "spark.sql.shuffle.partitions=2"]

    def written() -> int:
        return len(list(archive.glob("topic=*/**/*.parquet")))

    def committed() -> int:
        return len(list((archive / "_delta_log").glob("*.json")))

    with pipeline_process("archive", tmp_path) as process:
        for number, count in enumerate((written, committed)):
            produce_all_kinds(cluster.bootstrap, topic, range(number * 1500, number * 1500 + 1500), hours=12)
            before = count()
            process.start([*arguments, "--trigger", "10ms"])
            process.until(lambda count=count, before=before: count() > before)  # type: ignore[misc]
            process.kill()
    run(options(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=700, compact_every=4))
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.timeout(900)
def test_archives_of_another_format(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """An archive stays what it is."""
    admin.create_topic(topic, 1, 1, FOREVER)
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"1", timestamp_ms=FIRST_MS)
    for kind, other in (ArchiveFormat.DELTA, ArchiveFormat.PARQUET), (ArchiveFormat.PARQUET, ArchiveFormat.DELTA):
        directory = tmp_path / kind
        run(options(cluster, directory, topic=[topic], format=kind))
        with pytest.raises(UserError, match=f"is an archive of another format: leave --format out, or say .* {kind}"):
            run(options(cluster, directory, topic=[topic], format=other))
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"2", timestamp_ms=FIRST_MS + HOUR_MS)
    for kind in ArchiveFormat:
        run(options(cluster, tmp_path / kind, topic=[topic]))
    assert in_table(tmp_path / "delta" / "archive") == in_topic(cluster.bootstrap, topic)
    assert len(list((tmp_path / "parquet" / "archive").glob("topic=*/**/*.parquet"))) == 2
    spark.range(3).write.format("delta").save(str(tmp_path / "other" / "archive"))
    with pytest.raises(UserError, match="is a table of something else: it has no columns of an archive"):
        run(options(cluster, tmp_path / "other", topic=[topic]))
    with pytest.raises(UserError, match="there is no archive in .*/nothing"):
        run(options(cluster, tmp_path, compact=True, to=str(tmp_path / "nothing")))


def test_a_table_is_put_together_in_tasks_for_what_it_has_become(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the session that a micro-batch is written with."""
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(3))
    sizes, told = [0, 1_000_000], []  # when it is opened; afterwards
    monkeypatch.setattr(snapshots, "checkpointed", lambda *_: sizes.pop(0) if len(sizes) > 1 else sizes[0])
    write = DeltaArchive._written

    def noted(self: DeltaArchive, frame: DataFrame, following: Archived) -> bool:
        told.append(frame.sparkSession.conf.get("spark.databricks.delta.snapshotPartitions"))
        return write(self, frame, following)

    monkeypatch.setattr(DeltaArchive, "_written", noted)
    run(options(cluster, tmp_path, topic=[topic]))
    assert told == ["50"]
