"""HDFS on this machine (a NameNode and a DataNode of PySpark's Hadoop, in one process), and what the tests need to look
at it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from hdfs_native import Client
from hdfs_native.fsspec import HdfsFileSystem

from highwater.spark.pipelines.session.jars import fetched_jars, spark_home

_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_JAVA = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S = 120


@dataclass(frozen=True)
class Hdfs:
    root: str  # as hdfs://HOST:PORT

    def names(self, directory: str) -> list[str]:
        """Of the files in the directory and below it, as paths from the root; nothing where there is none."""
        client = Client(self.root)
        try:
            return [one.path.lstrip("/") for one in client.list_status(f"/{directory}", True) if not one.isdir]
        except FileNotFoundError:
            return []

    def table(self, directory: str) -> pa.Table:
        """What is in a Delta table."""
        return DeltaTable(f"{self.root}/{directory}").to_pyarrow_table()

    def files(self, directory: str) -> pa.Table:
        """What is in Parquet files, as any reader finds it."""
        parsed = urlparse(self.root)
        # One that fsspec keeps would be closed in each process that is forked, which waits there for ever.
        system = HdfsFileSystem(parsed.hostname, parsed.port, skip_instance_cache=True)
        return ds.dataset(f"/{directory}", filesystem=system, format="parquet", partitioning="hive").to_table()

    def settings(self, _scratch: Path) -> list[str]:
        """Of Spark, as `NAME=VALUE`."""
        return ["spark.hadoop.dfs.replication=1"]


@contextlib.contextmanager
def hdfs(directory: Path) -> Iterator[Hdfs]:
    """An empty one, with its data below the directory."""
    details = directory / "details.json"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(_line(directory, details), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = monotonic() + _START_S
            while not details.exists() or not details.read_text().endswith("}"):
                assert process.poll() is None, (directory / "log").read_text()[-4000:]
                assert monotonic() < deadline, (directory / "log").read_text()[-4000:]
                Event().wait(0.1)
            yield Hdfs(f"hdfs://127.0.0.1:{json.loads(details.read_text())['namenode_port']}")
        finally:
            process.kill()
            process.wait()


def _line(directory: Path, details: Path) -> list[str]:
    jars = Path(spark_home(), "jars")
    (api,) = jars.glob("hadoop-client-api-*.jar")
    hadoop = api.stem.removeprefix("hadoop-client-api-")
    wanted = [f"org.apache.hadoop:hadoop-client-minicluster:{hadoop}"]
    excluded = ["org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime", "org.xerial.snappy:*"]
    classpath = ":".join([*map(str, fetched_jars(wanted, excluded, {})), f"{jars}/*"])
    given = ["-format", "-datanodes", "1", "-writeDetails", str(details), "-D", f"hdfs.minidfs.basedir={directory}"]
    return ["java", *_JAVA, "-cp", classpath, _MAIN, *given, "-D", "dfs.replication=1"]
