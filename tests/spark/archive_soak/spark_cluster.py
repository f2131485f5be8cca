"""Spark's own cluster on one machine: a master and a worker, whose executors are processes to kill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark
from conftest import wait_until

from highwater.rpc.process.local_process import free_ports

EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (port,) = free_ports(1, "127.0.0.1")
        self.master = f"spark://127.0.0.1:{port}"
        deploy = "org.apache.spark.deploy"
        self._master = self._run("master", f"{deploy}.master.Master", "--port", str(port))
        offered = ["--cores", "4", "--memory", "4G", "--work-dir", str(directory / "work")]
        self._worker = self._run("worker", f"{deploy}.worker.Worker", *offered, self.master)

    def _run(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        line = [str(Path(pyspark.__path__[0], "bin", "spark-class")), main, "--host", "127.0.0.1", "--webui-port", "0"]
        quick = {"SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"], "SPARK_DAEMON_MEMORY": "256m"}
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*line, *arguments], stdout=log, stderr=log, env={**os.environ, **quick}, start_new_session=True
            )

    def kill(self) -> None:
        for daemon in (self._worker, self._master):
            kill_all([*children(daemon.pid), psutil.Process(daemon.pid)])
            daemon.wait()

    def executors(self) -> list[psutil.Process]:
        return [one for one in children(self._worker.pid) if EXECUTOR in _line(one)]

    def tasks(self) -> list[psutil.Process]:
        """The Python processes of executors."""
        return [each for one in self.executors() for each in children(one.pid)]


def children(pid: int) -> list[psutil.Process]:
    """With their own."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """Nothing of it is left afterwards."""
    running = SparkCluster(directory)
    try:
        log = directory / "worker.log"
        wait_until(lambda: "Successfully registered" in log.read_text(), log.read_text)
        yield running
    finally:
        running.kill()
