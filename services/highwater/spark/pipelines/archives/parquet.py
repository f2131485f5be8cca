"""An archive of plain Parquet files, by topic, date and hour.

What a micro-batch wrote is staged, and becomes part of the archive by a commit that says which offsets it has
(`commits`). A micro-batch that Spark runs again, or a query that begins again without its checkpoint, finds its records
below these offsets and archives the others only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from highwater.errors import UserError
from highwater.spark.pipelines.archives.commits import COMMITS, Commit, CommitLog
from highwater.spark.pipelines.archives.compaction import MergedFiles, compact
from highwater.spark.pipelines.archives.files import (
    archive_session,
    check_place,
    contents,
    highest_commit,
    named,
    offsets_of,
    read_files,
    write_files,
)
from highwater.spark.pipelines.archives.micro_batches import MicroBatches, date_of, hour_of
from highwater.spark.pipelines.archives.offsets import Offsets, merged_offsets
from highwater.spark.pipelines.archives.options import ArchiveOptions
from highwater.spark.pipelines.archives.value_types import check_value_type, value_type_of_files
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles, Listing, check_one_file_system
from highwater.spark.pipelines.files.lease import Lease
from highwater.spark.pipelines.typed_values.value_schema import ValueType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ParquetArchive:
    """A directory of Parquet files, and the one process that writes to it."""

    def __init__(self, spark: SparkSession, options: ArchiveOptions, values: ValueType) -> None:
        self._options = options
        self._spark = archive_session(spark)
        self._files = HadoopFiles(spark, options.to)
        self._directory = self._files.qualified(options.to)
        self._micro_batches = MicroBatches(self._spark, options, values)
        checkpoint = self._micro_batches.checkpoint
        check_one_file_system(self._directory, checkpoint)
        if f"{checkpoint}/".startswith(f"{self._directory}/"):
            raise UserError(
                f"checkpoint {options.checkpoint} is in {options.to}: what is staged there would be read, too"
            )
        self._staging_of_all = f"{checkpoint}/staging"
        self._staging = f"{self._staging_of_all}/{uuid4().hex}"
        found = value_type_of_files(self._spark, self._files, self._directory)
        if found is not None and not options.compact:
            check_value_type(options.to, found, values)
        self._value = found or values.ddl
        self._lease = Lease(
            self._files, f"{self._directory}/{COMMITS}/writer.json", "archive pipeline", f"writes to {options.to}"
        )
        self._commits = CommitLog(self._files, self._directory, self._lease.check)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Nobody else writes to it meanwhile. Finishes what a crash left, and removes what it staged. Raises
        `UserError`."""
        begun = self._commits.begun
        # Of each directory, as it is listed: all the paths of a million files need not be held.
        highest = None if begun else max(map(self._highest_commit, self._files.listings(self._directory)), default=None)
        if not begun and highest is None and self._micro_batches.begun:
            raise UserError(
                f"checkpoint {self._options.checkpoint} is of an archive that is no longer in {self._options.to}: "
                "remove it to archive from the beginning"
            )
        if not begun and highest is None and self._options.compact:
            raise UserError(f"there is no archive in {self._options.to}")
        with self._lease.held():
            if not self._commits.open():
                there = highest is not None
                self._commits.begin((highest or 0) + 1, self._offsets_of_files() if there else {})
            self._files.delete(self._staging_of_all)
            with self._micro_batches.alone():
                yield
            self._files.delete(self._staging)

    def source(self) -> DataFrame:
        last = self._commits.last
        return self._micro_batches.source(last.offsets, last.topic_ids)

    def add(self, frame: DataFrame, batch: int) -> None:
        """A micro-batch. Spark calls this again with the same records where it does not know that they are in."""
        last, planned = self._commits.last, self._micro_batches.planned(batch)
        self._micro_batches.check(planned, last.offsets, last.topic_ids)
        lacking = planned.lacking(last.offsets)
        if not lacking.ranges:
            return
        number = last.number + 1
        staging = f"{self._staging}/{number}"
        written = write_files(
            _placed(self._micro_batches.rows(frame, batch, planned, last.offsets)), staging, self._options.compression
        )
        found = contents(read_files(self._spark, staging)) if written else []
        if (staged := sum(one.records for one in found)) != written:
            raise UserError(
                f"Spark's tasks wrote {written} records to {staging}, and the driver sees {staged} there: it must be "
                "on a file system that all machines share"
            )
        adds = {target: f"{staging}/{path}" for path, target in named(found, number).items()}
        offsets = merged_offsets(last.offsets, lacking.offsets())
        self._commits.commit(Commit(number, offsets, adds, topic_ids={**last.topic_ids, **lacking.topic_ids}))
        self._files.delete(staging)
        if self._options.compact_every is not None and self._commits.last.number % self._options.compact_every == 0:
            self.compact()

    def compact(self) -> MergedFiles:
        """Merges the small files of hours that are over."""
        options = self._options
        return compact(
            self._spark,
            self._files,
            self._commits,
            self._directory,
            self._staging,
            value=self._value,
            compression=options.compression,
            file_bytes=options.file_mib << 20,
            closed_after_ms=options.closed_after_ms,
        )

    def _highest_commit(self, listing: Listing) -> int:
        """The highest commit that files of a directory were added by. Raises `UserError`."""
        check_place(self._options.to, listing)
        return highest_commit(listing.sizes_bytes)

    def _offsets_of_files(self) -> Offsets:
        """The ends of an archive whose commits are lost, by the contents of its files."""
        return offsets_of(read_files(self._spark, self._directory))


def _placed(frame: DataFrame) -> DataFrame:
    """Rows with date and hour in UTC, whatever the session's time zone is."""
    return frame.selectExpr(
        "key",
        "value",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
        "topic",
        f"cast({date_of('timestamp')} as string) as date",
        f"{hour_of('timestamp')} as hour",
    )
