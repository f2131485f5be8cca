"""Streaming queries and consumer groups: offsets told to a group, by pipelines too, and a query that
begins where one has committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import available_now, send, wait_until, written
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rollups import HOURLY, SCHEMA, flight, options, send_json
from test_stream_read import in_memory, until

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Consumer
from highwater.spark.pipelines import archive, rollup
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.running.query_run import run_query

ReadStream = Callable[..., DataFrame]


def committed(admin: Admin, group: str) -> dict[int, int]:
    return {one.partition: each.offset for one, each in admin.list_group_offsets(group).items()}


def ends(admin: Admin, topic: str) -> dict[int, int]:
    return {one.partition: each.offset for one, each in admin.list_offsets([(topic, 0), (topic, 1)]).items()}


def test_offsets_are_told_to_a_group(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    """The last micro-batch's, too, without another one behind it; and nobody is a member for it."""
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(100))
    frame = read_stream(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40, commitOffsetsToGroup="told"
    )
    available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert committed(admin, "told") == ends(admin, topic)
    query = in_memory(frame, "told", tmp_path / "second")
    try:
        send(cluster, topic, range(100, 110))
        until(query, lambda: committed(admin, "told") == ends(admin, topic), "not committed")
        (group,) = admin.describe_groups(["told"])
        assert (group.state, group.members) == ("empty", ())
    finally:
        query.stop()


def test_a_group_with_members_does_not_fail_the_query(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(100))
    with Consumer(topic, bootstrap=cluster.bootstrap, group="taken", enable_auto_commit=False) as consumer:
        while len(consumer.assignment()) < 2:
            consumer.poll(timeout_ms=100)
        frame = read_stream(subscribe=topic, startingOffsets="earliest", commitOffsetsToGroup="taken")
        available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert written(tmp_path / "out") == list(range(100))
    assert committed(admin, "taken") == {}


def test_a_query_begins_where_a_group_has_committed(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(10), partition=0)
    send(cluster, topic, range(10, 20), partition=1)
    wait_until(lambda: not any(admin.alter_offsets("begun", {(topic, 0): 7}).values()), lambda: "not committed")

    def begun(name: str, **options: str) -> list[int]:
        frame = read_stream(subscribe=topic, startingOffsets="group:begun", **options)
        available_now(frame, tmp_path / name / "checkpoint", tmp_path / name / "out")
        return written(tmp_path / name / "out")

    assert begun("earliest") == [7, 8, 9, *range(10, 20)]
    assert begun("latest", startingOffsetsByGroupStrategy="latest") == [7, 8, 9]
    with pytest.raises(PySparkException, match=f"group 'begun' has committed nothing of {topic}-1"):
        begun("error", startingOffsetsByGroupStrategy="error")


def test_an_archive_tells_a_group_how_far_it_is(
    cluster: LocalCluster, admin: Admin, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(10))
    given = ArchiveOptions(
        bootstrap=cluster.bootstrap,
        topic=[topic],
        to=str(tmp_path / "archive"),
        format=ArchiveFormat.PARQUET,
        checkpoint=str(tmp_path / "checkpoint"),
        commit_offsets_to_group="archive",
    )
    archive.run(given)
    assert committed(admin, "archive") == ends(admin, topic)
    send(cluster, topic, range(10, 15))
    assert committed(admin, "archive") != ends(admin, topic)
    archive.run(given)
    assert committed(admin, "archive") == ends(admin, topic)


def test_a_rollups_dead_letters_do_not_tell_its_group(
    cluster: LocalCluster,
    admin: Admin,
    topic: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They read the same a second time, and what they had told would be further, or further back, than the sums."""
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        admin.create_topic(name, 1, 1)
    given = options(
        cluster,
        topic,
        tmp_path,
        to_topic=f"{topic}-out",
        dead_letter=f"{topic}-dead",
        schema=SCHEMA,
        commit_offsets_to_group="rollup",
        **HOURLY,
    )

    def only(wanted: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(rollup, "run_query", lambda name, *rest: run_query(name, *rest) if name == wanted else None)
            rollup.run(given)

    send_json(cluster, topic, [flight(0)])
    only("rollup")
    assert committed(admin, "rollup") == {0: 1}
    send_json(cluster, topic, [flight(1)])
    only("rollup dead letters")
    assert committed(admin, "rollup") == {0: 1}
    rollup.run(given)
    assert committed(admin, "rollup") == {0: 2}
