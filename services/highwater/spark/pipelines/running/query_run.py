"""A streaming query of a pipeline, from its start to its end: what stops it, and what is told of it meanwhile and
afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from highwater.console.counted import counted
from highwater.console.output import errors, screen
from highwater.spark.pipelines.command import termination
from highwater.spark.pipelines.command.pipeline_options import (
    AVAILABLE_NOW,
    StreamOptions,
    listen_address,
    trigger_interval_s,
    trigger_of,
)
from highwater.spark.pipelines.files.hadoop_files import qualified
from highwater.spark.pipelines.running.graceful_stop import MicroBatch, StoppableForeachBatch, drain
from highwater.spark.pipelines.running.run_monitor import RunMonitor
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.progress.lag import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

_POLL_S = 0.3
_LAST_EVENT_S = 10.0


def run_query(
    name: str,
    frame: DataFrame,
    writer: DataStreamWriter,
    options: StreamOptions,
    each: MicroBatch | None = None,
    poll: Callable[[], None] | None = None,
) -> None:
    """Runs the query until it ends, SIGTERM, or Ctrl-C. A terminal is told how far it is; at the end a
    line says what was done.

    After SIGTERM the micro-batch that has begun is brought to its end. Where the query has no end of its own
    (`--trigger 10s`), that is its end; else the exit status says that it was not reached.

    Args:
        frame: what is written.
        each: is called with every micro-batch; without, `writer` says where the rows go.
        poll: is called again and again, and once more at the end. What it raises ends the query.

    Raises `UserError`, `typer.Exit`.
    """
    with spark_errors(), ExitStack() as opened:
        # Between two triggers Spark says nothing.
        monitor = RunMonitor(name, options.stalled_after_s + trigger_interval_s(options.trigger))
        if (address := listen_address("--metrics-listen", options.metrics_listen)) is not None:
            opened.enter_context(monitor.serving(address))
        batches = None if each is None else StoppableForeachBatch(each)
        if batches is not None:
            writer = writer.foreachBatch(batches)
        run = _Run(f"highwater {name}", monitor)
        opened.enter_context(run.listened_to(frame.sparkSession))
        query = (
            writer.queryName(run.name)
            .option("checkpointLocation", qualified(frame.sparkSession, options.checkpoint))
            .trigger(**trigger_of(options.trigger))
            .start()
        )
        stopped = False
        try:
            with errors.status(f"{name}: starting …") as status:
                # Not one long call of the JVM: Ctrl-C in the middle of one leaves its answer to the next.
                while query.isActive and not termination.asked(_POLL_S):
                    if poll is not None:
                        poll()
                    if errors.is_terminal:
                        status.update(f"{name}: {run.speed}")
            drain(query, batches)
            stopped = query.isActive or (batches is not None and batches.refused)
            query.stop()
            if batches is None or not batches.refused:
                query.awaitTermination()  # raises what ended it
            if poll is not None:
                poll()
        finally:
            query.stop()
            run.ended.wait(_LAST_EVENT_S)
            screen.print(f"{name}: {run}{', stopped' if stopped else ''}")
    if stopped and options.trigger == AVAILABLE_NOW:
        raise termination.unfinished()


class _Run:
    """The progress that the query has reported of its micro-batches."""

    def __init__(self, name: str, monitor: RunMonitor) -> None:
        self.name = name
        self.ended = Event()
        self._monitor = monitor
        self._began_s = monotonic()
        self._id: object = None
        self._last_batch = -1
        self._records = self._batches = 0
        self._behind: Mapping[str, int] = {}  # by topic
        self._rows_per_s = 0.0
        self._late = False  # whether rows came that are older than the watermark

    @contextmanager
    def listened_to(self, spark: SparkSession) -> Iterator[None]:
        from pyspark.sql.streaming import StreamingQueryListener

        run = self

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:
                if event.name == run.name:
                    run._id = event.runId

            def onQueryProgress(self, event: Any) -> None:
                if event.progress.runId == run._id:
                    run._said(json.loads(event.progress.json))

            def onQueryIdle(self, event: Any) -> None:
                if event.runId == run._id:
                    run._monitor.said({})

            def onQueryTerminated(self, event: Any) -> None:
                if event.runId == run._id:
                    run.ended.set()

        listener = Listener()
        spark.streams.addListener(listener)
        try:
            yield
        finally:
            spark.streams.removeListener(listener)

    def _said(self, progress: Mapping[str, Any]) -> None:
        behind: dict[str, int] = {}
        for source in range(len(progress["sources"])):
            for partition, offsets in lag(progress, source).items():
                behind[partition.topic] = behind.get(partition.topic, 0) + offsets
        self._behind = behind
        self._monitor.said(behind)
        # While nothing comes Spark reports the micro-batch that is to be next again and again.
        if progress["batchId"] <= self._last_batch or not progress["numInputRows"]:
            return
        self._last_batch = progress["batchId"]
        self._records += progress["numInputRows"]
        self._batches += 1
        self._rows_per_s = progress.get("processedRowsPerSecond") or 0.0
        self._late |= any(one.get("numRowsDroppedByWatermark") for one in progress.get("stateOperators", ()))
        self._monitor.committed(progress["numInputRows"], progress["durationMs"].get("triggerExecution", 0) / 1000)

    @property
    def speed(self) -> str:
        if not self._batches:
            return "starting …"
        behind = f", {sum(self._behind.values()):,} offsets behind" if self._behind else ""
        return f"{self._rows_per_s:,.0f} rows/s{behind}"

    def __str__(self) -> str:
        batches = counted(self._batches, "micro-batch", "micro-batches")
        behind = f"; {sum(self._behind.values()):,} offsets behind" if any(self._behind.values()) else ""
        late = "; some were older than the watermark and did not count" if self._late else ""
        return f"{counted(self._records, 'record')} in {batches}, {monotonic() - self._began_s:.1f} s{behind}{late}"
