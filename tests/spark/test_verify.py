"""`highwater pipeline verify`: an archive against its topics, and what it says of each way in which they may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archived import produce_all_kinds
from conftest import FOREVER, send
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.errors import UserError
from highwater.spark.pipelines import archive
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.verify import Verified, VerifyOptions, differences, run, verify


def archived(cluster: LocalCluster, directory: Path, topics: list[str], kind: ArchiveFormat) -> str:
    to, checkpoint = str(directory / "archive"), str(directory / "checkpoint")
    archive.run(ArchiveOptions(bootstrap=cluster.bootstrap, topic=topics, to=to, checkpoint=checkpoint, format=kind))
    return to


def options(cluster: LocalCluster, directory: str, **more: Any) -> VerifyOptions:
    return VerifyOptions(archive=directory, bootstrap=cluster.bootstrap, **more)


@pytest.mark.parametrize("kind", list(ArchiveFormat))
def test_what_the_topics_have_is_in_the_archive(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    delete_records: Callable[[str, int, int], None],
    capsys: pytest.CaptureFixture[str],
    kind: ArchiveFormat,
) -> None:
    other = f"{topic}-other"
    admin.create_topic(topic, 3, 1, FOREVER)
    admin.create_topic(other, 1, 1)
    produce_all_kinds(cluster.bootstrap, topic, range(600))
    send(cluster, other, range(10))
    directory = archived(cluster, tmp_path, [topic, other], kind)
    delete_records(other, 0, 4)
    send(cluster, other, range(7))
    run(options(cluster, directory))
    assert "610 archived records of 4 partitions: each once, and the same as the 606 that" in capsys.readouterr().out
    run(options(cluster, directory, topic=[other], json=True))
    (said,) = map(json.loads, capsys.readouterr().out.splitlines())
    expected = {"topic": other, "partition": 0, "first": 0, "end": 10, "archived": 10, "compared": 6, "later": 7}
    assert {name: said[name] for name in expected} == expected
    assert said["problem"] is None
    delete_records(other, 0, 12)  # nothing in common is left
    (found,) = verify(options(cluster, directory, topic=[other]))
    assert (found.compared, found.later, found.problem) == (0, 5, "")


def test_what_differs_is_found(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(300))
    directory = archived(cluster, tmp_path, [topic], ArchiveFormat.DELTA)
    table = DeltaTable(directory)

    def found() -> dict[int, str]:
        return {one.partition: one.problem for one in verify(options(cluster, directory))}

    assert found() == {0: "", 1: "", 2: ""}
    table.delete("partition = 0 and offset in (7, 9)")
    assert found() == {0: "2 lacking; the first one at offset 7", 1: "", 2: ""}
    end = table.to_pyarrow_table(filters=[("partition", "=", 0)])["offset"].to_pylist()
    table.delete(f"partition = 0 and offset >= {max(end) - 1}")  # what the archive says that it has at its end
    assert found()[0] == "4 lacking; the first one at offset 7"
    table.restore(table.version() - 1)
    table.update({"timestampType": "7"}, predicate="partition = 1 and offset = 5")
    rows = table.to_pyarrow_table(filters=[("partition", "=", 2), ("offset", "in", [3, 4])])
    assert rows.num_rows == 2
    write_deltalake(directory, rows, mode="append")
    assert found() == {
        0: "2 lacking; the first one at offset 7",
        1: "1 different; the first one at offset 5",
        2: "2 more than once; the first one at offset 3",
    }
    table.update_incremental()
    table.delete("partition = 2 and offset = 9")
    assert found()[2] == "2 more than once, 1 lacking; the first one at offset 3"
    with pytest.raises(UserError, match=r"^3 of 3 partitions are not as their topic is \(299 archived records of 3 "):
        run(options(cluster, directory))


def test_a_topic_made_anew_is_another_one(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(20))
    directory = archived(cluster, tmp_path, [topic], ArchiveFormat.DELTA)
    admin.delete_topic(topic)
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(100, 108))
    with pytest.raises(UserError, match=f"^{topic} was deleted and made anew since "):
        verify(options(cluster, directory))


def test_what_a_compacted_topic_has_no_longer_is_no_fault() -> None:
    assert Verified("t", 0, added=3, at=1, compacted=True).problem == ""
    assert Verified("t", 0, added=3, at=1).problem == "3 not in the topic; the first one at offset 1"


def test_the_first_offset_is_that_of_a_problem() -> None:
    found = {"lacking": (2, 100), "added": (3, 1)}
    assert differences(found, 5, compacted=True) == {"lacking": 2, "added": 3, "different": 0, "at": 5}
    assert differences(found, None, compacted=True)["at"] == 100
    assert differences(found, 5, compacted=False)["at"] == 1
    assert differences({}, 5, compacted=False)["at"] == 5
    assert differences({}, None, compacted=False) == {"lacking": 0, "added": 0, "different": 0, "at": None}


def test_what_is_refused(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no archive"):
        run(options(cluster, str(tmp_path)))
