"""What lets the many short-lived JVMs and Python workers of these tests start in two thirds of the time.

    .venv-spark-4.2.0/bin/python tests/spark/quick_start.py

makes the archive of Java's classes that `set_up` names. Java loads them from there, instead of taking them from a
hundred JARs and verifying them anew; where there is none, or one of another Java, it does that.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from highwater.spark import quick_workers

CLASSES = Path(sys.prefix) / "java-classes.jsa"
# What compiles longest would take a core from a JVM of a few seconds and never pay.
# Without that compiler Java keeps 48 MB for compiled code, which a session of a hundred queries has full: what is swept
# out of it is interpreted, and compiled again.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
_FEW_TASKS = ["spark.sql.shuffle.partitions=2"]


def set_up() -> None:
    """For the JVMs and Python workers that this process starts, and those that they start."""
    quick_workers()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{_JAVA} -XX:SharedArchiveFile={CLASSES}")


def make_archive() -> None:
    """Of the classes that a pipeline loads."""
    from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
    from highwater.client.blocking import Admin, Producer
    from highwater.spark.pipelines.archive import ArchiveOptions, run

    os.environ["SPARK_SUBMIT_OPTS"] = f"{_JAVA} -XX:ArchiveClassesAtExit={CLASSES}"
    set_up()
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster(LocalClusterSettings(Path(directory, "cluster"), brokers=1, port=0))
        cluster.start()
        try:
            with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
                admin.create_topic("t", 2, 1)
                for number in range(200):
                    producer.send("t", b"value", timestamp_ms=number)
            to, checkpoint = f"{directory}/archive", f"{directory}/checkpoint"
            reading = {"bootstrap": cluster.bootstrap, "topic": ["t"], "max_offsets_per_trigger": 100}
            run(ArchiveOptions(to=to, checkpoint=checkpoint, master="local[2]", conf=_FEW_TASKS, **reading))
        finally:
            cluster.kill()


if __name__ == "__main__":
    make_archive()
