"""Transactions that replace files of an archive's table once more: an engine that does not look for that, as delta-rs,
commits them, and the table has rows twice. It is said, wherever the table is used, until it is mended."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archived import in_table, in_topic
from conftest import FOREVER, send
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.errors import UserError
from highwater.spark.pipelines import replay, rollup, verify
from highwater.spark.pipelines.archive import ArchiveOptions, run
from highwater.spark.pipelines.archives import delta
from highwater.spark.pipelines.archives.conflicts import Conflicts
from highwater.spark.pipelines.archives.history import Transaction
from highwater.spark.pipelines.archives.table_log import TableLog
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.replay import ReplayOptions
from highwater.spark.pipelines.rollup import RollupOptions
from highwater.spark.pipelines.verify import VerifyOptions

pytestmark = pytest.mark.timeout(1200)  # many small jobs of Spark

DELTA_RS = r"version {} of .*/archive \(OPTIMIZE by delta-rs:\S+\) replaces files that version {} had replaced already"


def options(cluster: LocalCluster, directory: Path, **more: Any) -> ArchiveOptions:
    given = {"to": str(directory / "archive"), "checkpoint": str(directory / "checkpoint"), **more}
    return ArchiveOptions(bootstrap=cluster.bootstrap, **given)


def merged_by_both(spark: SparkSession, archive: Path) -> None:
    """Both begin at the same version."""
    stale = DeltaTable(archive)
    spark.sql(f"OPTIMIZE delta.`{archive}`").collect()
    stale.optimize.compact()


def do_as_it_says(directory: Path, said: str) -> None:
    """Other than the version it names nothing of the table, and the checkpoint that it names."""
    found = re.search(r"RESTORE it to version (\d+); remove checkpoint (\S+), and start again", said)
    assert found is not None, said
    assert found[2] == str(directory / "checkpoint")
    DeltaTable(directory / "archive").restore(int(found[1]))
    shutil.rmtree(directory / "checkpoint")


def twice(cluster: LocalCluster, topic: str, archive: Path) -> bool:
    return len(in_table(archive)) == 2 * len(in_topic(cluster.bootstrap, topic))


def test_files_merged_by_two_engines_at_once(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Between two starts: the next one says so, and whoever reads the archive."""
    admin.create_topic(topic, 1, 1, FOREVER)
    admin.create_topic(f"{topic}-again", 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    for _ in range(2):
        send(cluster, topic, range(20))
        run(given)
    merged_by_both(spark, archive)
    assert twice(cluster, topic, archive)
    wrong = DELTA_RS.format(4, 3)
    for _ in range(2):
        with pytest.raises(UserError, match=wrong) as told:
            run(given)
    with pytest.raises(UserError, match=wrong):
        run(options(cluster, tmp_path, compact=True))
    of_reader = f"{wrong}.*: RESTORE it to version 3; remove the checkpoint of the pipeline that archives to it"
    at = {"bootstrap": cluster.bootstrap, "checkpoint": str(tmp_path / "reader")}
    with pytest.raises(UserError, match=of_reader):
        replay.run(ReplayOptions(archive=str(archive), to=f"{topic}-again", **at))
    with pytest.raises(UserError, match=of_reader):
        rollup.run(
            RollupOptions(
                archive=str(archive), topic=[topic], count=True, to_topic=f"{topic}-again", schema="a INT", **at
            )
        )
    checked = VerifyOptions(archive=str(archive), bootstrap=cluster.bootstrap)
    (found,) = verify.verify(checked)
    assert found.problem == "40 more than once; the first one at offset 0"
    with pytest.raises(UserError, match=f"^1 of 1 partition is not as its topic is .*; {of_reader}"):
        verify.run(checked)
    # Mended, and merged by both again before the archive has a transaction.
    DeltaTable(archive).restore(2)
    merged_by_both(spark, archive)
    with pytest.raises(UserError, match=DELTA_RS.format(7, 6)) as told:
        run(given)
    send(cluster, topic, range(5))
    do_as_it_says(tmp_path, str(told.value))
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)
    verify.run(checked)
    run(options(cluster, tmp_path, compact=True))


@pytest.mark.long
def test_files_merged_by_two_engines_while_a_micro_batch_is_written(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the pipeline has looked at the table, and before its transaction, which the remedy undoes."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    for _ in range(2):
        send(cluster, topic, range(20))
        run(given)
    waiting, asked = [merged_by_both], delta._last_commit

    def merged_first(session: SparkSession) -> int:
        if waiting:
            waiting.pop()(spark, archive)
        return asked(session)

    monkeypatch.setattr(delta, "_last_commit", merged_first)
    send(cluster, topic, range(7))
    for _ in range(2):
        with pytest.raises(UserError, match=DELTA_RS.format(4, 3)) as told:
            run(given)
    assert DeltaTable(archive).version() == 5
    do_as_it_says(tmp_path, str(told.value))
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.long
def test_files_merged_by_two_engines_between_two_micro_batches(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one is not written. Delta-rs began before the micro-batch that the pipeline has looked at."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive = tmp_path / "archive"
    given = options(cluster, tmp_path, topic=[topic], max_offsets_per_trigger=10, compact_every=1)
    steps: list[Callable[[], object]] = []

    def step(_: delta.DeltaArchive) -> None:
        if len(steps) == 0:
            steps.append(DeltaTable(archive).optimize.compact)
        elif len(steps) == 1:
            stale = DeltaTable(archive)  # of two files
            steps.append(stale.optimize.compact)
            spark.sql(f"OPTIMIZE delta.`{archive}`").collect()
        elif len(steps) == 2:
            steps.append(steps[1])
            steps[1]()

    monkeypatch.setattr(delta.DeltaArchive, "compact", step)
    send(cluster, topic, range(50))
    with pytest.raises(UserError, match=DELTA_RS.format(5, 3)):
        run(given)
    monkeypatch.undo()
    with pytest.raises(UserError, match="RESTORE it to version 4;") as told:
        run(given)
    do_as_it_says(tmp_path, str(told.value))
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)


@pytest.mark.long
def test_what_others_do_beside_each_other_rightly(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Each is begun before transactions that are committed in front of it."""
    admin.create_topic(topic, 1, 1, FOREVER)
    archive, given = tmp_path / "archive", options(cluster, tmp_path, topic=[topic])
    others: list[Callable[[DeltaTable], object]] = [
        lambda stale: stale.optimize.compact(),
        lambda stale: stale.vacuum(0, dry_run=False, enforce_retention_duration=False),
    ]
    send(cluster, topic, range(10))
    run(given)
    for other in others:
        stale = DeltaTable(archive)
        for _ in range(2):
            send(cluster, topic, range(10))
            run(given)
        other(stale)
        before = DeltaTable(archive)
        run(given)  # all is there, and whole
        spark.sql(f"OPTIMIZE delta.`{archive}`").collect()
        before.create_checkpoint()
        run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)
    # Files that were merged are there again.
    stale = DeltaTable(archive)
    stale.restore(stale.version() - 1)
    stale = DeltaTable(archive)
    send(cluster, topic, range(10))
    run(given)
    stale.optimize.compact()
    run(given)
    assert in_table(archive) == in_topic(cluster.bootstrap, topic)
    verify.run(VerifyOptions(archive=str(archive), bootstrap=cluster.bootstrap))


def add(path: str, vector: str | None = None) -> dict[str, Any]:
    return {"add": _file(path, vector)}


def remove(path: str, vector: str | None = None) -> dict[str, Any]:
    return {"remove": _file(path, vector)}


def _file(path: str, vector: str | None) -> dict[str, Any]:
    deleted = None if vector is None else {"storageType": "u", "pathOrInlineDv": vector, "offset": 1}
    return {"path": path, "dataChange": False, **({} if deleted is None else {"deletionVector": deleted})}


A, B, C = "topic=t/date=2020-01-01/a.parquet", "topic=t/date=2020-01-01/b.parquet", "topic=t/date=2020-01-01/c.parquet"


@pytest.mark.parametrize(
    ("log", "before"),
    [
        ([[], [remove(A), add(B)], [remove(A), add(C)]], 1),
        ([[], [remove(A), add(B)], [], [remove(A), add(C)]], 1),
        ([[], [remove(A)], [add(A)], [remove(A), add(C)]], None),
        ([[], [remove(A), add(B)], [remove(B), add(A)], [remove(A), add(C)]], None),
        ([[], [remove(A)], [add(A)], [remove(A)], [remove(A), add(C)]], 3),
        ([[], [remove(A), add(A, "1")], [remove(A, "1"), add(C)]], None),
        ([[], [remove(A), add(A, "1")], [remove(A), add(A, "2")]], 1),
        ([[], [remove(A), add(A, "1")], [remove(A, "1"), add(A, "2")], [remove(A, "2"), add(C)]], None),
        ([[], [remove(B), add(C)], [remove(A), add(C)]], None),
        ([[], [remove(A), add(B)], [remove(A)]], None),  # nothing comes of it
        ([[], [], [add(C)]], None),
        ([[], [remove(A), add(B)], [{"commitInfo": {}}]], None),
    ],
)
def test_what_replaces_files_once_more(
    spark: SparkSession, tmp_path: Path, log: list[list[dict[str, Any]]], before: int | None
) -> None:
    """A file that is added again may be taken out again, and one with other rows deleted is another file."""
    (tmp_path / "_delta_log").mkdir()
    for number, actions in enumerate(log):
        lines = "".join(json.dumps(one) + "\n" for one in [{"commitInfo": {"operation": "OPTIMIZE"}}, *actions])
        (tmp_path / "_delta_log" / f"{number:020d}.json").write_text(lines)
    last = Transaction(len(log) - 1, None, 0)
    conflicts = Conflicts(spark, TableLog(HadoopFiles(spark, str(tmp_path)), str(tmp_path)))
    found = conflicts.first([last], -1)
    assert (None if found is None else found.before) == before
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()  # as Delta does after 30 days
    assert (conflicts.first([last], -1) is None) == (before in (None, 1))
