"""A second streaming query of a pipeline, which runs as long as the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from highwater.errors import UserError
from highwater.spark.pipelines.command import termination
from highwater.spark.pipelines.command.pipeline_options import StreamOptions, trigger_of
from highwater.spark.pipelines.files.hadoop_files import qualified
from highwater.spark.pipelines.running.graceful_stop import MicroBatch, StoppableForeachBatch, drain
from highwater.spark.pipelines.session.spark_errors import cause_of, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POLL_S = 0.3


@contextmanager
def concurrent_query(
    main: str, name: str, frame: DataFrame, each: MicroBatch, options: StreamOptions
) -> Iterator[None]:
    """Runs the query `name` for as long as the block, in which the query `main` runs. Where it fails, it ends that one,
    which ends the block. After SIGTERM it brings to its end what it has begun.

    Raises `UserError`: what made it fail, whatever the block raises."""
    from pyspark import InheritableThread

    batches = StoppableForeachBatch(each)
    with spark_errors():
        query = (
            frame.writeStream.foreachBatch(batches)
            .queryName(f"highwater {name}")
            .option("checkpointLocation", qualified(frame.sparkSession, options.checkpoint))
            .trigger(**trigger_of(options.trigger))
            .start()
        )
    over = Event()

    def watch() -> None:
        """Until the block is over: the other query may begin only after this one has failed."""
        while not over.wait(_POLL_S):
            if not query.isActive and not batches.refused:  # after SIGTERM each brings its own micro-batch to its end
                for other in frame.sparkSession.streams.active:
                    if other.name == f"highwater {main}":
                        other.stop()

    thread = InheritableThread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if termination.asked():
            drain(query, batches)
        query.stop()
        failed = query.exception()
        if failed is not None and not batches.refused:
            raise UserError(cause_of(str(failed)))
