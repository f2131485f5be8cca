"""`--value-schema` and `--dead-letter` of `archive`: values as structs, and each record in one of the two places."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from archived import in_table, in_topic, parquet_files
from conftest import FOREVER
from deltalake import DeltaTable, write_deltalake
from pipeline_process import pipeline_process
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer
from highwater.errors import UserError
from highwater.spark.pipelines import replay
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions, run
from highwater.spark.pipelines.files.lease import checkpoint_lease
from highwater.spark.pipelines.typed_values.dead_letters import DeadLetters
from highwater.spark.pipelines.verify import VerifyOptions, verify

SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}},
}
HOUR_MS = 3_600_000


def produce(cluster: LocalCluster, topic: str, numbers: range) -> None:
    """Every tenth value is bad, and one of twenty a tombstone."""
    values = [None if n % 20 == 5 else b"?" if n % 10 == 0 else b'{"id":%d}' % n for n in numbers]
    table = pa.table(
        {
            "key": [str(n) for n in numbers],
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([HOUR_MS + n for n in numbers], pa.int64()),
            "headers": pa.array([[{"key": "h", "value": b"x"}]] * len(numbers)),
        }
    )
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(topic, table, timestamp_column="timestamp", headers_column="headers")


def options(cluster: LocalCluster, topic: str, directory: Path, **more: Any) -> ArchiveOptions:
    (directory / "schema.json").write_text(json.dumps(SCHEMA))
    given: dict[str, Any] = {
        "topic": [topic],
        "to": str(directory / "archive"),
        "checkpoint": str(directory / "checkpoint"),
        "value_schema": str(directory / "schema.json"),
        "dead_letter": f"{topic}-dead",
        **more,
    }
    return ArchiveOptions(bootstrap=cluster.bootstrap, **given)


def headers_of(row: dict[str, Any]) -> dict[str, str]:
    return {pair["key"]: pair["value"].decode() for pair in row["headers"]}


def dead_keys(cluster: LocalCluster, topic: str) -> list[int]:
    return sorted(int(row["key"]) for row in in_topic(cluster.bootstrap, f"{topic}-dead"))


@pytest.fixture
def topics(admin: Admin, topic: str) -> str:
    admin.create_topic(topic, 2, 1, FOREVER)
    admin.create_topic(f"{topic}-dead", 2, 1, FOREVER)
    return topic


@pytest.mark.timeout(900)
def test_a_table_of_structs(cluster: LocalCluster, topics: str, spark: SparkSession, tmp_path: Path) -> None:
    produce(cluster, topics, range(100))
    run(options(cluster, topics, tmp_path))
    rows = in_table(tmp_path / "archive")
    assert sorted(int(row["key"]) for row in rows) == [n for n in range(100) if n % 10]
    assert [row["value"] for row in rows if row["key"] in (b"5", b"7")].count(None) == 1
    assert [row["value"] for row in rows if row["key"] == b"7"] == [{"id": 7, "at": None}]

    (dead,) = [row for row in in_topic(cluster.bootstrap, f"{topics}-dead") if row["key"] == b"30"]
    assert dead["value"] == b"?"
    found = headers_of(dead)
    (sent,) = [row for row in in_topic(cluster.bootstrap, topics) if row["key"] == b"30"]
    assert found == {
        "h": "x",
        "highwater.error": "it is no JSON: Expecting value at character 0",
        "highwater.topic": topics,
        "highwater.partition": str(sent["partition"]),
        "highwater.offset": str(sent["offset"]),
        "highwater.timestamp": str(HOUR_MS + 30),
    }
    assert dead_keys(cluster, topics) == list(range(0, 100, 10))

    produce(cluster, topics, range(100, 200))
    run(options(cluster, topics, tmp_path))
    assert len(in_table(tmp_path / "archive")) == 180
    assert dead_keys(cluster, topics) == list(range(0, 200, 10))

    with pytest.raises(UserError, match="archive has values with a type: say --value-schema"):
        run(options(cluster, topics, tmp_path, value_schema=None, dead_letter=None))
    with pytest.raises(UserError, match="archive was written with --value-schema: it has not the bytes"):
        replay.run(
            replay.ReplayOptions(
                archive=str(tmp_path / "archive"),
                to=topics,
                checkpoint=str(tmp_path / "r"),
                bootstrap=cluster.bootstrap,
            )
        )

    check = VerifyOptions(archive=str(tmp_path / "archive"), bootstrap=cluster.bootstrap)
    with pytest.raises(UserError, match="archive has values with a type: say --value-schema"):
        verify(check)
    check = replace(check, value_schema=str(tmp_path / "schema.json"))
    verified = verify(check)
    assert sum(one.compared for one in verified) == 180
    assert sum(one.unfit + one.earlier for one in verified) == 20  # the first one of all is before the archive
    assert not any(one.problem for one in verified)
    table = DeltaTable(tmp_path / "archive")
    table.delete("key = X'33'")  # 3
    rows = table.to_pyarrow_table()
    changed = rows.filter(pc.equal(rows["key"].cast(pa.binary()), b"7"))
    table.delete("key = X'37'")  # 7
    place, at = changed.schema.get_field_index("value"), datetime(2026, 11, 21, 2, 0, 0, 5, UTC)
    write_deltalake(table, changed.set_column(place, "value", pa.array([{"id": 7, "at": at}])), mode="append")
    problems = [one.problem for one in verify(check) if one.problem]
    assert sorted(re.findall(r"1 \w+", " ".join(problems))) == ["1 different", "1 lacking"]

    elsewhere = {"to": str(tmp_path / "other"), "checkpoint": str(tmp_path / "c"), "dead_letter": None}
    with pytest.raises(
        UserError, match=r"offset \d+: the value cannot be read as json: .*; correct --value-schema, or"
    ):
        run(options(cluster, topics, tmp_path, **elsewhere))


def test_plain_files_of_structs_are_verified(
    cluster: LocalCluster, topics: str, spark: SparkSession, tmp_path: Path
) -> None:
    produce(cluster, topics, range(100))
    run(options(cluster, topics, tmp_path, format=ArchiveFormat.PARQUET))
    check = VerifyOptions(
        archive=str(tmp_path / "archive"), bootstrap=cluster.bootstrap, value_schema=str(tmp_path / "schema.json")
    )
    verified = verify(check)
    assert sum(one.compared for one in verified) == 90
    assert not any(one.problem for one in verified)
    (path,) = [one for one in parquet_files(tmp_path / "archive") if "/00000-" in one]
    table = pq.read_table(tmp_path / "archive" / path, partitioning=None)
    place = table.schema.get_field_index("value")
    field = table.schema.field(place)
    changed = [row and {**row, "id": -1} for row in table["value"].to_pylist()]
    pq.write_table(table.set_column(place, field, pa.array(changed, field.type)), tmp_path / "archive" / path)
    problems = [one.problem for one in verify(check) if one.problem]
    assert re.findall(r"^(\d+) different", " ".join(problems)) == [str(len([one for one in changed if one]))]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kill_9_of_an_archive_with_dead_letters(
    cluster: LocalCluster, topics: str, spark: SparkSession, tmp_path: Path
) -> None:
    given = options(cluster, topics, tmp_path, format=ArchiveFormat.PARQUET)
    line = ["--topic", topics, "--to", given.to, "--checkpoint", given.checkpoint, "--bootstrap", cluster.bootstrap]
    line += ["--format", "parquet", "--value-schema", str(given.value_schema), "--dead-letter", f"{topics}-dead"]
    line += ["--max-offsets-per-trigger", "50"]
    produce(cluster, topics, range(400))
    with pipeline_process("archive", tmp_path) as archive:
        archive.start(line)
        archive.until(lambda: len(dead_keys(cluster, topics)) >= 5, 0.05)
        archive.kill()
        archive.start(line)
        archive.end()
    assert dead_keys(cluster, topics) == list(range(0, 400, 10))
    run(options(cluster, topics, tmp_path, compact=True))
    files = parquet_files(tmp_path / "archive")
    assert len(files) == 1
    rows = pq.read_table(tmp_path / "archive" / files[0], partitioning=None).to_pylist()
    assert sorted(int(row["key"]) for row in rows) == [n for n in range(400) if n % 10]
    assert {row["value"] and row["value"]["id"] == int(row["key"]) for row in rows} == {True, None}


def test_a_micro_batch_that_is_run_again(
    cluster: LocalCluster, topics: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Others write to the topic, too."""
    produce(cluster, f"{topics}-dead", range(3))
    lease = checkpoint_lease(spark, "archive pipeline", str(tmp_path))
    letters = DeadLetters(spark, options(cluster, topics, tmp_path), str(tmp_path / "notes"), lease)
    bad = spark.range(6).selectExpr(
        "'t' topic", "cast(id % 2 as int) partition", "id offset", "timestamp_millis(id) timestamp",
        "cast('k' as binary) key", "cast('?' as binary) rawValue", "'why' error",
        "cast(null as array<struct<key:string,value:binary>>) headers",
    )  # fmt: skip
    with lease.held():
        letters.write(bad.where("offset < 4"), 7)
        produce(cluster, f"{topics}-dead", range(3))
        letters.write(bad, 7)
        letters.write(bad, 7)
    ours = [headers_of(row) for row in in_topic(cluster.bootstrap, f"{topics}-dead") if row["key"] == b"k"]
    assert sorted(int(one["highwater.offset"]) for one in ours) == list(range(6))
