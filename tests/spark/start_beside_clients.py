"""Starts Spark beside busy clients of every kind, in a process of its own each time:

    .venv-spark-4.2.0/bin/python tests/spark/start_beside_clients.py 100

Says how many sessions started while the clients went on; ends with 1 where one did not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "client"))

from forking_process import BusyClients
from quick_start import set_up

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client.blocking import Admin

START_TIMEOUT_S = 300
PAUSE_S = 0.005


def start_once(address: str) -> None:
    """In this process: clients, then Spark."""
    from pyspark.sql import SparkSession

    set_up()
    with BusyClients(address, PAUSE_S) as clients:  # the two processors are also Spark's
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        clients.still_work()
        spark.stop()


def start_in_processes(address: str, count: int) -> list[str]:
    """What was said by the processes that failed."""
    failures = []
    for number in range(count):
        done = subprocess.run(
            [sys.executable, __file__, "once", address],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        told = f"{done.stdout}{done.stderr}"
        if done.returncode != 0 or "epoll_wait error" in told or "skipping fork() handlers" in told:
            failures.append(told[-4000:])
            print(told[-4000:], flush=True)
        if (number + 1) % 5 == 0:
            print(f"{number + 1} started, {len(failures)} failed", flush=True)
    return failures


def main(count: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster(LocalClusterSettings(Path(directory), brokers=1, port=0))
        cluster.start()
        try:
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic("t", 2, 1, {"retention.bytes": str(64 << 20)})
            failures = start_in_processes(cluster.bootstrap, count)
        finally:
            cluster.kill()
    print(f"{count} sessions started beside busy clients, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1] == "once":
        start_once(sys.argv[2])
    else:
        sys.exit(main(int(sys.argv[1])))
