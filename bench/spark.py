"""Spark reads and writes a topic, and archives it: on Highwater, on a Python source and sink that do nothing, and on
Kafka through Spark's own connector where HIGHWATER_KAFKA_PEER names a program that starts it; in alternation.

    python -m bench.spark [--records 1000000] [--only read,write]

Each side runs each query in a Spark session of its own: once cold, the first query of a new JVM, then several times
warm. The figures are rows a second, `..._cold` of the first and without it the median of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

from bench.highwater_side import HighwaterSide, three_brokers
from bench.kafka_peer import KafkaPeer, peer_script
from bench.results import Result, publish, results
from bench.work import Work

# And the sides that run each; all unless said.
QUERIES: dict[str, set[str]] = {
    "read": set(),
    "aggregate": set(),
    "stream": set(),
    "write": set(),
    "archive": set(),  # the side that does nothing writes the same rows to a table, from no topic
    "replay": {"Highwater"},
    "first_batch": set(),
    "driver_growth": {"Highwater", "Kafka"},
}
RECORDS = 10_000_000
READ_TOPIC = "bench-spark-read"
SMALL_TOPIC = "bench-spark-small"  # a tenth of it
REPLAY_TOPIC = "bench-spark-replay"
OF_PIPELINES = ("archive", "replay")
REPOSITORY = Path(__file__).resolve().parent.parent


class SparkSide:
    """What the queries run on; `name` is known to `bench.spark_query`."""

    name = "null"
    bootstrap = ""
    jars = ""

    def start(self) -> None:
        """Brokers, ready to serve."""

    def stop(self) -> None:
        """Whatever was started."""

    def create(self, topic: str) -> None:
        """6 partitions, replication factor 3."""

    def broker_pids(self) -> list[int]:
        return []


class HighwaterSparkSide(SparkSide):
    name = "Highwater"

    def __init__(self, data: Path) -> None:
        self._side = HighwaterSide(three_brokers(data), Work())

    def start(self) -> None:
        self._side.startup()
        self.bootstrap = self._side.cluster.bootstrap

    def stop(self) -> None:
        self._side.stop()

    def create(self, topic: str) -> None:
        self._side.create(topic)

    def broker_pids(self) -> list[int]:
        return [process.pid for broker in (1, 2, 3) for process in self._side.cluster.broker_processes(broker)]


class KafkaSparkSide(SparkSide):
    name = "Kafka"

    def __init__(self, peer: KafkaPeer, jars: str) -> None:
        self._peer = peer
        self.jars = jars

    def start(self) -> None:
        self._peer.up()
        self.bootstrap = self._peer.bootstrap

    def stop(self) -> None:
        self._peer.down()

    def create(self, topic: str) -> None:
        self._peer.create(topic)

    def broker_pids(self) -> list[int]:
        return [self._peer.pid(broker) for broker in (1, 2, 3)]


def kafka_side() -> KafkaSparkSide | None:
    """None, with the reason on standard error: this is measured without Kafka."""
    script = peer_script()
    if script is None:
        print("without Kafka: HIGHWATER_KAFKA_PEER names no program that starts it", file=sys.stderr)
        return None
    peer = KafkaPeer(script)
    jars = peer.run("spark-jars").splitlines()[-1]
    if f"-{pyspark.__version__}.jar" not in jars:
        print(f"without Kafka: its connector is not for PySpark {pyspark.__version__}", file=sys.stderr)
        return None
    return KafkaSparkSide(peer, jars)


def query(side: SparkSide, kind: str, topic: str, rows: int, runs: int) -> list[dict[str, float]]:
    """What each run took. Spark's log goes to a file that is shown where it fails."""
    command = [sys.executable, "-m", "bench.spark_query", side.name, kind]
    command += ["--rows", str(rows), "--runs", str(runs), "--bootstrap", side.bootstrap, "--topic", topic]
    command += ["--replay-topic", REPLAY_TOPIC, "--jars", side.jars]
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}  # Spark's workers, too
    before = cpu_s(side.broker_pids())
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        if done.returncode:
            log.seek(0)
            raise RuntimeError(f"{side.name}: {kind} failed:\n{log.read()[-5000:]}")
    found: list[dict[str, float]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    brokers_s = (cpu_s(side.broker_pids()) - before) / runs
    for number, run in enumerate(found):
        what = "cold" if number == 0 else "warm"
        print(
            f"{side.name}: {kind}, {what}: {run['seconds']:.2f} s; CPU: Spark and Python {run['cpu_s']:.1f} s, "
            f"brokers about {brokers_s:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    return found


def cpu_s(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


def measure(side: SparkSide, kind: str, number: int, records: int, warm: int) -> dict[str, list[float]]:
    """The figures of one kind of query, by the names of their results."""
    name = f"{kind}_rate" if kind in OF_PIPELINES else f"spark_{kind}"
    if kind == "first_batch":
        return {name: [query(side, kind, READ_TOPIC, records, 1)[0]["seconds"] for _ in range(max(warm, 1))]}
    if kind == "driver_growth":
        (small,) = query(side, "memory", SMALL_TOPIC, records // 10, 1)
        (large,) = query(side, "memory", READ_TOPIC, records, 1)
        print(
            f"{side.name}: driver memory {small['bytes'] / 1e6:.0f} MB at {records // 10:,} rows, "
            f"{large['bytes'] / 1e6:.0f} MB at {records:,}",
            file=sys.stderr,
        )
        return {name: [large["bytes"] / small["bytes"]]}
    topic = READ_TOPIC
    if kind == "write":
        topic = f"bench-spark-write-{number}"
        side.create(topic)
    rates = [records / run["seconds"] for run in query(side, kind, topic, records, warm + 1)]
    if kind == "replay":  # its JVM has archived before
        return {name: rates}
    return {f"{name}_cold": rates[:1], name: rates[1:]}


def fill(side: SparkSide, kinds: Sequence[str], records: int) -> None:
    """What is read, written by Spark."""
    wanted = {READ_TOPIC: records} if set(kinds) - {"write"} else {}
    if "driver_growth" in kinds:
        wanted[SMALL_TOPIC] = records // 10
    for topic, rows in wanted.items():
        side.create(topic)
        query(side, "write", topic, rows, 1)
    if "replay" in kinds and side.name in QUERIES["replay"]:
        side.create(REPLAY_TOPIC)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS, help=f"of 100 bytes, {RECORDS:,} unless said")
    parser.add_argument("--only", default="", help=f"some of {','.join(QUERIES)}")
    parser.add_argument("--warm", type=int, default=3, help="warm runs behind each cold one")
    parser.add_argument("--rounds", type=int, default=1, help="the sides take turns so often; medians over all")
    arguments = parser.parse_args()
    kinds = [kind for kind in QUERIES if not arguments.only or kind in arguments.only.split(",")]
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as data:
        sides = [SparkSide(), HighwaterSparkSide(Path(data) / "highwater")]
        if (kafka := kafka_side()) is not None:
            sides.append(kafka)
        try:
            for side in sides:
                side.start()
                if side.bootstrap:
                    fill(side, kinds, arguments.records)
            for number in range(arguments.rounds):
                for kind in kinds:
                    for side in sides:
                        if side.name in (QUERIES[kind] or {side.name}):
                            for name, values in measure(side, kind, number, arguments.records, arguments.warm).items():
                                taken[side.name][name] += values
        finally:
            for side in sides:
                side.stop()
    publish(compared(taken))
    return 0


def compared(taken: dict[str, dict[str, list[float]]]) -> list[Result]:
    """The medians, Highwater's beside the others'."""
    medians = {
        side: {name: statistics.median(values) for name, values in found.items() if values}
        for side, found in taken.items()
    }
    peer = "Kafka" if "Kafka" in medians else None
    return results(medians["Highwater"], peer, medians.get("Kafka"), medians.get("null"))


if __name__ == "__main__":
    sys.exit(main())
