"""Archives that were put back, restored or removed under a pipeline: what that took is not passed over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archived import in_archive, in_table, in_topic
from conftest import FOREVER, delete_records_before, send
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.errors import UserError
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions, run
from highwater.spark.pipelines.archives import delta


def options(cluster: LocalCluster, directory: Path, **more: Any) -> ArchiveOptions:
    given = {"to": str(directory / "archive"), "checkpoint": str(directory / "checkpoint"), **more}
    return ArchiveOptions(bootstrap=cluster.bootstrap, **given)


def once_while_writing(monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    """After the pipeline has looked at the table, and before its transaction."""
    waiting, before = [what], delta._last_commit

    def asked(session: SparkSession) -> int:
        if waiting:
            waiting.pop()()
        return before(session)

    monkeypatch.setattr(delta, "_last_commit", asked)


@pytest.mark.long
def test_a_table_restored_to_before_all_of_it(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """The checkpoint is beyond a partition that the table does not know any more."""
    admin.create_topic(topic, 1, 1, FOREVER)
    send(cluster, topic, range(20))
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    run(given)
    DeltaTable(archive).restore(0)
    send(cluster, topic, range(10))
    for _ in range(2):
        with pytest.raises(UserError, match=rf"goes on at offset 20 of {topic}-0, and archive .* ends at 0: .* remove"):
            run(given)
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.parametrize("kind", list(ArchiveFormat))
def test_an_archive_put_back_to_before_a_topic(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, kind: ArchiveFormat
) -> None:
    archive = tmp_path / "archive"
    for number, name in enumerate(("a", "b")):
        admin.create_topic(f"{topic}-{name}", 1, 1, FOREVER)
        send(cluster, f"{topic}-{name}", range(20))
        run(options(cluster, tmp_path, pattern=f"{topic}-.", format=kind))
        if number == 0:
            shutil.copytree(archive, tmp_path / "backup")
    shutil.rmtree(archive)
    shutil.copytree(tmp_path / "backup", archive)
    send(cluster, f"{topic}-b", range(10))
    with pytest.raises(UserError, match=rf"goes on at offset 20 of {topic}-b-0, and archive .* ends at 0: .* remove"):
        run(options(cluster, tmp_path, pattern=f"{topic}-."))
    shutil.rmtree(tmp_path / "checkpoint")
    run(options(cluster, tmp_path, pattern=f"{topic}-."))
    found = in_table(archive) if kind is ArchiveFormat.DELTA else in_archive(archive)
    assert found == [row for name in "ab" for row in in_topic(cluster.bootstrap, f"{topic}-{name}")]


@pytest.mark.parametrize("kind", list(ArchiveFormat))
def test_an_archive_put_back_where_nothing_new_comes(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, kind: ArchiveFormat
) -> None:
    """No micro-batch is begun that would find that it leaves a gap."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic], format=kind)
    send(cluster, topic, range(20))
    run(given)
    shutil.copytree(archive, tmp_path / "backup")
    send(cluster, topic, range(10))
    run(given)
    run(given)  # all is there
    shutil.rmtree(archive)
    shutil.copytree(tmp_path / "backup", archive)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"goes on at offset 30 of {topic}-0, and .* ends at 20: .* remove"):
            run(given)
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    found = in_table(archive) if kind is ArchiveFormat.DELTA else in_archive(archive)
    assert found == in_topic(cluster.bootstrap, topic)


@pytest.mark.long
def test_an_older_checkpoint_where_the_topic_has_been_trimmed_since(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """The archive has what the topic lost: not to read past it, but to go on where the archive ends."""
    admin.create_topic(topic, 1, 1, FOREVER)
    given, checkpoint = options(cluster, tmp_path, topic=[topic]), tmp_path / "checkpoint"
    send(cluster, topic, range(20))
    run(given)
    shutil.copytree(checkpoint, tmp_path / "older")
    send(cluster, topic, range(20))
    run(given)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "older", checkpoint)
    send(cluster, topic, range(5))
    expected = in_topic(cluster.bootstrap, topic)
    delete_records_before(cluster.bootstrap, topic, 0, 30)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"at offset 20 of {topic}-0, which begins at 30 .* up to 40: remove"):
            run(given)
    shutil.rmtree(checkpoint)
    run(given)
    assert in_table(tmp_path / "archive") == expected


def test_a_micro_batch_that_is_done_again_where_the_topic_has_been_trimmed_since(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """It is archived: nothing is read."""
    admin.create_topic(topic, 1, 1, FOREVER)
    given, commits = options(cluster, tmp_path, topic=[topic]), tmp_path / "checkpoint" / "commits"
    send(cluster, topic, range(20))
    run(given)
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    send(cluster, topic, range(5))
    expected = in_topic(cluster.bootstrap, topic)
    delete_records_before(cluster.bootstrap, topic, 0, 20)
    run(given)
    assert in_table(tmp_path / "archive") == expected


@pytest.mark.parametrize("kind", list(ArchiveFormat))
def test_a_query_that_begins_at_the_end_of_a_partition(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, kind: ArchiveFormat
) -> None:
    """That the archive knows nothing of it by then is no gap."""
    admin.create_topic(topic, 2, 1, FOREVER)
    for partition in range(2):
        send(cluster, topic, range(5), partition=partition)
    given = options(cluster, tmp_path, topic=[topic], starting_offsets="latest", format=kind)
    run(given)
    for partition in (0, 1):
        send(cluster, topic, range(3), partition=partition)
        run(given)
    found = in_table(tmp_path / "archive") if kind is ArchiveFormat.DELTA else in_archive(tmp_path / "archive")
    assert [row["offset"] for row in found] == [5, 6, 7, 5, 6, 7]


@pytest.mark.long
def test_a_table_restored_while_a_micro_batch_is_written(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    for _ in range(2):
        send(cluster, topic, range(20))
        run(given)
    send(cluster, topic, range(20))
    once_while_writing(monkeypatch, lambda: DeltaTable(archive).restore(1))
    for _ in range(2):  # also where the first one could not say so any more
        with pytest.raises(UserError, match="was restored .*, and version 4 does not go on where 3 ends: RESTORE"):
            run(given)
    DeltaTable(archive).restore(3)
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.long
@pytest.mark.parametrize("put_back", [False, True])
def test_a_table_removed_while_a_micro_batch_is_written(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    put_back: bool,
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    for number in range(3):
        send(cluster, topic, range(20))
        run(given)
        if number == 0:
            shutil.copytree(archive, tmp_path / "backup")

    def removed() -> None:
        shutil.rmtree(archive)
        if put_back:
            shutil.copytree(tmp_path / "backup", archive)

    send(cluster, topic, range(20))
    once_while_writing(monkeypatch, removed)
    for _ in range(2):
        with pytest.raises(UserError, match="was removed, or put back, while it was archived to"):
            run(given)
    shutil.rmtree(archive)
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.long
def test_a_transaction_that_another_process_has_replaced(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a rename on a local disk can, in the moment after Delta has looked whether the number is taken."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    send(cluster, topic, range(20))
    run(given)
    send(cluster, topic, range(10))
    asked = delta._last_commit

    def replaced(session: SparkSession) -> int:
        version = asked(session)
        if version == 2:
            log = archive / "_delta_log"
            (log / f"{version:020d}.json").write_text('{"commitInfo": {"operation": "OPTIMIZE"}}\n')
            (log / f".{version:020d}.json.crc").unlink()
        return version

    with monkeypatch.context() as patched:
        patched.setattr(delta, "_last_commit", replaced)
        with pytest.raises(UserError, match="version 2 of .* is not what was written: another process wrote to"):
            run(given)
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # another process has none
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.long
def test_a_transaction_that_was_replaced_before_the_last_one(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """By a process that stood still between its look and its rename for longer than the next micro-batch took."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    for _ in range(3):
        send(cluster, topic, range(10))
        run(given)
    log = archive / "_delta_log"
    (log / f"{2:020d}.json").write_text('{"commitInfo": {"operation": "OPTIMIZE"}}\n')
    for left in log.glob("*.crc"):
        left.unlink()
    for left in log.glob(".*.crc"):
        left.unlink()
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # another process has none
    send(cluster, topic, range(5))
    for _ in range(2):
        with pytest.raises(UserError, match="transaction 2 of the .* was lost: .* RESTORE it to version 1; remove"):
            run(given)
    DeltaTable(archive).restore(1)
    shutil.rmtree(tmp_path / "checkpoint")
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


def test_files_that_others_merge_and_remove_at_once(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before a pipeline on several machines looks whether its driver sees them: that is not what it looks for."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, looked = tmp_path / "archive", delta.DeltaArchive._check_files

    def merged_first(self: delta.DeltaArchive, version: int) -> None:
        DeltaTable(archive).optimize.compact()
        DeltaTable(archive).vacuum(0, dry_run=False, enforce_retention_duration=False)
        looked(self, version)

    monkeypatch.setattr(delta.DeltaArchive, "_may_be_of_each_machine", True)
    monkeypatch.setattr(delta.DeltaArchive, "_check_files", merged_first)
    for _ in range(2):
        send(cluster, topic, range(20))
        run(options(cluster, tmp_path, topic=[topic]))
    assert len(list(archive.glob("topic=*/**/*.parquet"))) == 1
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.parametrize("merged", [True, False])
def test_a_compaction_that_finds_a_file_gone(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    merged: bool,
) -> None:
    """Others have merged and removed what it was to merge: it is done. A file that nobody took out is lost."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive = tmp_path / "archive"

    def overtaken(self: delta.DeltaArchive) -> None:
        table = DeltaTable(archive)
        before = spark.read.format("delta").option("versionAsOf", table.version()).load(str(archive))
        if merged:
            table.optimize.compact()
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        else:
            next(archive.glob("topic=*/**/*.parquet")).unlink()
        before.collect()

    given = options(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=10, compact_every=2)
    monkeypatch.setattr(delta.DeltaArchive, "compact", overtaken)
    send(cluster, topic, range(40))
    if merged:
        run(given)
        assert in_table(archive) == in_topic(cluster.bootstrap, topic)
    else:
        with pytest.raises(Exception, match="does not exist|FILE_NOT_EXIST"):
            run(given)
