"""The archive pipeline under test, as a process that is started again and again; what it may end with, and what not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from time import monotonic

import psutil
from pipeline_process import PipelineProcess

from archive_soak.spark_cluster import children, kill_all
from archive_soak.state import Soak
from archive_soak.tables import SoakTable

RIVAL = "another archive pipeline writes to|two archive pipelines wrote to|is not what was written: another process"
MADE_ANEW = r"made anew|is another topic than before|is gone: records may be lost|ends at \d+, before offset"
RESTORED = (
    "was restored to an earlier version while it was archived to|this one was put back|was removed, or put back, while"
)
TWICE = r"replaces files that version \d+ had replaced already"
# A micro-batch that is done again may be of records that are archived, and trimmed since.
TRIMMED = r"which begins at \d+ by now|no longer in the log"
# Spark gives a task up that has failed four times, and a stage; and a stream whose Python process is gone.
KILLED = (
    r"failed \d+ times|has failed the maximum|Python worker|worker exited|Connection refused|EOFException|"
    "does not say why"
)
_RESTORE = re.compile(r"RESTORE it to version (\d+); remove checkpoint")
_READY_S, _END_S = 240.0, 120.0
GONE_S = 60.0
_OF_TESTS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.task.duration.threshold": "200ms",
    "spark.sql.shuffle.partitions": "2",
}


class Archiver:
    """One pipeline with a checkpoint of its own."""

    def __init__(self, soak: Soak, name: str, directory: Path, bootstrap: str, table: SoakTable, master: str) -> None:
        self.table = table
        self.excuses: set[str] = set()
        """Patterns of what this start may end with, with exit status 1."""
        self._soak, self.name, self._directory, self._bootstrap = soak, name, directory, bootstrap
        self._master, self._random = master, soak.random(name)
        self.merges = self._random.random() < 0.5
        """Whether this start merges files: others do where none does, as files are merged by one engine."""
        self._starts = self._pid = 0
        self._process: PipelineProcess | None = None
        self._began = ("", 0)

    @property
    def checkpoint(self) -> Path:
        return self._directory / f"{self.table.path.name}-{self.name}-checkpoint"

    @property
    def processes(self) -> list[psutil.Process]:
        """Python and the JVM."""
        python = psutil.Process(self._pid)
        return [python, *(one for one in python.children() if "java" in one.name())]

    @property
    def helpers(self) -> list[psutil.Process]:
        """Python processes of the driver, in which sources plan what tasks read."""
        return [each for one in self.processes[1:] for each in children(one.pid)]

    def start(self) -> None:
        self._starts += 1
        self.excuses = set()
        self.merges = not self.merges
        self._soak.counts[f"starts of a pipeline that merges files {'itself' if self.merges else 'never'}"] += 1
        self._began = self._number()
        conf = _OF_TESTS if self._master.startswith("spark:") else {"spark.sql.shuffle.partitions": "2"}
        self._process = PipelineProcess("archive", self._directory / f"{self.name}-{self._starts}.log", self._master)
        self._pid = self._process.start(
            [
                *("--to", str(self.table.path), "--checkpoint", str(self.checkpoint), "--bootstrap", self._bootstrap),
                *(part for topic in self.table.topics for part in ("--topic", topic)),
                *("--trigger", "200ms"),
                *(("--compact-every", "5") if self.merges else ()),
                *("--max-offsets-per-trigger", str(self._random.choice((200, 500, 2000)))),
                *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
            ]
        )

    def _number(self) -> tuple[str, int]:
        found = self.table.archived()
        return ("", 0) if found is None else (found.lineage, found.number)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def added(self) -> bool:
        """Whether the table has a transaction of an archive since the start."""
        return self._number() != self._began

    def ready(self) -> bool:
        """Waits until it has added something; False where it ends before."""
        deadline = monotonic() + _READY_S
        while self.running and not self.added():
            assert monotonic() < deadline, f"{self.name} adds nothing in {_READY_S} s"
            self._pause()
        return self.running

    def _pause(self) -> None:
        assert self._process is not None
        self._process.wait(0.1)

    def kill(self) -> None:
        """Python and the JVM at once."""
        if self.running:
            kill_all(self.processes)
        self.reap()

    def reap(self) -> None:
        """With all that it has started."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def leave(self) -> None:
        """Python was killed; what it has started is left as it is."""
        assert self._process is not None
        self._process.wait(GONE_S)
        self._process = None

    def end(self, status: int, excuses: str = "") -> None:
        """Waits for it to end by itself."""
        assert self._process is not None
        found = self._process.wait(_END_S)
        if found is None:
            self._soak.problem(f"{self.name} does not end within {_END_S} s")
        elif found != status or not re.search(excuses, self._process.said()):
            self.judge()
            return
        self.reap()

    def judge(self) -> None:
        """Where it has ended by itself: it may have done so, or that is a problem. Does what its sentence says."""
        if self._process is None:
            return
        status, said = self._process.wait(0), self._process.said().strip()
        self._process = None
        told = said.splitlines()[-1] if said else "nothing"
        known = next((one for one in (*self.excuses, TRIMMED) if re.search(one, said)), None)
        if status != 1 or known is None:
            self._soak.problem(f"{self.name} (log {self._starts}) ended with {status}: {told[:600]}")
        else:
            self._soak.did(f"ended by itself with status 1: {re.search(known, said)[0]}", told[:300])  # type: ignore[index]
        if (wrong := _RESTORE.search(said)) is not None:
            self.table.restore(int(wrong[1]))
            self._soak.did("RESTORE as the sentence says", wrong[1])
        if re.search(r"remove (the )?checkpoint", said):
            self.forget()

    def forget(self) -> None:
        """Its checkpoint is lost."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
