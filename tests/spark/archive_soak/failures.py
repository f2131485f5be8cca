"""What happens to an archive, drawn at random."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Timer
from time import monotonic

import psutil

from archive_soak.archiver import GONE_S, KILLED, MADE_ANEW, RESTORED, RIVAL, TWICE, Archiver
from archive_soak.spark_cluster import SparkCluster, kill_all
from archive_soak.state import SHOWN_PROBLEMS, Soak
from archive_soak.tables import Readers, SoakTable, WrongTableError
from archive_soak.topics import MOST_PARTITIONS, Topics
from highwater.client import TopicPartition
from highwater.client.blocking import Admin

ROUND_S = 6.0
_CAUGHT_UP_S = 300.0
_RIVALS_S = 60.0
_MENDED_S = 240.0


class Failures:
    """Of one run: the pipeline, its table, and all that is done to them."""

    def __init__(
        self, soak: Soak, directory: Path, bootstrap: str, admin: Admin, topics: Topics, spark: SparkCluster
    ) -> None:
        self._soak, self._directory, self._admin = soak, directory, admin
        self._topics, self._spark = topics, spark
        self._random = soak.random("failures")
        self._orphans: list[psutil.Process] = []  # JVMs whose Python was killed
        self._tables = 0
        self._table = self._new_table()
        self._archiver = Archiver(soak, "first", directory, bootstrap, self._table, spark.master)
        self._second = Archiver(soak, "second", directory, bootstrap, self._table, "local[1]")
        self._readers = Readers(soak, self._table)
        # A JVM's start takes most of what a round has: what needs one is rare.
        self._kinds = {
            self.kill_executor: 16,
            self.stop_executor: 14,
            self.kill_task: 18,
            self.optimize: 12,
            self.vacuum: 12,
            self.trim: 8,
            self.add_partition: 1,
            self.kill_helper: 1,
            self.kill_driver: 2,
            self.terminate: 1,
            self.second_archive: 2,
            self.make_topic_anew: 1,
            self.restore: 2,
            self.optimize_twice: 1,
        }
        self._deck: list[Callable[[], None]] = []

    def run(self, seconds: float) -> None:
        """Rounds of failures, each with a comparison at its end, until a time is over or the table is wrong."""
        end = monotonic() + seconds
        try:
            while monotonic() < end:
                self._keep_running()
                round_end = monotonic() + ROUND_S
                while monotonic() < round_end:
                    self._keep_running()
                    self._drawn()()
                    self._pause(0.2, 2.5)
                self._compare()
        except WrongTableError as error:
            self._soak.problem(str(error))
        finally:
            self._readers.stop()
            self._archiver.kill()
            self._second.kill()
            kill_all(self._orphans)

    def _drawn(self) -> Callable[[], None]:
        """Each kind comes up as often as its number, in an order of its own, before any comes up more often."""
        if not self._deck:
            self._deck = [kind for kind, number in self._kinds.items() for _ in range(number)]
            self._random.shuffle(self._deck)
        return self._deck.pop()

    def _pause(self, shortest_s: float, longest_s: float) -> None:
        Event().wait(self._random.uniform(shortest_s, longest_s))

    def _keep_running(self) -> None:
        """Mostly until it adds something: what is killed while it starts has nothing to lose."""
        while not self._archiver.running:
            self._archiver.judge()
            assert len(self._soak.problems) < SHOWN_PROBLEMS, "it ends again and again"
            self._archiver.start()
            if self._random.random() < 0.8:
                self._archiver.ready()

    def _compare(self) -> None:
        """Waits until all is archived that is in the topics now, and looks whether it is there once."""
        ends = {
            TopicPartition(topic, partition): end
            for topic, one in self._topics.by_name.items()
            for partition, end in list(one.ends.items())
        }
        deadline = monotonic() + _CAUGHT_UP_S
        while not self._table.reached(ends):
            if monotonic() > deadline:
                said = f"it does not catch up within {_CAUGHT_UP_S:g} s: {self._table.archived()}, not {ends}"
                self._soak.problem(said)
                self._archiver.kill()
                return
            self._keep_running()
            self._pause(0.1, 0.2)
        for one in self._topics.by_name.values():
            one.check()
        rows = self._table.check(ends)
        self._soak.rounds += 1
        self._soak.rows += rows
        self._soak.say(f"round {self._soak.rounds}: {rows} rows, version {self._table.latest_version()}: equal")

    # Beside a running pipeline

    def kill_executor(self) -> None:
        self._kill("SIGKILL of an executor", self._spark.executors())

    def kill_task(self) -> None:
        self._kill("SIGKILL of a task's Python", self._spark.tasks())

    def kill_helper(self) -> None:
        """The source's Python process beside the driver."""
        self._kill("SIGKILL of a source's Python", self._archiver.helpers)

    def _kill(self, what: str, found: list[psutil.Process]) -> None:
        if found:
            self._archiver.excuses.add(KILLED)
            kill_all([self._random.choice(found)])
            self._soak.did(what)

    def stop_executor(self) -> None:
        """For a while: what it does is done by another one, too, and goes on when that is through."""
        if executors := self._spark.executors():
            one, seconds = self._random.choice(executors), self._random.uniform(0.5, 4)
            with suppress(psutil.NoSuchProcess):
                one.suspend()
                Timer(seconds, _resume, [one]).start()
                self._soak.did("SIGSTOP of an executor", f"for {seconds:.1f} s")

    def optimize(self) -> None:
        """By another engine than Spark, so not beside a process that merges files, be it one whose Python was
        killed."""
        merging = self._archiver.running and self._archiver.merges
        if self._table.latest_version() >= 0 and not merging and not self._left_running():
            self._soak.did("OPTIMIZE" if self._table.optimize() else "OPTIMIZE that another transaction was before")

    def optimize_twice(self) -> None:
        """By two at once, of another engine, which lets both: the pipeline ends, and what it says mends the table."""
        if not self._archiver.ready() or self._archiver.merges or self._left_running():
            return
        mended = self._table.restores + 1
        if not self._table.optimize_twice():
            return
        self._soak.did("OPTIMIZE by two at once")
        deadline = monotonic() + _MENDED_S
        while self._table.restores < mended:
            if not self._archiver.running:
                self._archiver.start()
            self._archiver.excuses.add(TWICE)
            self._pause(0.1, 0.2)
            if not self._archiver.running:
                self._archiver.judge()
            if monotonic() > deadline:
                self._soak.problem(f"files were merged twice, and nothing says so in {_MENDED_S:g} s")
                return

    def vacuum(self) -> None:
        if self._table.latest_version() >= 0:
            self._soak.did("VACUUM", f"of {self._table.vacuum(full=False)} files")

    def trim(self) -> None:
        """Records that are archived."""
        archived = self._table.archived()
        name = self._random.choice(list(self._topics.by_name))
        offsets = archived.offsets.get(name, {}) if archived is not None else {}
        one = self._topics.by_name[name]
        for partition, end in offsets.items():
            offset = self._random.randint(one.begins[partition], end)
            if offset > one.begins[partition]:
                one.check()
                self._table.trimmed_at = self._table.latest_version()
                one.trim(partition, offset)
                self._soak.did("trimmed partitions", f"{name}-{partition} before {offset}, of {end}")

    def add_partition(self) -> None:
        one = self._topics.by_name[self._random.choice(list(self._topics.by_name))]
        if one.partitions < MOST_PARTITIONS:
            one.grow(self._admin)
            self._soak.did("partitions added")

    # Of the pipeline itself

    def kill_driver(self) -> None:
        """Executors are left as they are. Python alone: the JVM may be in the middle of a transaction, beside the next
        start."""
        if not self._archiver.running:
            return
        python, *java = self._archiver.processes
        what = self._random.choice(["Python and JVM", "Python", "JVM"])
        self._soak.did(f"SIGKILL of the driver's {what}")
        if what == "JVM":
            kill_all(java)
            self._archiver.end(1)
        else:
            kill_all([python] if what == "Python" else [python, *java])
            self._archiver.leave()
            self._orphans += java
            if what == "Python" and self._random.random() < 0.5:
                self._await_gone(java)
        alone = not any(one.is_running() for one in java)
        self._start_again(alone=alone)
        if not alone:
            self._archiver.excuses.add(RIVAL)

    def _left_running(self) -> bool:
        return any(one.is_running() for one in self._orphans)

    def _await_gone(self, processes: list[psutil.Process]) -> None:
        _, left = psutil.wait_procs(processes, GONE_S)
        if left:
            self._soak.problem(f"the JVM runs on {GONE_S:g} s after its Python was killed")
            kill_all(left)

    def terminate(self) -> None:
        if self._archiver.ready():
            self._soak.did("SIGTERM")
            os.kill(self._archiver.processes[0].pid, signal.SIGTERM)
            self._archiver.end(0)
            self._start_again(alone=True)

    def _start_again(self, *, alone: bool) -> None:
        """`alone`: nobody writes to the table."""
        if alone and self._random.random() < 0.4 and self._table.latest_version() >= 0:
            self._soak.did("full VACUUM", f"of {self._table.vacuum(full=True)} files")
        if alone and self._random.random() < 0.3:
            self._archiver.forget()
            self._soak.did("lost checkpoints")
        self._archiver.start()

    def second_archive(self) -> None:
        """Both write until one of them ends, or the time is over."""
        if not self._archiver.ready():
            return
        self._soak.did("two archives at a time")
        if self._random.random() < 0.3:
            self._second.forget()
        self._second.start()
        for one in (self._archiver, self._second):
            one.excuses.add(RIVAL)
        deadline = monotonic() + _RIVALS_S
        while monotonic() < deadline and self._archiver.running and self._second.running:
            self._pause(0.1, 0.2)
        if self._second.running:
            self._pause(0, 2)
        if self._second.running:
            self._second.kill()
        else:
            self._second.judge()

    def restore(self) -> None:
        """By others, to a version behind which the topics have all: beside a run, which ends, or between two."""
        table = self._table
        if not self._archiver.ready() or self._left_running():
            return
        beside = self._random.random() < 0.5
        if not beside:
            self._archiver.kill()
        version = self._random.randint(table.trimmed_at + 1, max(table.latest_version(), table.trimmed_at + 1))
        self._archiver.excuses.add(RESTORED)
        if version >= table.latest_version() or not table.restore(version):
            return
        self._soak.did(f"RESTORE {'beside a run' if beside else 'between runs'}", f"to version {version}")
        if beside:
            self._archiver.end(1, RESTORED)
        if self._random.random() < 0.5:
            self._archiver.forget()
        self._archiver.start()
        self._archiver.excuses.add(RESTORED)

    # Of its topics

    def make_topic_anew(self) -> None:
        name = self._random.choice(list(self._topics.by_name))
        beside = self._random.random() < 0.5
        if not self._archiver.ready():
            return
        self._soak.did(f"topics made anew {'beside a run' if beside else 'between runs'}")
        if not beside:
            self._archiver.kill()
        self._topics.make_anew(name)
        if not beside:
            if self._random.random() < 0.5:
                self._archiver.forget()
            self._archiver.start()
        self._archiver.end(1, MADE_ANEW)
        self._soak.rows += self._table.check(self._table.ends())
        self._table = self._readers.table = self._archiver.table = self._second.table = self._new_table()
        self._archiver.start()
        self._archiver.ready()

    def _new_table(self) -> SoakTable:
        self._tables += 1
        topics = dict(self._topics.by_name)
        begins = {
            TopicPartition(name, partition): first
            for name, one in topics.items()
            for partition, first in one.begins.items()
        }
        return SoakTable(self._directory / f"table-{self._tables}", topics, begins)


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
