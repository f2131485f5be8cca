"""`spark.readStream.format("highwater")` against a real cluster: micro-batches, checkpoints, and nothing lost or read
twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import available_now, numbers, send, written
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from highwater.cli.local_cluster import LocalCluster
from highwater.client import TopicPartition
from highwater.client.blocking import Admin
from highwater.spark import lag

ReadStream = Callable[..., DataFrame]


def in_memory(frame: DataFrame, name: str, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.selectExpr("cast(value as string) value").writeStream.format("memory").queryName(name)
    return (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"processingTime": "200 milliseconds"}))
        .start()
    )


def until(query: StreamingQuery, holds: Callable[[], bool], what: str) -> None:
    """Waits for it with a deadline; a query that failed fails the test with its error."""
    deadline = monotonic() + 120
    while not holds():
        assert monotonic() < deadline, what
        if query.awaitTermination(0.1):
            raise AssertionError(f"the query ended: {query.exception()}")


def rows_of(progress: list[dict[str, Any]]) -> list[int]:
    return [report["numInputRows"] for report in progress if report["numInputRows"]]


def test_micro_batches_of_a_limited_size_to_the_end_of_what_there_is(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(500))
    frame = read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=200, minPartitions=3)
    progress = available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert rows_of(progress) == [200, 200, 100] or sum(rows_of(progress)) == 500 <= 200 * len(rows_of(progress))
    assert max(rows_of(progress)) <= 200
    assert sum(lag(progress[0]).values()) == 500 - rows_of(progress)[0]
    assert set(lag(progress[-1]).values()) == {0}
    assert written(tmp_path / "out") == list(range(500))


def test_a_restarted_query_goes_on_where_it_was(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(300))
    frame = read_stream(subscribe=topic, startingOffsets="earliest")
    available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    send(cluster, topic, range(300, 500))
    progress = available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert sum(rows_of(progress)) == 200
    assert sum(rows_of(available_now(frame, tmp_path / "checkpoint", tmp_path / "out"))) == 0
    assert written(tmp_path / "out") == list(range(500))


def test_where_a_query_began_stands_in_its_first_micro_batch(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    """A query that starts at `latest` and dies before it has read anything misses nothing that came meanwhile."""
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(100))
    frame = read_stream(subscribe=topic)
    assert sum(rows_of(available_now(frame, tmp_path / "checkpoint", tmp_path / "out"))) == 0
    send(cluster, topic, range(100, 200))
    available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    # Planned and not committed, as after kill -9 in mid-batch: the same micro-batch is run again.
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    send(cluster, topic, range(200, 250))
    progress = available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert rows_of(progress)[:2] == [100, 50]
    assert written(tmp_path / "out") == list(range(100, 250))


def test_a_first_micro_batch_that_is_run_again_reads_the_same(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(100))
    frame = read_stream(subscribe=topic, startingOffsets="latest-10")
    available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    first = written(tmp_path / "out")
    assert len(first) == 20
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    send(cluster, topic, range(100, 150))
    available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert written(tmp_path / "out") == first + list(range(100, 150))


def test_new_partitions_are_found_while_it_runs(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    """And read from their first record, though the query began at `latest`, before there was any."""
    frame = read_stream(subscribePattern=f"{topic}-.*")
    query = in_memory(frame, "found", tmp_path / "checkpoint")
    try:
        until(query, lambda: query.lastProgress is not None, "no progress")
        for number in range(2):
            admin.create_topic(f"{topic}-{number}", 2, 1)
            send(cluster, f"{topic}-{number}", range(number * 100, number * 100 + 100))
        until(query, lambda: spark.table("found").count() >= 200, "not all was read")
        query.processAllAvailable()
        assert numbers(spark.table("found")) == list(range(200))
    finally:
        query.stop()


def test_partitions_that_are_added_while_it_runs(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    query = in_memory(read_stream(subscribe=topic), "added", tmp_path / "checkpoint")
    try:
        until(query, lambda: query.lastProgress is not None, "no progress")
        admin.create_partitions(topic, 3)
        for partition in range(3):
            send(cluster, topic, range(partition * 100, partition * 100 + 100), partition=partition)
        until(query, lambda: spark.table("added").count() >= 300, "not all was read")
        query.processAllAvailable()
        assert numbers(spark.table("added")) == list(range(300))
        nothing = {TopicPartition(topic, partition): 0 for partition in range(3)}
        until(query, lambda: lag(query.lastProgress) == nothing, "the lag of the new partitions was not reported")
    finally:
        query.stop()


def test_a_query_that_was_down_while_its_topics_grew(
    cluster: LocalCluster, admin: Admin, topic: str, read: ReadStream, read_stream: ReadStream, tmp_path: Path
) -> None:
    """Records, partitions and topics came meanwhile: it goes on where it was, and tells how far behind it is."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    admin.create_topic(f"{topic}-0", 2, 1)
    send(cluster, f"{topic}-0", range(300))
    pattern = f"{topic}-.*"
    frame = read_stream(subscribePattern=pattern, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    available_now(frame, checkpoint, out)
    send(cluster, f"{topic}-0", range(300, 450))
    admin.create_partitions(f"{topic}-0", 4)
    send(cluster, f"{topic}-0", range(450, 500), partition=3)
    admin.create_topic(f"{topic}-1", 1, 1)
    send(cluster, f"{topic}-1", range(500, 600))
    progress = [report for report in available_now(frame, checkpoint, out) if report["numInputRows"]]
    assert sum(rows_of(progress)) == 300
    assert sum(lag(progress[0]).values()) == 300 - rows_of(progress)[0]
    assert set(lag(progress[0])) == {*(TopicPartition(f"{topic}-0", one) for one in range(4)), (f"{topic}-1", 0)}
    assert set(lag(progress[-1]).values()) == {0}
    there = read(subscribePattern=pattern).selectExpr("topic", "partition", "offset", "cast(value as string) value")
    files = [pq.read_table(path) for path in sorted(out.glob("*.parquet"))]
    archived = pa.concat_tables(files).select(["topic", "partition", "offset", "value"]).to_pylist()
    expected = sorted((one.topic, one.partition, one.offset, one.value) for one in there.collect())
    assert sorted(tuple(one.values()) for one in archived) == expected
    assert len(expected) == 600


def test_few_records_wait_for_more(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    frame = read_stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="1h")
    query = in_memory(frame, "waiting", tmp_path / "checkpoint")
    try:
        until(query, lambda: query.lastProgress is not None, "no progress")
        send(cluster, topic, range(99))
        until(query, lambda: lag(query.lastProgress) == {TopicPartition(topic, 0): 99}, "the lag was not reported")
        assert spark.table("waiting").count() == 0
        send(cluster, topic, range(99, 100))
        until(query, lambda: spark.table("waiting").count() == 100, "a hundred records were not read")
    finally:
        query.stop()


def test_micro_batches_of_so_many_bytes(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    for start in range(0, 6000, 1000):
        send(cluster, topic, range(start, start + 1000))
    frame = read_stream(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger=8000)
    progress = available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert len(rows_of(progress)) > 2
    assert written(tmp_path / "out") == list(range(6000))


def test_a_topic_made_anew_is_not_taken_for_the_old_one(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, spark: SparkSession, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(100))
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    available_now(read_stream(subscribe=topic, startingOffsets="earliest"), checkpoint, out)
    admin.delete_topic(topic)
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(1000, 1010))
    refused = r"is another topic than before: records may be lost"
    with pytest.raises(StreamingQueryException, match=refused):
        available_now(read_stream(subscribe=topic), checkpoint, out)
    send(cluster, topic, range(1010, 1200))
    with pytest.raises(StreamingQueryException, match=refused):  # though it has outgrown where the query stands
        available_now(read_stream(subscribe=topic), checkpoint, out)
    going_on = read_stream(subscribe=topic, failOnDataLoss="false")
    available_now(going_on, checkpoint, out)
    send(cluster, topic, range(1200, 1210))
    available_now(going_on, checkpoint, out)
    assert written(out) == [*range(100), *range(1000, 1210)]


def test_a_new_partition_that_has_lost_its_first_records(
    cluster: LocalCluster,
    admin: Admin,
    topic: str,
    read_stream: ReadStream,
    delete_records: Callable[[str, int, int], None],
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(10))
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    available_now(read_stream(subscribe=topic, startingOffsets="earliest"), checkpoint, out)
    admin.create_partitions(topic, 2)
    send(cluster, topic, range(10, 110), partition=1)
    delete_records(topic, 1, 40)
    with pytest.raises(StreamingQueryException, match=r"-1 begins at 40: records may be lost"):
        available_now(read_stream(subscribe=topic), checkpoint, out)
    available_now(read_stream(subscribe=topic, failOnDataLoss="false"), checkpoint, out)
    assert written(out) == [*range(10), *range(50, 110)]


def test_a_checkpoint_without_topic_ids_goes_on(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(10))
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    available_now(read_stream(subscribe=topic, startingOffsets="earliest"), checkpoint, out)
    for file in (checkpoint / "offsets").glob("[0-9]*"):
        *lines, offset = file.read_text().splitlines()
        written_before = {name: value for name, value in json.loads(offset).items() if name != "@topics"}
        file.write_text("\n".join([*lines, json.dumps(written_before)]))
    for crc in (checkpoint / "offsets").glob(".*.crc"):
        crc.unlink()
    send(cluster, topic, range(10, 20))
    available_now(read_stream(subscribe=topic), checkpoint, out)
    assert written(out) == list(range(20))
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    (topic_info,) = admin.describe_topics([topic])
    assert json.loads(last.read_text().splitlines()[-1])["@topics"] == {topic: topic_info.topic_id.hex()}


def test_the_checkpoint_is_in_kafkas_form(
    cluster: LocalCluster, admin: Admin, topic: str, read_stream: ReadStream, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1)
    send(cluster, topic, range(20), partition=1)
    frame = read_stream(subscribe=topic, startingOffsets={topic: {"0": -1, "1": 5}})
    available_now(frame, tmp_path / "checkpoint", tmp_path / "out")
    written = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    (described,) = admin.describe_topics([topic])
    assert json.loads(written) == {
        topic: {"0": 0, "1": 20},
        "@start": {topic: {"0": 0, "1": 5}},
        "@topics": {topic: described.topic_id.hex()},
    }
