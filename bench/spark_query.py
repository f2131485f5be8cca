"""One Spark session, one query, run several times; a JSON object a run on standard output.

The first run is the cold one: a new JVM, which has compiled nothing yet, and no Python worker. `bench.spark` starts
this once for each side and each kind of query.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread

import psutil
from pyspark.sql import DataFrame, SparkSession

from bench.spark_archive import (
    archive_by_pipeline,
    archive_by_query,
    archive_by_spark_alone,
    archive_settings,
    check_archive,
    replay_archive,
)
from bench.spark_null import NullSource
from bench.spark_rows import KEY, VALUE, made_rows
from highwater.spark import quick_workers

QUERIES = ("read", "aggregate", "stream", "write", "archive", "replay", "first_batch", "memory")
OF_DELTA = ("archive", "replay")
STREAM_TIMEOUT_S = 600
SAMPLE_S = 0.2
# All of it is taken at the start, so that only what is outside of it can grow.
DRIVER_HEAP = "1g"


@dataclass(frozen=True)
class Run:
    """`cpu_s` is that of the driver, the JVM and the Python workers together."""

    seconds: float
    cpu_s: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Side:
    format: str
    bootstrap: str
    topic: str
    replay_topic: str
    options: dict[str, str]  # of reads
    write_options: dict[str, str]


def side_of(name: str, bootstrap: str, topic: str, replay_topic: str, rows: int) -> Side:
    if name == "null":
        return Side("null", "", topic, replay_topic, {"rows": str(rows)}, {})
    reads = {"subscribe": topic, "startingOffsets": "earliest"}
    if name == "Kafka":
        servers = {"kafka.bootstrap.servers": bootstrap}
        writes = {"topic": topic, "kafka.acks": "all", "kafka.compression.type": "lz4"}
        return Side("kafka", bootstrap, topic, replay_topic, servers | reads, servers | writes)
    servers = {"highwater.bootstrap.servers": bootstrap}
    writes = {"topic": topic, "highwater.acks": "all", "highwater.compression": "lz4"}
    return Side("highwater", bootstrap, topic, replay_topic, servers | reads, servers | writes)


def session(jars: str, query: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quick_workers()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", DRIVER_HEAP)
        .config("spark.driver.extraJavaOptions", f"-Xms{DRIVER_HEAP} -XX:+AlwaysPreTouch")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if query in OF_DELTA:
        builder = builder.config(map=archive_settings(jars))
    elif jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(NullSource)
    return spark


class Queries:
    def __init__(self, spark: SparkSession, side: Side, rows: int, directory: Path) -> None:
        """`directory` is empty, and is removed afterwards."""
        self._spark = spark
        self._side = side
        self._rows = rows
        self._directory = directory
        self._archives = 0

    def run(self, kind: str) -> Run:
        if kind == "first_batch":
            return Run(self._first_batch())
        if kind == "memory":
            return self._memory()
        if kind == "replay" and not self._archives:
            self._archive()  # once, before the time is taken
        query: Callable[[], None] = getattr(self, f"_{kind}")
        before, started = cpu_s(), time.perf_counter()
        query()
        run = Run(time.perf_counter() - started, cpu_s() - before)
        if kind == "archive":
            check_archive(self._spark, self._rows, self._archived)
        return run

    def _frame(self) -> DataFrame:
        return self._spark.read.format(self._side.format).options(**self._side.options).load()

    def _stream_frame(self, **more: str) -> DataFrame:
        return self._spark.readStream.format(self._side.format).options(**self._side.options, **more).load()

    def _read(self) -> None:
        self._frame().write.format("noop").mode("overwrite").save()

    def _aggregate(self) -> None:
        total = self._frame().selectExpr("sum(length(value))").collect()[0][0]
        assert total == 100 * self._rows, f"{total} bytes of values, {100 * self._rows} were written"

    def _stream(self) -> None:
        """Available-now, one micro-batch of everything."""
        with tempfile.TemporaryDirectory(prefix="highwater-bench-") as checkpoint:
            query = (
                self._stream_frame()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            try:
                assert query.awaitTermination(STREAM_TIMEOUT_S), f"the query ran for more than {STREAM_TIMEOUT_S} s"
            finally:
                query.stop()
            read = sum(report["numInputRows"] for report in map(dict, query.recentProgress))
            assert read == self._rows, f"{read} rows were read, {self._rows} were written"

    def _write(self) -> None:
        rows = made_rows(self._spark, self._rows, f"{KEY} key", f"{VALUE} value")
        rows.write.format(self._side.format).options(**self._side.write_options).mode("append").save()

    def _archive(self) -> None:
        """Into a new table."""
        self._archives += 1
        if self._side.format == "null":
            archive_by_spark_alone(self._spark, self._rows, self._archived)
        elif self._side.format == "highwater":
            archive_by_pipeline(self._side.bootstrap, self._side.topic, self._archived)
        else:
            archive_by_query(self._stream_frame(includeHeaders="true"), self._archived)

    @property
    def _archived(self) -> Path:
        """Where the last archive is."""
        return self._directory / str(self._archives)

    def _replay(self) -> None:
        """Into a topic that may have records."""
        with tempfile.TemporaryDirectory(dir=self._directory) as checkpoint:
            replay_archive(self._side.bootstrap, self._archived, self._side.replay_topic, Path(checkpoint))

    def _first_batch(self) -> float:
        """Seconds from `start` until the first micro-batch runs."""
        begun = Event()
        with tempfile.TemporaryDirectory(prefix="highwater-bench-") as checkpoint:
            writer = self._stream_frame().writeStream.foreachBatch(lambda frame, number: begun.set())
            started = time.perf_counter()
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                assert begun.wait(STREAM_TIMEOUT_S), f"no micro-batch began within {STREAM_TIMEOUT_S} s"
                return time.perf_counter() - started
            finally:
                query.stop()

    def _memory(self) -> Run:
        """A batch read and a stream. What the driver needs, in bytes: what lives in the JVM's heap, what the JVM holds
        outside of it at most, and what the driver's own Python holds at most. `local[2]`: the executor's share of the
        JVM is in it."""
        jvm = self._spark.sparkContext._jvm
        runtime = jvm.java.lang.Runtime.getRuntime()
        outside = [0]
        done = Event()

        def sample() -> None:
            heap = runtime.totalMemory()
            while not done.wait(SAMPLE_S):
                outside.append(driver_resident() - heap)

        sampler = Thread(target=sample)
        sampler.start()
        started = time.perf_counter()
        try:
            self._read()
            self._stream()
        finally:
            done.set()
            sampler.join()
        seconds = time.perf_counter() - started
        for _ in range(2):
            jvm.java.lang.System.gc()
        return Run(seconds, bytes=max(outside) + runtime.totalMemory() - runtime.freeMemory())


def driver_resident() -> int:
    """Bytes of this process, the JVM, and the process in which a streaming source plans; not of the workers."""
    total = psutil.Process().memory_info().rss
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
            if "java" in process.name() or any("streaming_source_runner" in word for word in command):
                total += process.memory_info().rss
        except psutil.Error:
            continue  # it has ended
    return int(total)


def cpu_s() -> float:
    """Of this process and everything that it started."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it counts with its parent now
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("Highwater", "Kafka", "null"))
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--topic", default="")
    parser.add_argument("--replay-topic", default="", help="that is replayed to")
    parser.add_argument("--jars", default="")
    arguments = parser.parse_args()
    spark = session(arguments.jars, arguments.query)
    side = side_of(arguments.side, arguments.bootstrap, arguments.topic, arguments.replay_topic, arguments.rows)
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as directory:
        queries = Queries(spark, side, arguments.rows, Path(directory))
        for _ in range(arguments.runs):
            print(json.dumps(asdict(queries.run(arguments.query))), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
