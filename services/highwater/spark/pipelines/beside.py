"""A streaming query beside another one of the same pipeline, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from highwater.rpc.server import UserError
from highwater.spark.pipelines.common import StreamOptions, cause_of, spark_errors, trigger_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

_LOOK_S = 0.3


@contextmanager
def running_beside(spark: SparkSession, name: str, writer: DataStreamWriter, options: StreamOptions) -> Iterator[None]:
    """Runs the query for as long as the block. Where it fails, it ends the session's others, which ends the block.

    Raises `UserError`."""
    from pyspark import InheritableThread

    with spark_errors():
        query = (
            writer.queryName(f"highwater {name}")
            .option("checkpointLocation", options.checkpoint)
            .trigger(**trigger_of(options.trigger))
            .start()
        )
    over = Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if not query.isActive:
                for other in spark.streams.active:
                    other.stop()
                return

    thread = InheritableThread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        failed = query.exception()
        query.stop()
    if failed is not None:
        raise UserError(cause_of(str(failed)))
