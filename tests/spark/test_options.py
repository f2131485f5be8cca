"""Every option of a read and of a write, each with what it does against a real cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import test_faults
import test_stream_groups
import test_stream_read
import test_typed_values
import test_write
from conftest import FOREVER, numbers, send, to_the_end, with_options
from poisoned_batch import append_poisoned
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.spark.options.data_source_options import READ_OPTIONS, WRITE_OPTIONS
from highwater.spark.values.value_options import VALUE_OPTIONS

Read = Callable[..., DataFrame]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: LocalCluster, admin: Admin, delete_records: Callable[[str, int, int], None]) -> None:
    """`old`: a hundred records in each of two partitions, one a second from 1000 s after 1970 on. `recent`: ten of an
    hour ago and ten of a minute ago. `cut`: a hundred, of which the first forty are gone. `poisoned`: twenty, and
    between the tenth and the next a batch that cannot be read."""
    admin.create_topic("old", 2, 1, FOREVER)
    stamps = pa.array([1_000_000 + 1000 * index for index in range(100)], pa.int64())
    send(cluster, "old", range(100), partition=0, timestamp=stamps)
    send(cluster, "old", range(100, 200), partition=1, timestamp=stamps)
    admin.create_topic("recent", 1, 1)
    now = int(time() * 1000)
    ages = pa.array([now - HOUR_MS] * 10 + [now - HOUR_MS // 60] * 10, pa.int64())
    send(cluster, "recent", range(20), timestamp=ages)
    admin.create_topic("cut", 1, 1)
    send(cluster, "cut", range(100))
    delete_records("cut", 0, 40)
    admin.create_topic("poisoned", 1, 1)
    send(cluster, "poisoned", range(10))
    append_poisoned(admin, "poisoned")
    send(cluster, "poisoned", range(10, 20))


def tasks(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def tasks_that_read_partition_1(frame: DataFrame) -> int:
    return tasks(frame.filter("partition = 1"))


def columns(frame: DataFrame) -> list[str]:
    return frame.columns


def refused(frame: DataFrame) -> str:
    """What the query is refused with, from the first colon on."""
    with pytest.raises(PySparkException) as error:
        frame.collect()
    (line,) = [line for line in str(error.value).splitlines() if "Error: " in line]
    return line.partition("Error: ")[2]


def names_the_option(frame: DataFrame) -> bool:
    said = refused(frame)
    return said.startswith("poisoned-0 at offset 10: ") and "set option onCorrupt to skip, or seek to " in said


class Case(NamedTuple):
    option: str
    given: dict[str, Any]
    look: Callable[[Any], object]
    expected: object


EVERYTHING = list(range(200))
BATCH = [
    Case("subscribe", {"subscribe": "old"}, numbers, EVERYTHING),
    Case("subscribe", {"subscribe": "old, cut"}, tasks, 3),
    Case("subscribePattern", {"subscribePattern": "o.d|nothing.*"}, numbers, EVERYTHING),
    Case("assign", {"assign": '{"old": [1]}'}, numbers, list(range(100, 200))),
    Case("startingOffsets", {"startingOffsets": "earliest"}, numbers, EVERYTHING),
    Case("startingOffsets", {"startingOffsets": {"old": {"0": 98, "1": -2}}}, numbers, [98, 99, *range(100, 200)]),
    Case("startingOffsets", {"startingOffsets": "latest-2"}, numbers, [98, 99, 198, 199]),
    Case("startingOffsets", {"startingOffsets": "latest-1000"}, numbers, EVERYTHING),
    Case("endingOffsets", {"endingOffsets": "latest"}, numbers, EVERYTHING),
    Case("endingOffsets", {"endingOffsets": {"old": {"0": 2, "1": -1}}}, numbers, [0, 1, *range(100, 200)]),
    Case("endingOffsets", {"endingOffsets": "latest-98"}, numbers, [0, 1, 100, 101]),
    Case("startingTimestamp", {"startingTimestamp": 1_097_500}, numbers, [98, 99, 198, 199]),
    Case("startingTimestamp", {"subscribe": "recent", "startingTimestamp": "-10m"}, numbers, list(range(10, 20))),
    Case("endingTimestamp", {"endingTimestamp": 1_001_000}, numbers, [0, 100]),
    Case("endingTimestamp", {"subscribe": "recent", "endingTimestamp": "-10m"}, numbers, list(range(10))),
    Case(
        "startingOffsetsByTimestamp",
        {"startingOffsetsByTimestamp": {"old": {"0": 1_099_000, "1": 1_098_000}}},
        numbers,
        [99, 198, 199],
    ),
    Case(
        "endingOffsetsByTimestamp",
        {"endingOffsetsByTimestamp": {"old": {"0": 1_002_000, "1": 0}}},
        numbers,
        [0, 1],
    ),
    Case(
        "startingOffsetsByTimestampStrategy",
        {"startingTimestamp": "-10m", "startingOffsetsByTimestampStrategy": "latest"},
        numbers,
        [],
    ),
    Case(
        "startingOffsetsByTimestampStrategy",
        {"startingTimestamp": 2_000_000, "startingOffsetsByTimestampStrategy": "error"},
        refused,
        "option startingTimestamp: old-0 has no record at or after 2000000; "
        "take an earlier time, or set startingOffsetsByTimestampStrategy to latest",
    ),
    Case("minPartitions", {"minPartitions": 10}, tasks, 10),
    Case("minPartitions", {"minPartitions": 10}, numbers, EVERYTHING),
    Case("maxRecordsPerPartition", {"maxRecordsPerPartition": 30}, tasks, 8),
    Case("maxRecordsPerPartition", {"maxRecordsPerPartition": 30}, numbers, EVERYTHING),
    Case(
        "failOnDataLoss",
        {"subscribe": "cut", "startingOffsets": {"cut": {"0": 10}}, "failOnDataLoss": "false"},
        numbers,
        list(range(40, 100)),
    ),
    Case(
        "failOnDataLoss",
        {"subscribe": "cut", "startingOffsets": {"cut": {"0": 10}}, "failOnDataLoss": "true"},
        refused,
        "cut-0: offset 10 is no longer in the log (deleted by retention, or the topic was made anew); "
        "to go on without what is lost, set failOnDataLoss to false",
    ),
    Case("onCorrupt", {"subscribe": "poisoned", "onCorrupt": "skip"}, numbers, list(range(20))),
    Case("onCorrupt", {"subscribe": "poisoned"}, names_the_option, True),
    Case(
        "includeHeaders",
        {"includeHeaders": "true"},
        columns,
        ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"],
    ),
    Case("columns", {"columns": "offset, value"}, columns, ["value", "offset"]),
    Case("columns", {"columns": "offset, value"}, numbers, EVERYTHING),
    Case("pushDownFilters", {"pushDownFilters": "true"}, tasks_that_read_partition_1, 1),
    Case("pushDownFilters", {"pushDownFilters": "false"}, tasks_that_read_partition_1, 2),
    # Settings of the SDK's clients, under Highwater's names and Kafka's.
    Case("highwater.", {"highwater.max.partition.fetch.bytes": 1, "highwater.client.id": "job"}, numbers, EVERYTHING),
    Case("kafka.", {"kafka.fetch.max.bytes": 1, "kafka.session.timeout.ms": 7}, numbers, EVERYTHING),
    Case(
        "highwater.",
        {"highwater.fetch.max.bytes": "much"},
        refused,
        "option highwater.fetch.max.bytes is 'much'; it is a whole number",
    ),
]


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[f"{one.option}-{one.look.__name__}" for one in cases])


def subscribed(given: dict[str, Any]) -> dict[str, Any]:
    return given if {"subscribe", "subscribePattern", "assign"} & given.keys() else {"subscribe": "old", **given}


@pytest.fixture(autouse=True)
def push_down(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@named(BATCH)
def test_batch(case: Case, read: Read) -> None:
    assert case.look(read(**subscribed(case.given))) == case.expected


class Streamed(NamedTuple):
    values: list[int]
    micro_batches: list[int]  # rows of those that had any
    tasks: int


def values(run: Streamed) -> list[int]:
    return run.values


def micro_batches(run: Streamed) -> list[int]:
    return run.micro_batches


def tasks_of_a_micro_batch(run: Streamed) -> int:
    return run.tasks


EARLIEST = {"startingOffsets": "earliest"}
STREAM = [
    Case("subscribe", {"subscribe": "old", **EARLIEST}, values, EVERYTHING),
    Case("subscribePattern", {"subscribePattern": "ol.", **EARLIEST}, values, EVERYTHING),
    Case("assign", {"assign": '{"old": [1]}', **EARLIEST}, values, list(range(100, 200))),
    Case("startingOffsets", {}, values, []),
    Case("startingOffsets", {"startingOffsets": {"old": {"0": 98, "1": -1}}}, values, [98, 99]),
    Case("startingOffsets", {"startingOffsets": "latest-2"}, values, [98, 99, 198, 199]),
    Case("startingTimestamp", {"startingTimestamp": 1_098_500}, values, [99, 199]),
    Case("startingTimestamp", {"subscribe": "recent", "startingTimestamp": "-10m"}, values, list(range(10, 20))),
    Case(
        "startingOffsetsByTimestamp",
        {"startingOffsetsByTimestamp": {"old": {"0": 1_099_000, "1": 1_098_000}}},
        values,
        [99, 198, 199],
    ),
    Case(
        "startingOffsetsByTimestampStrategy",
        {"startingTimestamp": "-10m", "startingOffsetsByTimestampStrategy": "latest"},
        values,
        [],
    ),
    Case("maxOffsetsPerTrigger", {**EARLIEST, "maxOffsetsPerTrigger": 80}, micro_batches, [80, 80, 40]),
    Case("minPartitions", {**EARLIEST, "minPartitions": 4}, tasks_of_a_micro_batch, 4),
    Case("maxRecordsPerPartition", {**EARLIEST, "maxRecordsPerPartition": 40}, tasks_of_a_micro_batch, 6),
    Case(
        "failOnDataLoss",
        {"subscribe": "cut", "startingOffsets": {"cut": {"0": 10}}, "failOnDataLoss": "false"},
        values,
        list(range(40, 100)),
    ),
    Case("columns", {**EARLIEST, "columns": "value"}, values, EVERYTHING),
    Case("includeHeaders", {**EARLIEST, "includeHeaders": "true"}, values, EVERYTHING),
    Case("kafka.", {**EARLIEST, "kafka.max.partition.fetch.bytes": 1}, values, EVERYTHING),
]


@named(STREAM)
def test_stream(case: Case, read_stream: Read, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    name = topic.replace("-", "_").replace(".", "_")
    frame = read_stream(**subscribed(case.given)).selectExpr("cast(value as string) value", "spark_partition_id() task")
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path))
    query = to_the_end(writer)
    rows = spark.table(name).collect()
    sizes = [report["numInputRows"] for report in query.recentProgress if report["numInputRows"]]
    run = Streamed(sorted(int(row.value) for row in rows), sizes, len({row.task for row in rows}))
    assert case.look(run) == case.expected


def test_kafkas_bootstrap_list(cluster: LocalCluster, spark: SparkSession) -> None:
    frame = spark.read.format("highwater").option("kafka.bootstrap.servers", cluster.bootstrap)
    assert numbers(frame.option("subscribe", "old").load()) == EVERYTHING


def test_max_trigger_delay(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: Read, spark: SparkSession, tmp_path: Path
) -> None:
    """Fewer records than `minOffsetsPerTrigger` come, and are read all the same."""
    admin.create_topic(topic, 1, 1)
    frame = read_stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="500ms")
    query = test_stream_read.in_memory(frame, "delayed", tmp_path)
    try:
        test_stream_read.until(query, lambda: query.lastProgress is not None, "no progress")
        send(cluster, topic, range(9))
        test_stream_read.until(query, lambda: spark.table("delayed").count() == 9, "nine records were not read")
    finally:
        query.stop()


def test_options_of_a_write(
    admin: Admin, cluster: LocalCluster, topic: str, spark: SparkSession, read: Read, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    row = spark.sql(
        "select 'k' key, 'v' value, 'nowhere' topic, timestamp_millis(1700000000123) timestamp,"
        " array(struct('h' key, cast('x' as binary) value)) headers"
    )
    options = {"topic": topic, "includeTimestamp": "true", "includeHeaders": "true", "highwater.compression": "gzip"}
    with_options(row.write, cluster, options).mode("append").save()
    found = read(subscribe=topic, includeHeaders="true").selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert [(one.key, one.value, one.ms) for one in found] == [(b"k", b"v", 1_700_000_000_123)]
    assert [(pair.key, pair.value) for pair in found[0].headers] == [("h", b"x")]


# Of options whose test needs more than a table.
ELSEWHERE = {
    "minOffsetsPerTrigger": test_stream_read.test_few_records_wait_for_more,
    "maxTriggerDelay": test_max_trigger_delay,
    "maxBytesPerTrigger": test_stream_read.test_micro_batches_of_so_many_bytes,
    "commitOffsetsToGroup": test_stream_groups.test_offsets_are_told_to_a_group,
    "startingOffsetsByGroupStrategy": test_stream_groups.test_a_query_begins_where_a_group_has_committed,
    "kafkaConsumer.pollTimeoutMs": test_faults.test_a_partition_without_a_leader_fails_the_query,
    **dict.fromkeys(VALUE_OPTIONS, test_typed_values.test_a_batch_read),
    "valueErrors": test_typed_values.test_a_bad_value_fails_a_read_with_one_sentence,
    "valueSchemaId": test_typed_values.test_values_of_a_schema_registry,
    "topic": test_options_of_a_write,
    "includeTimestamp": test_write.test_timestamps_are_kept_where_they_are_asked_for,
}


def test_every_option_has_a_test() -> None:
    tested = {case.option for case in [*BATCH, *STREAM]} | ELSEWHERE.keys()
    assert tested - {"highwater.", "kafka."} == {*READ_OPTIONS, *WRITE_OPTIONS}
