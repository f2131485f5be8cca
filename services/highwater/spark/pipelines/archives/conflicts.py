"""Transactions of a table that replace files which are no longer in it.

Two that replace the same files (OPTIMIZE, DELETE, UPDATE) exclude each other: Delta Lake lets the second one fail. An
engine that does not look for that, as delta-rs does not for OPTIMIZE, commits it behind the first one. What it takes
out was out already, so nothing comes of that; the copies of the rows that it adds are in the table beside those that
the first one added.

    54   the table has the files a and b
    55   OPTIMIZE by Spark, begun at 54:     removes a and b, adds ab
    56   OPTIMIZE by delta-rs, begun at 54:  removes a and b, adds ab', and each row is there twice

A transaction says at which version it was begun. One that goes on with the version before it has missed nothing, and
its files are not looked at; of another one only what came in between is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from highwater.spark.pipelines.archives.history import RESTORE, Transaction
from highwater.spark.pipelines.archives.table_log import TableLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "struct<path:string,deletionVector:struct<storageType:string,pathOrInlineDv:string,offset:int>>"
_VERSION = r"regexp_extract(_metadata.file_name, '^(\\d+)', 1)"


class Conflict(NamedTuple):
    """A transaction that has taken out files which an earlier one had taken out already, and has added others."""

    wrong: Transaction
    before: int  # the version of the last one that has taken some of them out

    def sentence(self, archive: str, remedy: str) -> str:
        """Says what is wrong and what to do; `remedy` is what comes after the table was restored."""
        wrong = self.wrong
        by = f"{wrong.operation or 'a transaction'} by {wrong.engine or 'an unknown engine'}"
        return (
            f"version {wrong.version} of {archive} ({by}) replaces files that version {self.before} had replaced "
            f"already, so their rows may be there twice: RESTORE it to version {wrong.version - 1}; {remedy}; let one "
            "engine at a time merge files and change rows"
        )


def suspects(history: Sequence[Transaction], after: int) -> list[tuple[Transaction, int]]:
    """The transactions since `after` and since the last RESTORE, which mends what was before it, that may have missed
    others; and for each the version at which it was begun. One that does not say so may have been begun at any: it is
    compared with those since then. The oldest comes first. Pure."""
    floor = max((one.version for one in history if one.operation == RESTORE), default=-1)
    floor = max(floor, after)
    found = []
    for one in sorted(history, key=lambda one: one.version):
        begun = floor if one.read_version is None else one.read_version
        if one.version > floor and begun < one.version - 1 and one.may_replace_files:
            found.append((one, begun))
    return found


class Conflicts:
    """The look for conflicts in one table."""

    def __init__(self, session: SparkSession, log: TableLog) -> None:
        self._session = session
        self._log = log

    def first(self, history: Sequence[Transaction], after: int) -> Conflict | None:
        """The first of these transactions since version `after` that is one; `suspects` says which are looked at."""
        for one, begun in suspects(history, after):
            if (before := self._replaced_already(one.version, begun)) is not None:
                return Conflict(one, before)
        return None

    def _replaced_already(self, version: int, begun: int) -> int | None:
        """The last version since `begun` that took out a file which is not in the table again when this one, which adds
        some, takes it out once more. The table's log may be cleaned up to somewhere in between.

        Spark reads the files of these transactions: a task may merge a million files."""
        from pyspark.sql import functions as f

        numbers = range(begun + 1, version + 1)
        paths = [self._log.path(number) for number in numbers if self._log.has(number)]
        # One file with different rows deleted, by its deletion vector, is as good as different files.
        key = f.to_json(f.coalesce("add", "remove"))
        own = f.col("version") == version
        touched = (
            self._session.read.schema(f"add {_FILE}, remove {_FILE}")
            .json(paths)
            .where("add is not null or remove is not null")
            .select(
                f.expr(_VERSION).cast("bigint").alias("version"), f.isnotnull("add").alias("added"), key.alias("key")
            )
        )
        earlier = f.struct("version", "added")  # of one transaction what it adds: it is there behind it
        by_file = touched.groupBy("key").agg(
            f.max(f.when(~own, earlier)).alias("before"),
            f.bool_or(own & ~f.col("added")).alias("removed"),
            f.bool_or(own & f.col("added")).alias("added"),
        )
        again = f.col("removed") & ~f.col("before.added")
        (row,) = by_file.agg(
            f.max(f.when(again, f.col("before.version"))).alias("before"), f.bool_or("added").alias("adds")
        ).collect()
        return int(row["before"]) if row["adds"] and row["before"] is not None else None
