"""How far a query is: the lag of a streaming one, and a bar for those that take long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from highwater.client.topic_partition import TopicPartition
from highwater.extras import needing
from highwater.spark.stream_offset import parse_stream_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from highwater.spark.progress_display import ProgressBar


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
        display = import_module("highwater.spark.progress_display")
    shown: ProgressBar = display.ProgressBar(spark, console=console, port=port)
    return shown


def lag(progress: Mapping[str, Any], source: int = 0) -> dict[TopicPartition, int]:
    """Offsets of each partition that the query has still to read, from one of its progress reports.

        for partition, behind in lag(query.lastProgress).items(): ...

    Args:
        progress: `query.lastProgress`, or the `progress` of a listener's event by `json.loads(progress.json)`.
        source: which of the query's sources, where it has several. Of one that is not `format("highwater")` nothing is
            known.
    """
    reported = progress["sources"][source]
    latest = parse_stream_offset(_read(reported.get("latestOffset")))
    reached = parse_stream_offset(_read(reported.get("endOffset")))
    return {partition: max(end - reached.ends.get(partition, 0), 0) for partition, end in sorted(latest.ends.items())}


def _read(offset: Any) -> Mapping[str, Any]:
    """Spark gives an offset as text or as what the text says."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    of_topics = isinstance(found, Mapping) and all(isinstance(one, Mapping) for one in found.values())
    return found if of_topics else {}
