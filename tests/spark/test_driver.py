"""What the driver does of a read: it asks for offsets, holds nothing that grows with the topics, and its Python forks
before there is a connection."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from conftest import started, wait_until, waiting_for
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from rich.console import Console

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer
from highwater.spark import progress_bar
from highwater.spark.source.batch_reader import HighwaterBatchReader
from highwater.spark.source.range_reader import BatchConsumer
from highwater.spark.source.stream_reader import HighwaterStreamReader


def test_it_asks_for_offsets_and_what_it_holds_does_not_grow_with_the_topic(
    cluster: LocalCluster, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(self: BatchConsumer) -> None:
        raise AssertionError("the driver fetches records")

    monkeypatch.setattr(BatchConsumer, "start", forbidden)
    sizes = []
    for records in (100, 100_000):
        name = f"{topic}-{records:06}"
        admin.create_topic(name, 1, 1)
        with Producer(cluster.bootstrap) as producer:
            producer.send_table(name, pa.table({"value": pa.array([b"x" * 100] * records, pa.binary())}))
        options = {"highwater.bootstrap.servers": cluster.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
        batch = HighwaterBatchReader(options)
        stream = HighwaterStreamReader(options)
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        held = [batch, batch.partitions(), stream.partitions({}, end)]
        stream.stop()
        sizes.append([len(pickle.dumps(one)) for one in (batch, *held[1:])] + [len(json.dumps(end))])
    small, large = sizes
    assert all(abs(one - other) < 64 for one, other in zip(small, large, strict=True)), sizes


def mapped(process: psutil.Process) -> list[str]:
    """The files in its memory; of a worker that has ended meanwhile none."""
    try:
        return [one.path for one in process.memory_maps()]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def test_python_workers_are_forked_before_there_is_a_grpc_channel(
    cluster: LocalCluster,
    admin: Admin,
    topic: str,
    read: Callable[..., DataFrame],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, 1, 1)
    values: Any = pa.array([b"%0200d" % number for number in range(800_000)], pa.binary())
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(topic, pa.table({"value": values}))
    go_on = tmp_path / "go-on"
    frame = read(subscribe=topic, columns="value").mapInArrow(waiting_for(go_on), "value binary")
    with progress_bar(spark, console=Console(file=io.StringIO())) as bar:
        query = started(lambda: frame.write.format("noop").mode("append").save())
        try:
            wait_until(lambda: any(one.done > 0 for one in bar.reads), lambda: bar.reads)
            java = psutil.Process(spark.sparkContext._gateway.proc.pid)
            below = java.children(recursive=True)
            forking = {one.ppid() for one in below if one.ppid() in {other.pid for other in below}}
            with_grpc = {one.pid for one in below if any("cygrpc" in path for path in mapped(one))}
            assert with_grpc, "no worker is reading"
            assert not with_grpc & forking
        finally:
            go_on.touch()
            query.join()
