"""The bar for queries that take long, as users start it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from highwater.extras import needing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from highwater.spark.progress.display import ProgressBar


def progress_bar(spark: SparkSession, *, console: Console | None = None, port: int = 0) -> ProgressBar:
    """Shows how far Spark is with what is started inside.

        with progress_bar(spark):
            spark.read.format("highwater").options(**options).load().write.parquet("/data/flights")

    A streaming query that is started inside shows each of its micro-batches. Spark Connect has a bar of its own
    (`spark.registerProgressHandler`) and not this one.

    Args:
        console: where to draw; standard error by default.
        port: UDP, of the driver, that executors send reports to; 0: any that is free. Where it cannot be reached
            there is progress by tasks only.

    Raises `MissingExtraError` without the extra `pipelines`.
    """
    # Imported here: executors have no use for rich.
    with needing("pipelines", "progress_bar"):
        display = import_module("highwater.spark.progress.display")
    shown: ProgressBar = display.ProgressBar(spark, console=console, port=port)
    return shown
