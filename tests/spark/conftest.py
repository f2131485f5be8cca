"""A real Spark and a real cluster, one of each for the whole run. `make test-spark` runs what is here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from quick_start import set_up

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client.blocking import Admin, Producer
from highwater.spark.pipelines.session.delta_session import delta_settings
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2

set_up()

FOREVER = {"retention.ms": "-1"}
"""Of topics with records of years ago: the cluster lives for longer than `log.retention.check.interval.ms`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A first Spark job takes its time on a busy machine."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(LocalClusterSettings(tmp_path_factory.mktemp("cluster"), brokers=1, port=0))
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="session")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as started:
        yield started


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("highwater tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.streaming.noDataProgressEventInterval", "100ms")
        .config(map=delta_settings({}))
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    java = session.sparkContext._gateway.proc
    yield session
    session.stop()
    java.stdin.close()  # the JVM ends with its standard input
    try:
        java.wait(30)
    except subprocess.TimeoutExpired:
        java.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test's own; not made yet."""
    return request.node.name.replace("[", "-").replace("]", "").replace("_", "-")[:100]


@pytest.fixture
def read(spark: SparkSession, cluster: LocalCluster) -> Callable[..., DataFrame]:
    """`read(subscribe=..., minPartitions=...)`."""

    def reading(**options: Any) -> DataFrame:
        return with_options(spark.read, cluster, options).load()

    return reading


@pytest.fixture
def read_stream(spark: SparkSession, cluster: LocalCluster) -> Callable[..., DataFrame]:
    def reading(**options: Any) -> DataFrame:
        return with_options(spark.readStream, cluster, options).load()

    return reading


@pytest.fixture
def write(cluster: LocalCluster) -> Callable[..., None]:
    def writing(frame: DataFrame, **options: Any) -> None:
        with_options(frame.write, cluster, options).mode("append").save()

    return writing


def with_options(builder: Any, cluster: LocalCluster | None, options: dict[str, Any]) -> Any:
    builder = builder.format("highwater")
    if cluster is not None:
        builder = builder.option("highwater.bootstrap.servers", cluster.bootstrap)
    for name, value in options.items():
        builder = builder.option(name, json.dumps(value) if isinstance(value, dict) else str(value))
    return builder


def send(cluster: LocalCluster, topic: str, values: range, *, partition: int | None = None, **columns: Any) -> None:
    """The numbers as text, each with itself modulo 10 as its key."""
    table = pa.table({"key": [str(v % 10) for v in values], "value": [str(v) for v in values], **columns})
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(
            topic, table, partition=partition, timestamp_column="timestamp" if "timestamp" in columns else None
        )


def numbers(frame: DataFrame) -> list[int]:
    """The values as numbers, sorted."""
    return sorted(int(row.value) for row in frame.select("value").collect())


def written(out: Path) -> list[int]:
    """What stands in the Parquet files, sorted; whatever Spark's own log of them says."""
    files = [str(path) for path in sorted(out.glob("*.parquet"))]
    found = pa.concat_tables([pq.read_table(path) for path in files]) if files else pa.table({"value": []})
    return sorted(int(value) for value in found.column("value").to_pylist())


def to_the_end(writer: DataStreamWriter, attempts: int = 3) -> StreamingQuery:
    """Runs a query to the end of what there is. Spark gives the Python process of a source ten seconds to start, which
    may be too short on a busy machine: then it is started again. Raises what the query fails with otherwise."""
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(240), "the query did not end"
        return query
    except StreamingQueryException as error:
        if attempts == 1 or "Python worker failed to connect back" not in str(error):
            raise
    finally:
        query.stop()
    return to_the_end(writer, attempts - 1)


def available_now(frame: DataFrame, checkpoint: Path, out: Path) -> list[dict[str, Any]]:
    """Runs a query to the end of what there is, into Parquet files; its progress reports."""
    writer = (
        frame.selectExpr("cast(value as string) value", "topic", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(out))
        .option("checkpointLocation", str(checkpoint))
    )
    query = to_the_end(writer)
    return [json.loads(report.json) for report in query.recentProgress]


def wait_until(holds: Callable[[], bool], what: Callable[[], object], every_s: float = 0.05) -> None:
    """With a deadline; `what` says what there was instead."""
    deadline = monotonic() + 240
    tick = Event()
    while not holds():
        assert monotonic() < deadline, what()
        tick.wait(every_s)


def waiting_for(path: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A step of a query that takes its first batch, and no more before the file is there."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            deadline = monotonic() + 240
            while not path.exists():
                assert monotonic() < deadline, "the test did not go on"
                Event().wait(0.05)
            yield batch

    return step


def started(work: Callable[[], object]) -> Thread:
    """In a thread of its own, as Spark knows threads."""
    thread = InheritableThread(target=work)
    thread.start()
    return thread


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Python and the JVM at once, as when a node is lost. Also where it has ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def delete_records(cluster: LocalCluster) -> Callable[[str, int, int], None]:
    """`delete_records(topic, partition, offset)`: everything before the offset."""

    def deleting(topic: str, partition: int, offset: int) -> None:
        delete_records_before(cluster.bootstrap, topic, partition, offset)

    return deleting


def delete_records_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    with grpc.insecure_channel(bootstrap) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)
        described = stub.Metadata(broker_pb2.MetadataRequest(topics=[topic]))
        key = common_pb2.PartitionKey(topic_id=described.topics[0].topic_id, partition=partition)
        wanted = broker_pb2.DeleteRecordsPartition(partition=key, offset=offset)
        answer = stub.DeleteRecords(broker_pb2.DeleteRecordsRequest(partitions=[wanted], timeout_ms=10_000))
        assert answer.results[0].low_watermark == offset
