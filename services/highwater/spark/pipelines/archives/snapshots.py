"""The number of tasks in which Delta puts together what is in a table.

A task holds the files that are its share as objects of Java's: those of a million files, shared by a task for each of
two cores, are more than the 1 GB that Spark gives a driver by itself. Delta has 50 tasks where it is told nothing,
however small the table.
"""

from __future__ import annotations

import json
from math import ceil
from typing import TYPE_CHECKING, Protocol

from highwater.spark.pipelines.archives.found import DELTA_LOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
_AT_MOST_IDLE = 50  # what Delta has where it is told nothing
_FILES_A_TASK = 20_000


class Files(Protocol):
    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...


def snapshot_partitions(files: int, parallel: int) -> int:
    """The number of tasks for a table of about so many files, where so many tasks run at once. Pure."""
    return max(min(parallel, _AT_MOST_IDLE), ceil(files / _FILES_A_TASK))


def size_snapshots(files: Files, table: str, *sessions: SparkSession) -> None:
    """Sizes the snapshots that Delta makes in these sessions by the table as it is now. It may grow."""
    size = checkpointed(files, table)
    for session in sessions:
        session.conf.set(_PARTITIONS, str(snapshot_partitions(size, session.sparkContext.defaultParallelism)))


def checkpointed(files: Files, table: str) -> int:
    """The number of files in the last checkpoint of the table's log, with those that were removed of late; 0 where
    there is none. What came since are a few transactions."""
    path = f"{table}/{DELTA_LOG}/_last_checkpoint"
    if not files.exists(path):
        return 0
    try:
        return int(json.loads(files.read(path))["size"])
    except (ValueError, KeyError, TypeError):  # written just now, or by others: Delta can do without it, too
        return 0
