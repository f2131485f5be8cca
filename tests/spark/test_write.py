"""`df.write` and `df.writeStream` with `format("highwater")` against a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import FOREVER, numbers, send, to_the_end, with_options
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from highwater.cli.local_cluster import LocalCluster
from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Consumer
from highwater.spark.sink.task_writes import WrittenRange
from highwater.spark.sink.writer import HighwaterStreamWriter, HighwaterWriter, TaskWritten

Read = Callable[..., DataFrame]
Write = Callable[..., None]


def test_rows_arrive_under_their_keys_in_order(
    admin: Admin, cluster: LocalCluster, topic: str, spark: SparkSession, write: Write
) -> None:
    admin.create_topic(topic, 3, 1)
    frame = spark.range(0, 25_000, 1, 2).selectExpr("cast(id div 5000 as string) key", "cast(id as string) value")
    write(frame, topic=topic)
    by_key: dict[bytes, list[int]] = {}
    with Consumer(topic, bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        count = 0
        while count < 25_000:
            records = consumer.poll(10_000, 100_000)
            assert records, f"only {count} records arrived"
            count += len(records)
            for record in records:
                assert record.key is not None
                assert record.value is not None
                by_key.setdefault(record.key, []).append(int(record.value))
    assert {key: len(values) for key, values in by_key.items()} == {str(k).encode(): 5000 for k in range(5)}
    # The two tasks wrote a half each: keys 0, 1, 3 and 4 belong to one task.
    for key in (b"0", b"1", b"3", b"4"):
        assert by_key[key] == sorted(by_key[key])


def test_columns_say_topic_partition_and_headers(
    admin: Admin, topic: str, spark: SparkSession, read: Read, write: Write
) -> None:
    for number in range(2):
        admin.create_topic(f"{topic}-{number}", 3, 1)
    frame = spark.range(30).selectExpr(
        f"concat('{topic}-', id % 2) topic",
        "case when id < 20 then cast(id % 3 as int) end partition",
        "cast(cast(id as string) as binary) key",
        "case when id != 7 then cast(id as string) end value",
        "case when id < 5 then array(struct('h' key, cast(cast(id as string) as binary) value)) end headers",
        "id ignored",
    )
    write(frame)
    rows = read(subscribePattern=f"{topic}-.", includeHeaders="true").collect()
    found = {int(row.key): row for row in rows}
    assert len(rows) == len(found) == 30
    for number, row in found.items():
        assert row.topic == f"{topic}-{number % 2}"
        assert row.value == (None if number == 7 else str(number).encode())
        if number < 20:
            assert row.partition == number % 3
        headers = [(pair.key, int(pair.value)) for pair in row.headers or ()]
        assert headers == ([("h", number)] if number < 5 else [])


def test_timestamps_are_kept_where_they_are_asked_for(
    admin: Admin, topic: str, spark: SparkSession, read: Read, write: Write
) -> None:
    admin.create_topic(topic, 1, 1, FOREVER)
    write(
        spark.sql("select 'v' value, timestamp_millis(1700000000123) timestamp"), topic=topic, includeTimestamp="true"
    )
    (row,) = read(subscribe=topic).selectExpr("unix_millis(timestamp) ms").collect()
    assert row.ms == 1_700_000_000_123


def test_settings_of_the_producer(admin: Admin, topic: str, spark: SparkSession, read: Read, write: Write) -> None:
    admin.create_topic(topic, 1, 1)
    frame = spark.range(100).selectExpr("cast(id as string) value")
    write(frame, topic=topic, **{"kafka.compression.type": "zstd", "highwater.batch.size": 1000, "kafka.acks": "1"})
    assert numbers(read(subscribe=topic)) == list(range(100))


def test_from_stream_to_stream(
    admin: Admin,
    cluster: LocalCluster,
    topic: str,
    spark: SparkSession,
    read: Read,
    read_stream: Read,
    tmp_path: Path,
) -> None:
    for name in ("in", "out"):
        admin.create_topic(f"{topic}-{name}", 2, 1)
    for start in (0, 500):
        send(cluster, f"{topic}-in", range(start, start + 500))
        frame = read_stream(subscribe=f"{topic}-in", startingOffsets="earliest").select("key", "value")
        writer = with_options(frame.writeStream, cluster, {"topic": f"{topic}-out"})
        to_the_end(writer.option("checkpointLocation", str(tmp_path)))
    assert numbers(read(subscribe=f"{topic}-out")) == list(range(1000))
    ends = admin.list_offsets([TopicPartition(f"{topic}-{name}", 0) for name in ("in", "out")])
    assert len({end.offset for end in ends.values()}) == 1  # keys went to the same partitions


def test_rows_that_change_are_written_by_foreach_batch(
    admin: Admin, cluster: LocalCluster, topic: str, read: Read, read_stream: Read, tmp_path: Path
) -> None:
    """No Python sink can say that it takes output mode update; docs/spark.md shows the way around."""
    for name in ("in", "out"):
        admin.create_topic(f"{topic}-{name}", 1, 1)
    send(cluster, f"{topic}-in", range(30))
    frame = read_stream(subscribe=f"{topic}-in", startingOffsets="earliest")
    counts = (
        frame.groupBy("partition").count().selectExpr("cast(partition as string) key", "cast(count as string) value")
    )
    for mode, sentence in (("update", "does not support Update mode"), ("complete", "by foreachBatch")):
        refused = with_options(counts.writeStream, cluster, {"topic": f"{topic}-out"}).outputMode(mode)
        with pytest.raises(StreamingQueryException, match=sentence):
            to_the_end(refused.option("checkpointLocation", str(tmp_path / mode)))

    def to_topic(rows: DataFrame, batch: int) -> None:
        with_options(rows.write, cluster, {"topic": f"{topic}-out"}).mode("append").save()

    written = counts.writeStream.foreachBatch(to_topic).outputMode("update")
    to_the_end(written.option("checkpointLocation", str(tmp_path / "batches")))
    found = (
        read(subscribe=f"{topic}-out").selectExpr("cast(key as string) key", "cast(value as string) value").collect()
    )
    assert [(row.key, row.value) for row in found] == [("0", "30")]


def test_where_nothing_can_be_written(topic: str, cluster: LocalCluster, spark: SparkSession, write: Write) -> None:
    rows = spark.sql("select 'v' value")
    with pytest.raises(AnalysisException, match="nothing says which topic to write to"):
        write(rows)
    overwriting = with_options(rows.write, cluster, {"topic": topic}).mode("overwrite")
    with pytest.raises(AnalysisException, match="a topic cannot be overwritten: use mode append"):
        overwriting.save()


def test_a_task_says_where_its_rows_stand(admin: Admin, cluster: LocalCluster, topic: str) -> None:
    """The commit message, of a task that runs here rather than in an executor."""
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(7), partition=1)
    schema = StructType([StructField("value", StringType()), StructField("partition", IntegerType())])
    options = {"highwater.bootstrap.servers": cluster.bootstrap, "topic": topic}
    rows = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([1, 0, 1], pa.int32())})
    message = HighwaterWriter(options, schema, overwrite=False).write(iter([rows, rows]))
    assert isinstance(message, TaskWritten)
    assert message.ranges == (
        WrittenRange(TopicPartition(topic, 0), 0, 2, 2),
        WrittenRange(TopicPartition(topic, 1), 7, 11, 4),
    )
    assert message.producer_id >= 0
    careless = HighwaterWriter({**options, "highwater.acks": "1"}, schema, overwrite=False).write(iter([rows]))
    assert isinstance(careless, TaskWritten)
    assert careless.producer_id == -1


def test_what_a_failed_write_leaves_is_said_in_the_drivers_log(caplog: pytest.LogCaptureFixture) -> None:
    schema = StructType([StructField("value", StringType())])
    options = {"highwater.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    messages = [None, TaskWritten((WrittenRange(TopicPartition("t", 0), 5, 9, 4),), 7)]
    HighwaterWriter(options, schema, overwrite=False).abort(messages)
    HighwaterStreamWriter(options, schema, overwrite=False).abort(messages, 12)
    HighwaterWriter(options, schema, overwrite=False).abort([None])
    assert caplog.messages == [
        "the write failed, and these of its tasks' records stay: t-0 [5, 9): 4 records",
        "micro-batch 12 failed, and these of its tasks' records stay: t-0 [5, 9): 4 records",
    ]
