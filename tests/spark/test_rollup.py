"""`highwater pipeline rollup`: windows over JSON, compared with the same sums made in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from archived import in_topic
from pipeline_process import pipeline_process
from pyspark.sql import SparkSession
from rollups import HOURLY, SCHEMA, expected, flight, latest, options, records, send_json

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer
from highwater.errors import UserError
from highwater.spark.pipelines import rollup
from highwater.spark.pipelines.files.lease import checkpoint_lease
from highwater.spark.pipelines.rollup import BadRecords, TopicSink, run
from highwater.spark.pipelines.running.query_run import run_query

pytestmark = pytest.mark.timeout(1200)  # many small jobs of Spark


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_windows_are_kept_up_to_date_in_a_topic(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    admin.create_topic(f"{topic}-out", 2, 1)
    rows = [flight(number) for number in range(300)]
    given = options(cluster, topic, tmp_path, to_topic=f"{topic}-out", **HOURLY)  # the schema is found in the records
    send_json(cluster, topic, rows[:200])
    run(given)
    assert latest(cluster, f"{topic}-out") == expected(rows[:200])
    count = len(records(cluster, f"{topic}-out"))
    run(given)
    assert len(records(cluster, f"{topic}-out")) == count  # nothing changed
    send_json(cluster, topic, rows[200:])
    run(given)
    assert latest(cluster, f"{topic}-out") == expected(rows)
    with pytest.raises(UserError, match="--schema is not the one that .* was begun with, struct<carrier:string,delay:"):
        run(options(cluster, topic, tmp_path, to_topic=f"{topic}-out", schema="carrier STRING", count=True))


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_windows_that_are_over_are_written_once(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, kind: str
) -> None:
    admin.create_topic(topic, 1, 1)
    rows = [flight(number) for number in range(200)]
    hourly = {**HOURLY, "watermark": "10m", "schema": SCHEMA, "sum": ["delay"]}
    out = {"to_table" if kind == "delta" else "to_parquet": str(tmp_path / "out")}
    given = options(cluster, topic, tmp_path, **out, **hourly)
    send_json(cluster, topic, rows)
    run(given)
    send_json(cluster, topic, [flight(0, minutes=10 * 60)])  # time goes on
    run(given)
    run(given)
    found = spark.read.format(kind).load(str(tmp_path / "out")).collect()
    assert len(found) == len({(row.start, row.carrier) for row in found})
    got = {(row.start.strftime("%Y-%m-%dT%H:%M:%S.000Z"), row.carrier): (row["count"], row.mean_delay) for row in found}
    assert got == expected(rows)
    assert sum(row.sum_delay for row in found) == sum(row["delay"] for row in rows)
    if kind == "delta":
        with pytest.raises(UserError, match="has a table, and checkpoint .* is new: .* would be added again"):
            run(options(cluster, topic, tmp_path / "new", **out, **hourly))


def test_numbers_that_are_text(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """As `highwater produce --file rows.csv` makes them."""
    admin.create_topic(topic, 1, 1)
    admin.create_topic(f"{topic}-out", 1, 1)
    send_json(cluster, topic, [{"delay": text} for text in ("1.5", "2", "", "NA")])
    run(options(cluster, topic, tmp_path, to_topic=f"{topic}-out", count=True, sum=["delay"], mean=["delay"]))
    # The one row of a rollup without windows and groups comes with every micro-batch.
    assert records(cluster, f"{topic}-out")[-1] == (None, {"count": 4, "sum_delay": 3.5, "mean_delay": 1.75})


def test_sql_of_the_user(cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    admin.create_topic(topic, 1, 1)
    admin.create_topic(f"{topic}-out", 1, 1)
    rows = [flight(number) for number in range(120)]
    send_json(cluster, topic, rows)
    query = "SELECT carrier, count(*) AS n, max(_offset) AS newest FROM records WHERE delay >= 10 GROUP BY carrier"
    given = {"schema": SCHEMA, "to_topic": f"{topic}-out", "sql": query, "key": ["carrier"]}
    run(options(cluster, topic, tmp_path, **given))
    late = [(number, row) for number, row in enumerate(rows) if row["delay"] >= 10]
    assert {
        key["carrier"]: (value["n"], value["newest"]) for key, value in records(cluster, f"{topic}-out") if key
    } == {
        carrier: (
            sum(row["carrier"] == carrier for _, row in late),
            max(number for number, row in late if row["carrier"] == carrier),
        )
        for carrier in ("C0", "C1", "C2")
    }
    with pytest.raises(UserError, match=r"cannot be resolved"):
        run(options(cluster, topic, tmp_path / "2", **{**given, "sql": "SELECT nothing FROM records"}))


def test_a_micro_batch_that_is_run_again_passes_over_what_is_there(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    closing: ExitStack,
) -> None:
    admin.create_topic(topic, 2, 1)
    given = options(cluster, "in", tmp_path, to_topic=topic, count=True)
    rows = spark.range(20).selectExpr("cast(id as string) key", "concat('{\"n\":', id, '}') value")

    def written() -> list[int]:
        return sorted(value["n"] for _, value in records(cluster, topic))

    def sink(*, keyed: bool) -> TopicSink:
        return TopicSink(spark, given, [cluster.bootstrap], topic, lease, keyed=keyed)

    lease = checkpoint_lease(spark, "rollup", given.checkpoint)
    with pytest.raises(UserError, match="another rollup works with checkpoint"):
        sink(keyed=True).write(rows, 3)  # the lease is not held
    closing.enter_context(lease.held())
    sink(keyed=True).write(rows.where("key < 7"), 3)  # the first run ended early
    sink(keyed=True).write(rows, 3)
    assert written() == list(range(20))
    sink(keyed=False).write(rows, 3)
    assert written() == list(range(20))
    sink(keyed=True).write(rows, 4)
    assert written() == sorted([*range(20), *range(20)])


def test_kill_9_of_the_rollup(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    admin.create_topic(f"{topic}-out", 1, 1)
    rows = [flight(number) for number in range(4000)]
    arguments = ["--topic", topic, "--bootstrap", cluster.bootstrap, "--checkpoint", str(tmp_path / "checkpoint")]
    arguments += ["--to-topic", f"{topic}-out", "--schema", SCHEMA, "--time-column", "time", "--window", "1h"]
    arguments += ["--watermark", "100d", "--group-by", "carrier", "--count", "--mean", "delay"]
    arguments += ["--conf", "spark.sql.shuffle.partitions=2", "--max-offsets-per-trigger", "300"]
    with pipeline_process("rollup", tmp_path) as process:
        send_json(cluster, topic, rows[:3000])
        process.start([*arguments, "--trigger", "10ms"])
        process.until(lambda: len(records(cluster, f"{topic}-out")) >= 50, every_s=0.3)
        process.kill()
    send_json(cluster, topic, rows[3000:])
    run(options(cluster, topic, tmp_path, to_topic=f"{topic}-out", schema=SCHEMA, **HOURLY))
    assert latest(cluster, f"{topic}-out") == expected(rows)


def test_records_that_are_no_such_json(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    admin.create_topic(f"{topic}-out", 1, 1)
    with Producer(cluster.bootstrap) as producer:
        for value in (json.dumps(flight(0)).encode(), b"no json", None, b'{"carrier": "C0", "delay": 1.0}'):
            producer.send(topic, value)
    given: dict[str, Any] = {"to_topic": f"{topic}-out", "schema": SCHEMA, **HOURLY}
    with pytest.raises(UserError, match=f"{topic}-0, offset 1: the value is not a JSON object of the schema; correct"):
        run(options(cluster, topic, tmp_path, **given))
    run(options(cluster, topic, tmp_path / "skip", bad_records=BadRecords.SKIP, **given))
    assert latest(cluster, f"{topic}-out") == expected([flight(0)])


@pytest.mark.parametrize("typed", [True, pytest.param(False, marks=pytest.mark.long)])
def test_records_that_are_no_such_json_go_to_a_topic(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path, typed: bool
) -> None:
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        admin.create_topic(name, 1, 1)
    (tmp_path / "flights.ddl").write_text(SCHEMA)
    schema = {"value_schema": str(tmp_path / "flights.ddl")} if typed else {"schema": SCHEMA}
    given: dict[str, Any] = {"to_topic": f"{topic}-out", "dead_letter": f"{topic}-dead", **schema, **HOURLY}
    timeless = b'{"carrier": "C0", "delay": 1.0}'

    def send(number: int) -> None:
        with Producer(cluster.bootstrap) as producer:
            for value in (json.dumps(flight(number)).encode(), b"no json %d" % number, None, timeless):
                producer.send(topic, value, key=b"k", headers=[("h", b"x")])

    def dead() -> list[dict[str, Any]]:
        return in_topic(cluster.bootstrap, f"{topic}-dead")

    send(0)
    with pipeline_process("rollup", tmp_path) as process:
        line = ["--topic", topic, "--bootstrap", cluster.bootstrap, "--checkpoint", str(tmp_path / "checkpoint")]
        line += ["--to-topic", f"{topic}-out", "--dead-letter", f"{topic}-dead", "--trigger", "200ms"]
        line += ["--time-column", "time", "--window", "1h", "--watermark", "100d", "--group-by", "carrier"]
        line += [
            "--count",
            "--mean",
            "delay",
            *(f"--{name.replace('_', '-')}={value}" for name, value in schema.items()),
        ]
        process.start(line)
        process.until(lambda: len(dead()) == 2 and len(records(cluster, f"{topic}-out")) == 1, every_s=0.3)
        send(1)
        process.kill()
    run(options(cluster, topic, tmp_path, **given))
    run(options(cluster, topic, tmp_path, **given))
    assert latest(cluster, f"{topic}-out") == expected([flight(0), flight(1)])
    assert [row["value"] for row in dead()] == [b"no json 0", timeless, b"no json 1", timeless]
    said = [{pair["key"]: pair["value"].decode() for pair in row["headers"]} for row in dead()]
    assert [one["highwater.offset"] for one in said] == ["1", "3", "5", "7"]
    assert said[1]["highwater.error"] == "the value has no time in time"
    assert ("it is no JSON" if typed else "the value is not a JSON object") in said[0]["highwater.error"]
    assert [row["key"] for row in dead()] == [b"k"] * 4
    assert [one["h"] for one in said] == ["x"] * 4


def test_dead_letters_begin_where_the_rollup_did(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where they are sent for the first time long after it has begun at the topic's end."""
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        admin.create_topic(name, 1, 1)
    given: dict[str, Any] = {"to_topic": f"{topic}-out", "dead_letter": f"{topic}-dead", "schema": SCHEMA, **HOURLY}

    def first_only(name: str, *rest: Any) -> None:
        if name == "rollup":
            run_query(name, *rest)

    for number in range(3):
        with Producer(cluster.bootstrap) as producer:
            producer.send(topic, b"no json %d" % number)
        with monkeypatch.context() as patched:
            if number < 2:  # killed between the two
                patched.setattr(rollup, "run_query", first_only)
            run(options(cluster, topic, tmp_path, starting_offsets="latest", **given))
    assert [row["value"] for row in in_topic(cluster.bootstrap, f"{topic}-dead")] == [b"no json 1", b"no json 2"]


def test_fields_that_are_not_there(
    cluster: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    admin.create_topic(f"{topic}-out", 1, 1)
    given: dict[str, Any] = {"to_topic": f"{topic}-out", "count": True}
    with pytest.raises(UserError, match="there is no JSON object among the first records"):
        run(options(cluster, topic, tmp_path, **given))
    send_json(cluster, topic, [flight(0)])
    with pytest.raises(UserError, match="the values have no field airline: the schema is struct<"):
        run(options(cluster, topic, tmp_path / "1", group_by=["airline"], **given))
    with pytest.raises(UserError, match="--time-column delay is double; it can be a TIMESTAMP"):
        run(options(cluster, topic, tmp_path / "2", time_column="delay", **given))
    with pytest.raises(Exception, match="topic 'no-such-topic' does not exist"):
        run(options(cluster, topic, tmp_path / "3", **{**given, "to_topic": "no-such-topic"}))
