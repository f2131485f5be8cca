"""A bar for reads that take long: how many records of how many, how fast, how much longer.

Spark itself tells the driver of tasks that have ended, no more. So tasks that read a topic say now and then how far
they are (`reports`); where their datagrams do not arrive, the bar counts Spark's tasks only.
"""

from __future__ import annotations

import logging
import secrets
import socket
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from highwater.spark.progress.read_progress import (
    LISTENER_PROPERTY,
    MAX_REPORT_BYTES,
    ReadProgress,
    ReadTally,
    decode_report,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFRESH_S = 0.2
MAX_STAGES = 4  # rows of stages that are shown at once
_RECEIVE_BUFFER_BYTES = 1024 * 1024  # what arrives between two refreshes; more is dropped, and made good by later ones
_MAX_DATAGRAMS = 10_000  # looked at in one refresh

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage of Spark's that runs now."""

    stage_id: int
    name: str
    tasks_done: int
    tasks: int


class ProgressListener:
    """The socket that tasks send their reports to. Reads when it is asked to; in between the kernel keeps a bounded
    number."""

    def __init__(self, host: str, port: int = 0) -> None:
        """Raises `OSError` where the address cannot be listened at."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(found[0], found[1])
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            self._socket.bind(found[4])
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._token = secrets.token_hex(8)  # a datagram of somebody else is not counted

    def reached_at(self, host: str) -> str:
        """The address that tasks are told: `token@host:port`."""
        return f"{self._token}@{host}:{self._socket.getsockname()[1]}"

    def drain_into(self, tally: ReadTally) -> None:
        for _ in range(_MAX_DATAGRAMS):
            try:
                datagram = self._socket.recv(MAX_REPORT_BYTES)
            except OSError:
                return
            if (report := decode_report(self._token, datagram)) is not None:
                tally.add(report)

    def close(self) -> None:
        self._socket.close()


class ProgressBar:
    """See `highwater.spark.progress_bar`. `reads` and `stages` are what it shows."""

    def __init__(self, spark: SparkSession, *, console: Console | None, port: int) -> None:
        self.reads: tuple[ReadProgress, ...] = ()
        self.stages: tuple[StageProgress, ...] = ()
        self._context = spark.sparkContext
        self._port = port
        self._tally = ReadTally()
        self._listener: ProgressListener | None = None
        self._property_before: str | None = None
        self._rows: dict[str, TaskID] = {}
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="highwater-progress", daemon=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            _CountColumn(),
            _RateColumn(),
            TimeRemainingColumn(compact=True),
            console=console or Console(stderr=True),
            transient=False,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        self._property_before = self._context.getLocalProperty(LISTENER_PROPERTY)
        self._context.setLocalProperty(LISTENER_PROPERTY, self._listen())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._refresh(active=())
        self._progress.stop()
        if self._listener is not None:
            self._listener.close()
        if self._context._jsc is not None:  # the session was not stopped
            self._context.setLocalProperty(LISTENER_PROPERTY, self._property_before)

    def _listen(self) -> str | None:
        """Listens for reports of tasks; None where that fails: the bar counts tasks only."""
        settings = self._context.getConf()
        host = settings.get("spark.driver.host", "127.0.0.1")
        try:
            self._listener = ProgressListener(settings.get("spark.driver.bindAddress", host), self._port)
        except OSError as error:
            logger.warning("no progress within tasks: the driver cannot listen for it (%s)", error)
            return None
        return self._listener.reached_at(host)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(REFRESH_S):
                self._refresh(self._active())
        except Exception:
            # The session was stopped, or its JVM is gone: no more to show, and no reason to fail the job.
            logger.debug("the progress bar ends", exc_info=True)

    def _active(self) -> tuple[StageProgress, ...]:
        tracker = self._context.statusTracker()
        found = []
        for stage_id in sorted(tracker.getActiveStageIds()):
            if (info := tracker.getStageInfo(stage_id)) is not None:
                found.append(StageProgress(stage_id, info.name, info.numCompletedTasks, info.numTasks))
        return tuple(found)

    def _refresh(self, active: tuple[StageProgress, ...]) -> None:
        if self._listener is not None:
            self._listener.drain_into(self._tally)
        self.stages = active
        self.reads = tuple(self._tally.reads({stage.stage_id for stage in active}))
        rows = {f"stage {one.stage_id}": (one.tasks_done, one.tasks, "tasks") for one in active[:MAX_STAGES]}
        rows |= {one.label: (min(one.done, one.total), one.total, "records") for one in self.reads}
        for name in self._rows.keys() - rows.keys():
            self._progress.remove_task(self._rows.pop(name))
        for name, (done, total, unit) in rows.items():
            self._show(name, done, total, unit)

    def _show(self, name: str, done: int, total: int, unit: str) -> None:
        row = self._rows.get(name)
        if row is None:
            self._rows[name] = self._progress.add_task(name, total=total, completed=done, unit=unit)
            return
        shown = next(task for task in self._progress.tasks if task.id == row)
        if done < shown.completed or total != shown.total:
            self._progress.reset(row, total=total, completed=done)  # the next micro-batch
        else:
            self._progress.update(row, completed=done)


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:,.0f} of {task.total or 0:,.0f} {task.fields['unit']}")


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None or task.fields["unit"] == "tasks" else f"{speed:,.0f}/s")
