"""An archive that is a Delta table, partitioned by topic and date (of the record's timestamp, in UTC).

Each micro-batch is one transaction of the table. Up to which offset each partition is archived with it stands in that
transaction, as Delta's `userMetadata`:

    {"highwater": {"lineage": "4f53…", "number": 8, "after": 11, "offsets": {"flights": {"0": 1200}}, "topic_ids": {…}}}

`after` is the version of the table that the pipeline knew. Others may come between: files are merged, rows deleted. But
behind a RESTORE, or a transaction of another archive, it does not go on with what is there, which is said at each start
until it is mended.

Transactions of archives are numbered: each also sets the version of an application (Delta's `txnAppId`) that has the
name of the lineage. Of two pipelines that would add number 8, Delta lets one: it skips a version that is there already,
and a transaction that read such a version fails where another one has set it meanwhile. A lineage begins with what the
table holds, where its history does not say (any more) up to where it was archived.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import time
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from highwater.errors import UserError
from highwater.spark.pipelines.archives.compaction import MergedFiles
from highwater.spark.pipelines.archives.conflicts import Conflicts
from highwater.spark.pipelines.archives.files import archive_session, offsets_of
from highwater.spark.pipelines.archives.found import is_table
from highwater.spark.pipelines.archives.history import (
    RESTORE,
    Archived,
    History,
    Transaction,
    archived_by,
    begun,
    broken,
    named,
    not_shared_error,
    quoted,
)
from highwater.spark.pipelines.archives.micro_batches import MicroBatches, date_of
from highwater.spark.pipelines.archives.offsets import Offsets, merged_offsets
from highwater.spark.pipelines.archives.options import ArchiveOptions
from highwater.spark.pipelines.archives.snapshots import size_snapshots
from highwater.spark.pipelines.archives.table_log import TableLog
from highwater.spark.pipelines.archives.value_types import check_value_type, value_type_of
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.session.spark_errors import cause_of
from highwater.spark.pipelines.typed_values.value_schema import ValueType
from highwater.telemetry.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONED_BY = ("topic", "date")
# A task reads the records of one partition, in their order. With a file open for each of so many days it writes them as
# they come; where there are more, Spark sorts what follows. It would sort everything otherwise.
_OPEN_DAYS = 3
_SCHEMA = (
    "topic string, date date, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, "
    "value {value}, headers array<struct<key:string,value:binary>>"
)
# What Delta raises where another transaction was quicker: one with the same number; one that changed the table itself.
_SAME_NUMBER = re.compile(r"\bio\.delta\.exceptions\.ConcurrentTransactionException")
_TABLE_CHANGED = re.compile(r"\bio\.delta\.exceptions\.(?:MetadataChanged|ProtocolChanged|ConcurrentWrite)Exception")
_CONCURRENT = re.compile(r"\bio\.delta\.exceptions\.Concurrent\w+Exception")
_TRIES = 5
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
_LOCAL = re.compile(r"local(\[.*\])?")

_log = get_logger("spark.pipelines.archive")


class DeltaArchive:
    """A Delta table, and a process that adds to it."""

    def __init__(self, spark: SparkSession, options: ArchiveOptions, values: ValueType) -> None:
        """The session has Delta Lake."""
        self._values = values
        self._options = options
        self._spark = archive_session(spark)
        self._spark.conf.set("spark.sql.parquet.compression.codec", options.compression)
        self._spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(_OPEN_DAYS))
        self._files = HadoopFiles(spark, options.to)
        self._path = self._files.qualified(options.to)
        self._history = History(self._spark, self._path, options.to)
        self._table_log = TableLog(self._files, self._path)
        self._conflicts = Conflicts(self._spark, self._table_log)
        self._micro_batches = MicroBatches(self._spark, options, values)
        self._archived = begun({})
        self._version = -1  # the last one that this process has seen
        self._written_last: Archived | None = None  # by that version

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Raises `UserError`."""
        options = self._options
        size_snapshots(self._files, self._path, self._spark)
        if self._is_there:
            self._archived = self._found()
            if not options.compact:
                table = self._spark.read.format("delta").load(self._path)
                check_value_type(options.to, value_type_of(table), self._values)
        elif self._micro_batches.begun:
            raise UserError(
                f"checkpoint {options.checkpoint} is of an archive that is no longer in {options.to}: remove it to "
                "archive from the beginning"
            )
        elif options.compact:
            raise UserError(f"there is no archive in {options.to}")
        else:
            self._create()
        with self._micro_batches.alone():
            yield
        self._check_kept()

    def source(self) -> DataFrame:
        return self._micro_batches.source(self._archived.offsets, self._archived.topic_ids)

    def add(self, frame: DataFrame, batch: int) -> None:
        """A micro-batch. Spark calls this again with the same records where it does not know that they are in."""
        archived, planned = self._archived, self._micro_batches.planned(batch)
        self._micro_batches.check(planned, archived.offsets, archived.topic_ids)
        lacking = planned.lacking(archived.offsets)
        if not lacking.ranges:
            return
        self._check_unbroken()
        # The rows of a micro-batch have a session of their own, and Delta writes them with that.
        size_snapshots(self._files, self._path, self._spark, frame.sparkSession)
        following = replace(
            archived,
            number=archived.number + 1,
            offsets=merged_offsets(archived.offsets, lacking.offsets()),
            topic_ids={**archived.topic_ids, **lacking.topic_ids},
        )
        self._archived = self._write(
            _placed(self._micro_batches.rows(frame, batch, planned, archived.offsets)), following
        )
        self._check_files(self._version)
        if self._options.compact_every is not None and following.number % self._options.compact_every == 0:
            try:
                self.compact()
            except Exception as error:
                if not (_CONCURRENT.search(str(error)) or self._names_removed(str(error))):
                    raise
                _log.warning("files of %s are merged later: %s", self._options.to, cause_of(str(error)))

    def compact(self) -> MergedFiles:
        """Merges the small files of days that are over."""
        options = self._options
        closed = datetime.fromtimestamp(time(), UTC) - timedelta(milliseconds=options.closed_after_ms)
        for name, size in (("maxFileSize", options.file_mib << 20), ("minFileSize", options.file_mib << 19)):
            self._spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(size))
        (done,) = self._spark.sql(f"OPTIMIZE {quoted(self._path)} WHERE date < '{closed.date()}'").collect()
        return MergedFiles(done.metrics.numFilesRemoved, done.metrics.numFilesAdded)

    @property
    def _is_there(self) -> bool:
        return is_table(self._files, self._path)

    def _create(self) -> None:
        """Creates the table by a transaction without rows: `CREATE TABLE` refuses where a process has ended, or another
        one is, between making the directory of the log and its first transaction, or takes that for a table."""
        others = [name for name in self._files.names(self._path) if not name.startswith(("_", "."))]
        if others and not self._is_there:  # which comes before the files of another archive pipeline
            raise UserError(f"{self._options.to} has {min(others)} in it and is no archive: name another directory")
        nothing = (
            self._spark.createDataFrame([], _SCHEMA.format(value=self._values.ddl)).write.format("delta").mode("append")
        )
        try:
            nothing.partitionBy(*PARTITIONED_BY).save(self._path)
        except Exception as error:
            if not _TABLE_CHANGED.search(str(error)):  # another archive pipeline has just made it
                raise
        self._version = self._history.latest_version()

    def _write(self, frame: DataFrame, following: Archived) -> Archived:
        """Writes a transaction; returns what the table says afterwards. Raises `UserError` where another pipeline has
        added to it."""
        while not self._written(frame, following):
            # It was skipped: there is such a number. Of a lineage that has only just begun it may be one that the table
            # has forgotten, of rows and history that were deleted since.
            if following.number > 1 or archived_by(self._history.back_to_last()) is not None:
                raise self._refusal()
            following = replace(following, lineage=named(following.lineage))
        return following

    def _written(self, frame: DataFrame, following: Archived) -> bool:
        """Tries to write a transaction; False where Delta has skipped it. Raises `UserError`."""
        session = frame.sparkSession
        before = _last_commit(session)
        following = replace(following, after=self._version)
        for left in reversed(range(_TRIES)):
            try:
                (
                    frame.write.format("delta")
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
                    raise not_shared_error(self._options.to, "the table's log") from error
                if not left or not _TABLE_CHANGED.search(str(error)):
                    raise
                self._check_unbroken()
        written = _last_commit(session)
        if written == before:
            return False
        # Delta may merge files by itself after it (autoCompact), and notes that version then.
        if written <= self._version:
            raise self._gone()
        said = following.to_json()
        versions = range(written, self._version, -1)
        own = next((one for one in versions if self._table_log.user_metadata(one) == said), None)
        if own is None:
            raise self._replaced(written)
        self._check_goes_on(own, following)
        self._version, self._written_last = own, following
        return True

    def _check_kept(self) -> None:
        """Confirms that the last transaction of this process is the one that has its number: where a file system lets
        two processes rename a file to one name (a local disk does, in the moment between Delta's look and its rename),
        the other one's may have replaced it. Raises `UserError`."""
        last = self._written_last
        there = self._table_log.has(self._version)
        if last is not None and there and self._table_log.user_metadata(self._version) != last.to_json():
            raise self._replaced(self._version)

    def _replaced(self, version: int) -> UserError:
        return UserError(
            f"version {version} of {self._options.to} is not what was written: another process wrote to the table at "
            "the same moment; start again, and let one at a time write to it"
        )

    def _check_unbroken(self) -> None:
        """Confirms that what this process knows of the table is there, and goes on with nothing but what others may do.
        Raises `UserError`."""
        self._check_kept()
        if self._table_log.has(self._version + 1):
            found = self._history.since(self._version)
            if any(one.operation == RESTORE for one in found):
                raise UserError(f"{self._restored}; remove checkpoint {self._options.checkpoint}, and start again")
            if any(one.archived is not None for one in found):
                raise self._refusal()
            self._check_conflicts(found, self._version)
        elif not self._table_log.has(self._version) and (
            not self._is_there or self._history.latest_version() < self._version
        ):
            raise self._gone()

    def _check_goes_on(self, version: int, archived: Archived) -> None:
        """Confirms that a transaction of an archive goes on with what was there before it. Raises `UserError`."""
        after = archived.after
        if after is None or after == version - 1:
            return
        if after >= version:
            raise self._gone()
        between = [one for one in self._history.since(after) if one.version < version]
        wrong = [one for one in between if one.operation == RESTORE or one.archived is not None]
        if wrong:
            self._check_chain(self._history.back_to_last())  # what is to be restored is to go on itself
            raise self._broken(version, wrong[0], f"two archive pipelines wrote to {self._options.to}")
        self._check_conflicts(between, after)

    def _check_conflicts(self, history: Sequence[Transaction], after: int) -> None:
        """Confirms that no transaction since a version has replaced files that were replaced already. Raises
        `UserError`."""
        if (found := self._conflicts.first(history, after)) is not None:
            raise UserError(
                found.sentence(self._options.to, f"remove checkpoint {self._options.checkpoint}, and start again")
            )

    def _check_chain(self, history: Sequence[Transaction]) -> None:
        """Confirms that transactions of archives go on with each other, as far back as these go. Raises `UserError`."""
        if (found := broken(history)) is None:
            return
        wrong, before = found
        own, other = wrong.archived, before.archived
        if own is None or other is None or own.lineage != other.lineage:
            raise self._broken(wrong.version, before, f"two archive pipelines wrote to {self._options.to}")
        lost = f"transaction {other.number + 1} of the archive in {self._options.to} was lost: another process wrote"
        raise self._broken(wrong.version, before, f"{lost} the same version of the table, or it was put back")

    def _broken(self, version: int, before: Transaction, what: str) -> UserError:
        return UserError(
            f"{self._restored if before.operation == RESTORE else what}, and version {version} does not go on where "
            f"{before.version} ends: RESTORE it to version {before.version}; remove checkpoint "
            f"{self._options.checkpoint}, and start again"
        )

    @property
    def _restored(self) -> str:
        return f"{self._options.to} was restored to an earlier version while it was archived to"

    def _gone(self) -> UserError:
        return UserError(
            f"{self._options.to} was removed, or put back, while it was archived to, and may say that it has what it "
            f"lacks; remove it and checkpoint {self._options.checkpoint} to archive from the beginning"
        )

    def _refusal(self) -> UserError:
        return UserError(f"another archive pipeline writes to {self._options.to}: only one at a time can")

    def _check_files(self, version: int) -> None:
        """Confirms that the driver sees what Spark's tasks have written, but for what others have merged, and a VACUUM
        removed, since. Raises `UserError`."""
        if not self._may_be_of_each_machine:
            return
        added = self._table_log.sizes_added(version)
        unseen = {path for path, size in added.items() if self._files.size_bytes(f"{self._path}/{path}") != size}
        if unseen and (lost := unseen - self._table_log.removed_since(version)):
            raise not_shared_error(self._options.to, min(lost))

    def _names_removed(self, problem: str) -> bool:
        """Tells whether something failed for a file that others have merged, and a VACUUM removed, meanwhile."""
        return any(path.rpartition("/")[2] in problem for path in self._table_log.removed_since(self._version))

    @property
    def _may_be_of_each_machine(self) -> bool:
        local = _LOCAL.fullmatch(self._spark.sparkContext.master)
        return urlparse(self._path).scheme == "file" and local is None

    def _found(self) -> Archived:
        """The contents of the table now, at `_version`. Raises `UserError`."""
        self._version = self._history.latest_version()
        history = self._history.back_to_last()
        if (last := archived_by(history)) is not None:
            version, archived = last
            self._check_goes_on(version, archived)
            self._check_chain(history)
            self._check_conflicts(history, version)
            if version == self._version:
                self._check_files(version)
            return archived
        self._check_conflicts(history, -1)
        restored = next((one.version for one in history if one.operation == RESTORE), None)
        offsets, ids = self._offsets_of_rows(), self._history.topic_ids()
        return begun(offsets, restored, {topic: ids[topic] for topic in offsets if topic in ids})

    def _offsets_of_rows(self) -> Offsets:
        """The ends of the rows at `_version`."""
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
