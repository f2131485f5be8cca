"""`spark.read.format("highwater")` against a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from conftest import FOREVER, numbers, send, with_options
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client import OffsetOutOfRangeError, TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.spark import register
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import ReadPlan

Read = Callable[..., DataFrame]


def test_every_record_once_with_kafkas_columns(cluster: LocalCluster, admin: Admin, topic: str, read: Read) -> None:
    admin.create_topic(topic, 3, 1)
    send(cluster, topic, range(2000))
    frame = read(subscribe=topic)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = frame.collect()
    assert sorted(int(row.value) for row in rows) == list(range(2000))
    assert all(int(row.key) == int(row.value) % 10 for row in rows)
    assert {(row.topic, row.timestampType) for row in rows} == {(topic, 0)}
    for partition in range(3):
        mine = [row for row in rows if row.partition == partition]
        assert [row.offset for row in mine] == list(range(len(mine)))
        for key in {row.key for row in mine}:
            in_order = [int(row.value) for row in mine if row.key == key]
            assert in_order == sorted(in_order)


def test_headers_nulls_and_timestamps(cluster: LocalCluster, admin: Admin, topic: str, read: Read) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, b"v", headers=[("h", b"x"), ("h", None)], timestamp_ms=1_700_000_000_123)
        producer.send(topic, None, key=b"k", timestamp_ms=0)
    rows = read(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(None, b"v"), (b"k", None)]
    assert [[tuple(pair) for pair in row.headers] if row.headers else None for row in rows] == [
        [("h", b"x"), ("h", None)],
        None,
    ]
    assert rows[0].timestamp.replace(tzinfo=UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)


def test_where_a_read_begins_and_ends(cluster: LocalCluster, admin: Admin, topic: str, read: Read) -> None:
    admin.create_topic(topic, 2, 1, FOREVER)
    stamps = pa.array([1_000_000 + 1000 * index for index in range(100)], pa.int64())
    send(cluster, topic, range(100), partition=0, timestamp=stamps)
    send(cluster, topic, range(100, 200), partition=1, timestamp=stamps)

    def found(**options: object) -> list[int]:
        return numbers(read(subscribe=topic, **options))

    assert found(startingOffsets={topic: {"0": 10, "1": -2}}, endingOffsets={topic: {"0": 12, "1": 101 - 100}}) == [
        10,
        11,
        100,
    ]
    assert found(startingOffsets="latest-3") == [97, 98, 99, 197, 198, 199]
    assert found(endingOffsets="latest-98") == [0, 1, 100, 101]
    assert found(startingTimestamp=1_097_500) == [98, 99, 198, 199]
    assert found(endingTimestamp=1_001_000) == [0, 100]
    assert found(startingOffsetsByTimestamp={topic: {"0": 1_099_000, "1": 1_098_000}}) == [99, 198, 199]
    assert found(endingOffsetsByTimestamp={topic: {"0": 1_002_000, "1": 0}}) == [0, 1]
    assert found(startingTimestamp="-10m", startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(AnalysisException, match="has no record at or after"):
        found(startingTimestamp="-10m")
    with pytest.raises(AnalysisException, match=r"-0 ends at 100, there is no offset 5000 yet"):
        found(startingOffsets={topic: {"0": 5000, "1": 0}})


def test_tasks(cluster: LocalCluster, admin: Admin, topic: str, read: Read) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(900), partition=0)
    send(cluster, topic, range(900, 1000), partition=1)
    assert read(subscribe=topic).rdd.getNumPartitions() == 2
    split = read(subscribe=topic, minPartitions=10)
    assert split.rdd.getNumPartitions() == 10
    assert numbers(split) == list(range(1000))
    bounded = read(subscribe=topic, maxRecordsPerPartition=300, columns="value,offset")
    assert bounded.columns == ["value", "offset"]
    assert bounded.rdd.getNumPartitions() == 4
    assert numbers(bounded) == list(range(1000))


def test_what_is_subscribed(cluster: LocalCluster, admin: Admin, topic: str, read: Read) -> None:
    for number in range(2):
        admin.create_topic(f"{topic}-{number}", 2, 1)
        send(cluster, f"{topic}-{number}", range(number * 10, number * 10 + 10), partition=number)
    assert numbers(read(subscribe=f"{topic}-0, {topic}-1")) == list(range(20))
    assert numbers(read(subscribePattern=f"{topic}-[01]")) == list(range(20))
    assert numbers(read(subscribePattern=topic)) == []
    assert numbers(read(assign=f'{{"{topic}-0": [0], "{topic}-1": [0]}}')) == list(range(10))


def test_filters_that_are_pushed_down(
    cluster: LocalCluster, admin: Admin, topic: str, read: Read, spark: SparkSession
) -> None:
    admin.create_topic(topic, 2, 1, FOREVER)
    stamps = pa.array([1_000_000 + 1000 * index for index in range(100)], pa.int64())
    send(cluster, topic, range(100), partition=0, timestamp=stamps)
    send(cluster, topic, range(100, 200), partition=1, timestamp=stamps)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:

        def filtered(condition: str) -> DataFrame:
            return read(subscribe=topic, pushDownFilters="true").filter(condition)

        narrow = filtered("partition = 1 and offset >= 10 and offset < 12")
        assert narrow.rdd.getNumPartitions() == 1
        assert numbers(narrow) == [110, 111]
        assert numbers(filtered("offset in (3, 5) and topic like '%'")) == [3, 5, 103, 105]
        late = filtered("timestamp >= timestamp_millis(1098000) and timestamp < timestamp_millis(1099000)")
        assert numbers(late) == [98, 198]
        assert numbers(filtered("timestamp > timestamp_millis(2000000)")) == []
        assert numbers(filtered("offset = 1 and offset = 2")) == []
        # Without the option nothing is pushed: Spark would hand one use's filters to another.
        frame = read(subscribe=topic)
        assert (frame.filter("offset < 10").count(), frame.count()) == (20, 200)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_records_that_are_gone(
    cluster: LocalCluster, admin: Admin, topic: str, read: Read, delete_records: Callable[[str, int, int], None]
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(100))
    delete_records(topic, 0, 40)
    begin = {topic: {"0": 10}}
    assert numbers(read(subscribe=topic)) == list(range(40, 100))
    assert numbers(read(subscribe=topic, startingOffsets=begin, failOnDataLoss="false")) == list(range(40, 100))
    split = read(subscribe=topic, startingOffsets=begin, failOnDataLoss="false", minPartitions=9)
    assert numbers(split) == list(range(40, 100))
    with pytest.raises(Exception, match=r"-0: offset 10 is no longer in the log .* set failOnDataLoss to false"):
        numbers(read(subscribe=topic, startingOffsets=begin))


def test_a_worker_reads_one_range_after_another(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2, 1)
    for partition in range(2):
        send(cluster, topic, range(1000), partition=partition)
    plan = ReadPlan((cluster.bootstrap,), ("partition", "offset"), True, 30_000, {"client_id": topic})

    def found(partition: int, start: int, until: int) -> list[tuple[int, int]]:
        batches = list(read_range(plan, OffsetRange(TopicPartition(topic, partition), start, until)))
        return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]

    assert found(0, 0, 10) == [(0, offset) for offset in range(10)]
    assert found(1, 500, 1000) == [(1, offset) for offset in range(500, 1000)]
    left_early = read_range(plan, OffsetRange(TopicPartition(topic, 1), 0, 1000))
    assert next(left_early).num_rows > 0
    left_early.close()
    assert found(1, 3, 5) == [(1, 3), (1, 4)]
    assert found(0, 999, 1000) == [(0, 999)]


def test_a_task_does_not_read_a_topic_that_was_made_anew_since_it_was_planned(
    cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(10))
    (old,) = admin.describe_topics([topic])
    planned = OffsetRange(TopicPartition(topic, 0), 0, 10, old.topic_id.hex())

    def found(one: OffsetRange, *, fail_on_data_loss: bool) -> int:
        plan = ReadPlan((cluster.bootstrap,), ("offset",), fail_on_data_loss, 30_000, {"client_id": topic})
        return sum(batch.num_rows for batch in read_range(plan, one))

    assert found(planned, fail_on_data_loss=True) == 10
    admin.delete_topic(topic)
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(1000, 1050))
    lost = r"-0: offsets 0 to 9 are lost: the topic was deleted, or made anew; to go on"
    with pytest.raises(OffsetOutOfRangeError, match=lost):
        found(planned, fail_on_data_loss=True)
    assert found(planned, fail_on_data_loss=False) == 0
    (new,) = admin.describe_topics([topic])
    assert found(replace(planned, topic_id=new.topic_id.hex()), fail_on_data_loss=True) == 10
    admin.delete_topic(topic)
    with pytest.raises(OffsetOutOfRangeError, match=lost):
        found(planned, fail_on_data_loss=True)


def test_what_a_read_needs_to_be_told(topic: str, spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"highwater\.bootstrap\.servers is missing"):
        spark.read.format("highwater").option("subscribe", topic).load().collect()
    other_schema = spark.read.schema("value string").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(AnalysisException, match="the schema of a topic is fixed"):
        other_schema.format("highwater").option("subscribe", topic).load().collect()


def test_registered_by_hand_it_is_the_same(
    cluster: LocalCluster, admin: Admin, topic: str, spark: SparkSession
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(10))
    session = spark.newSession()
    register(session)
    assert numbers(with_options(session.read, cluster, {"subscribe": topic}).load()) == list(range(10))
