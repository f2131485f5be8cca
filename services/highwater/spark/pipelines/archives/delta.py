"""An archive that is a Delta table, partitioned by topic and date (of the record's timestamp, in UTC).

Each micro-batch is one transaction of the table. Up to which offset each partition is archived with it stands in that
transaction, as Delta's `userMetadata`:

    {"highwater": {"lineage": "4f53…", "number": 8, "offsets": {"flights": {"0": 1200}}, "topic_ids": {…: "5f…"}}}

Transactions of archives are numbered: each also sets the version of an application (Delta's `txnAppId`) that has the
name of the lineage. Of two pipelines that would add number 8, Delta lets one: it skips a version that is there already,
and a transaction that read such a version fails where another one has set it meanwhile. A lineage begins with what the
table holds, where its history does not say (any more) up to where it was archived.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from highwater.rpc.server import UserError
from highwater.spark.pipelines.archives.files import archive_session, offsets_of
from highwater.spark.pipelines.archives.found import DELTA_LOG
from highwater.spark.pipelines.archives.micro_batches import MicroBatches, date_of, new_rows
from highwater.spark.pipelines.archives.offsets import Offsets, merged_offsets
from highwater.spark.pipelines.archives.options import ArchiveOptions
from highwater.spark.pipelines.common import cause_of
from highwater.spark.pipelines.hadoop_files import HadoopFiles
from highwater.telemetry.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONED_BY = ("topic", "date")
ORDER = (*PARTITIONED_BY, "partition", "offset")
_SCHEMA = (
    "topic string, date date, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, "
    "value binary, headers array<struct<key:string,value:binary>>"
)
_TRANSACTION = re.compile(r"\d{20}\.")
_KEY, _RESTORE = "highwater", "RESTORE"
# How many of the last transactions are looked at for one of an archive: others merge files or delete rows.
_HISTORIES = (20, 1000, None)
# What Delta raises where another transaction was quicker: one with the same number; one that changed the table itself.
_SAME_NUMBER = re.compile(r"\bio\.delta\.exceptions\.ConcurrentTransactionException")
_TABLE_CHANGED = re.compile(r"\bio\.delta\.exceptions\.(?:MetadataChanged|ProtocolChanged|ConcurrentWrite)Exception")
_CONCURRENT = re.compile(r"\bio\.delta\.exceptions\.Concurrent\w+Exception")
_TRIES = 5
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
_LOCAL = re.compile(r"local(\[.*\])?")

_log = get_logger("spark.pipelines.archive")


@dataclass(frozen=True, slots=True)
class Archived:
    """What a table holds, as its last transaction of an archive says."""

    lineage: str
    number: int = 0
    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # in hex, as far as known

    def to_json(self) -> str:
        said = {
            "lineage": self.lineage,
            "number": self.number,
            "offsets": self.offsets,
            "topic_ids": dict(self.topic_ids),
        }
        return json.dumps({_KEY: said}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Of a table's history."""

    version: int
    operation: str
    user_metadata: str | None

    @property
    def archived(self) -> Archived | None:
        """What it says, if it is one of an archive."""
        try:
            said = json.loads(self.user_metadata or "")[_KEY]
        except (ValueError, KeyError, TypeError):
            return None
        offsets = {
            topic: {int(partition): offset for partition, offset in partitions.items()}
            for topic, partitions in said["offsets"].items()
        }
        return Archived(said["lineage"], said["number"], offsets, said["topic_ids"])


def archived_by(history: Iterable[Transaction]) -> tuple[int, Archived] | None:
    """What the last transaction of an archive says, and its version; None where none of these is one, or where the
    table was restored to what it was before. The newest comes first. Pure."""
    for transaction in history:
        if transaction.operation == _RESTORE:
            return None
        if (archived := transaction.archived) is not None:
            return transaction.version, archived
    return None


def begun(offsets: Offsets, restored: int | None = None, topic_ids: Mapping[str, str] | None = None) -> Archived:
    """A new lineage, of a table that holds what is before these offsets. Whoever begins one with the same contents
    begins the same. `restored`: the version that made them so."""
    return Archived(_named([offsets, restored]), 0, offsets, topic_ids or {})


def _named(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


class DeltaArchive:
    """A Delta table, and a process that adds to it."""

    def __init__(self, spark: SparkSession, options: ArchiveOptions) -> None:
        """The session has Delta Lake."""
        self._options = options
        self._spark = archive_session(spark)
        self._spark.conf.set("spark.sql.parquet.compression.codec", options.compression)
        self._files = HadoopFiles(spark, options.to)
        self._path = self._files.qualified(options.to)
        self._micro_batches = MicroBatches(self._spark, options)
        self._archived = begun({})
        self._version = -1  # the last one that this process has seen

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Raises `UserError`."""
        options = self._options
        if self._is_there:
            self._archived = self._found()
        elif self._micro_batches.begun:
            raise UserError(
                f"checkpoint {options.checkpoint} is of an archive that is no longer in {options.to}: remove it to "
                "archive from the beginning"
            )
        elif options.compact:
            raise UserError(f"there is no archive in {options.to}")
        else:
            self._create()
        yield

    def source(self) -> DataFrame:
        return self._micro_batches.source(self._archived.offsets, self._archived.topic_ids)

    def add(self, frame: DataFrame, batch: int) -> None:
        """A micro-batch. Spark calls this again with the same records where it does not know that they are in."""
        archived, planned = self._archived, self._micro_batches.planned(batch)
        self._micro_batches.check(planned, archived.offsets, archived.topic_ids)
        lacking = planned.lacking(archived.offsets)
        if not lacking.ranges:
            return
        self._check_not_restored()
        following = replace(
            archived,
            number=archived.number + 1,
            offsets=merged_offsets(archived.offsets, lacking.offsets()),
            topic_ids={**archived.topic_ids, **lacking.topic_ids},
        )
        self._archived = self._write(_placed(new_rows(frame, planned, archived.offsets)), following)
        self._check_files(self._version)
        if self._options.compact_every is not None and following.number % self._options.compact_every == 0:
            try:
                self.compact()
            except Exception as error:
                if not _CONCURRENT.search(str(error)):
                    raise
                _log.warning("files of %s are merged later: %s", self._options.to, cause_of(str(error)))

    def compact(self) -> None:
        """Merges the small files of days that are over."""
        options = self._options
        closed = datetime.fromtimestamp(time(), UTC) - timedelta(milliseconds=options.closed_after_ms)
        for name, size in (("maxFileSize", options.file_mib << 20), ("minFileSize", options.file_mib << 19)):
            self._spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(size))
        self._spark.sql(f"OPTIMIZE {quoted(self._path)} WHERE date < '{closed.date()}'")

    @property
    def _is_there(self) -> bool:
        return any(map(_TRANSACTION.match, self._files.names(f"{self._path}/{DELTA_LOG}")))

    def _create(self) -> None:
        """By a transaction without rows: `CREATE TABLE` refuses where a process has ended, or another one is, between
        making the directory of the log and its first transaction, or takes that for a table."""
        others = [name for name in self._files.names(self._path) if not name.startswith(("_", "."))]
        if others and not self._is_there:  # which comes before the files of another archive pipeline
            raise UserError(f"{self._options.to} has {min(others)} in it and is no archive: name another directory")
        nothing = self._spark.createDataFrame([], _SCHEMA).write.format("delta").mode("append")
        try:
            nothing.partitionBy(*PARTITIONED_BY).save(self._path)
        except Exception as error:
            if not _TABLE_CHANGED.search(str(error)):  # another archive pipeline has just made it
                raise
        self._version = self._latest_version()

    def _write(self, frame: DataFrame, following: Archived) -> Archived:
        """What the table says afterwards. Raises `UserError` where another pipeline has added to it."""
        while not self._written(frame, following):
            # It was skipped: there is such a number. Of a lineage that has only just begun it may be one that the table
            # has forgotten, of rows and history that were deleted since.
            if following.number > 1 or archived_by(self._history(_HISTORIES[0])) is not None:
                raise self._refusal()
            following = replace(following, lineage=_named(following.lineage))
        return following

    def _written(self, frame: DataFrame, following: Archived) -> bool:
        """False where Delta has skipped it. Raises `UserError`."""
        session = frame.sparkSession
        before = _last_commit(session)
        for left in reversed(range(_TRIES)):
            try:
                (
                    frame.sortWithinPartitions(*ORDER)
                    .write.format("delta")
                    .mode("append")
                    .option("txnAppId", f"highwater-archive-{following.lineage}")
                    .option("txnVersion", following.number)
                    .option("userMetadata", following.to_json())
                    .save(self._path)
                )
                break
            except Exception as error:
                if _SAME_NUMBER.search(str(error)):
                    raise self._refusal() from error
                if self._may_be_of_each_machine and "FileNotFoundException" in str(error):
                    raise self._unshared("the table's log") from error
                if not left or not _TABLE_CHANGED.search(str(error)):
                    raise
        after = _last_commit(session)
        if after == before:
            return False
        if after > self._version + 1:
            self._check_not_restored(until=after)
        self._version = after
        return True

    def _check_not_restored(self, until: int | None = None) -> None:
        """Since the last transaction of this process, and before `until`. Raises `UserError`."""
        if until is None and not self._files.exists(f"{self._path}/{DELTA_LOG}/{self._version + 1:020d}.json"):
            return
        latest = self._latest_version()
        last = latest + 1 if until is None else until
        since = self._history(latest - self._version)
        restored = [one.version for one in since if one.operation == _RESTORE and self._version < one.version < last]
        if not restored:
            return
        said = f"{self._options.to} was restored to an earlier version while it was archived to"
        if until is not None:
            said += f", and version {until} does not go on where that ends: RESTORE it to version {restored[0]}"
        raise UserError(f"{said}; remove checkpoint {self._options.checkpoint}, and start again")

    def _refusal(self) -> UserError:
        return UserError(f"another archive pipeline writes to {self._options.to}: only one at a time can")

    def _check_files(self, version: int) -> None:
        """That the driver sees what Spark's tasks have written. Raises `UserError`."""
        if not self._may_be_of_each_machine:
            return
        actions = self._files.read(f"{self._path}/{DELTA_LOG}/{version:020d}.json").decode().splitlines()
        added = [action["add"] for action in map(json.loads, actions) if "add" in action]
        for one in added:
            if self._files.size_bytes(f"{self._path}/{unquote(one['path'])}") != one["size"]:
                raise self._unshared(one["path"])

    @property
    def _may_be_of_each_machine(self) -> bool:
        local = _LOCAL.fullmatch(self._spark.sparkContext.master)
        return urlparse(self._path).scheme == "file" and local is None

    def _unshared(self, what: str) -> UserError:
        return UserError(
            f"Spark's driver and tasks do not see the same in {self._options.to} ({what}): begin anew in a directory, "
            "and with a checkpoint, on a file system that all machines share"
        )

    def _found(self) -> Archived:
        """What the table holds now, at `_version`."""
        history: list[Transaction] = []
        self._version = self._latest_version()
        for limit in _HISTORIES:
            history = self._history(limit)
            if (last := archived_by(history)) is not None:
                version, archived = last
                if version == self._version:
                    self._check_files(version)
                return archived
            if any(one.operation == _RESTORE for one in history):
                break
        restored = next((one.version for one in history if one.operation == _RESTORE), None)
        ids = next((found.topic_ids for one in history if (found := one.archived) is not None), None)
        return begun(self._offsets_of_rows(), restored, ids)

    def _latest_version(self) -> int:
        rows = self._spark.sql(f"DESCRIBE HISTORY {quoted(self._path)} LIMIT 1").collect()
        if not rows:  # Spark's tasks look, and find nothing
            raise self._unshared("the table's log")
        return int(rows[0].version)

    def _history(self, limit: int | None) -> list[Transaction]:
        """Of the last `limit` transactions, those that restored the table, and those of archives."""
        told = f"DESCRIBE HISTORY {quoted(self._path)}" + ("" if limit is None else f" LIMIT {limit}")
        rows = self._spark.sql(told).select("version", "operation", "userMetadata")
        kept = rows.where(f"operation = '{_RESTORE}' or userMetadata like '{{\"{_KEY}\"%'")
        return [Transaction(*row) for row in kept.orderBy("version", ascending=False).collect()]

    def _offsets_of_rows(self) -> Offsets:
        """At `_version`."""
        table = self._spark.read.format("delta").option("versionAsOf", self._version).load(self._path)
        if not {"topic", "partition", "offset"} <= set(table.columns):
            raise UserError(f"{self._options.to} is a table of something else: it has no columns of an archive")
        return offsets_of(table)


def _placed(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "topic",
        f"{date_of('timestamp')} as date",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "key",
        "value",
        "headers",
    )


def _last_commit(session: SparkSession) -> int:
    """The version that it made last, -1 where it made none; Delta notes it in the session."""
    found = session.conf.get(_LAST_COMMIT, None)
    return -1 if found is None else int(found)


def quoted(path: str) -> str:
    """A table by its path, in SQL."""
    return f"delta.`{path.replace('`', '``')}`"
