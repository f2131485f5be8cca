"""The files of an archive: where they lie, what they are called, what is in them.

    ARCHIVE/topic=flights/date=2026-11-21/hour=02/00003-00000000000000120000-000008.parquet
                                                  partition, offset of the first record, commit

A file's records are sorted by partition and offset.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from highwater.errors import UserError
from highwater.spark import register
from highwater.spark.pipelines.archives.offsets import Offsets, merged_offsets
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles, Listing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# In a file; topic, date and hour are in its path.
FILE_SCHEMA = (
    "key binary, value {value}, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
PATH_SCHEMA = "topic string, date string, hour string"
PATH_COLUMNS = ("topic", "date", "hour")
ORDER = ("partition", "offset")

_PLACE = re.compile(r"topic=[^/]+/date=[^/]+/hour=\d\d")
_COMMIT_NUMBER = re.compile(r"-(\d+)\.parquet$")
# Spark's own settings, of the session that writes and reads archives. What it shuffles is about files, or is told into
# how many pieces.
_SETTINGS = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True, slots=True)
class FileContent:
    """The part of one partition that one file holds."""

    directory: str  # topic=…/date=…/hour=…
    name: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int  # of the file

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}"


def archive_session(spark: SparkSession) -> SparkSession:
    """A session with the settings that archives need, whatever those of the caller's are."""
    own = spark.newSession()
    register(own)
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


def write_files(frame: DataFrame, directory: str, compression: str) -> int:
    """Writes the rows (of `FILE_SCHEMA` and `PATH_SCHEMA`) below a directory, which must not be there yet; how many
    there are."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    written = Observation()
    # Of columns that may be null Spark makes others, sorts by these, and forgets the order that was asked for.
    never_null = {name: f.coalesce(name, f.lit("")) for name in PATH_COLUMNS}
    (
        frame.observe(written, f.count("offset").alias("rows"))  # after the sort it would hide that it is one
        .withColumns(never_null)
        .sortWithinPartitions(*PATH_COLUMNS, *ORDER)
        .write.partitionBy(*PATH_COLUMNS)
        .option("compression", compression)
        .parquet(directory)
    )
    return int(written.get["rows"])


def read_files(
    spark: SparkSession, directory: str, paths: Sequence[str] | None = None, *, value: str = "binary"
) -> DataFrame:
    """The rows of files and directories below a directory, or of all of it. Where values are read, `value` is their
    type."""
    reader = spark.read.schema(f"{FILE_SCHEMA.format(value=value)}, {PATH_SCHEMA}").option("basePath", directory)
    return reader.parquet(*([directory] if paths is None else [f"{directory}/{path}" for path in paths]))


def without(frame: DataFrame, paths: Collection[str]) -> DataFrame:
    """Rows of `read_files` without those of some files, whose names are unique."""
    from pyspark.sql import functions as f

    names = [path.rpartition("/")[2] for path in paths]
    return frame.where(~f.col("_metadata.file_name").isin(names)) if names else frame


def contents(frame: DataFrame) -> list[FileContent]:
    """The contents of the files that a frame of `read_files` reads. Spark reads two of their columns."""
    from pyspark.sql import functions as f

    file = (f.col("_metadata.file_name").alias("name"), f.col("_metadata.file_size").alias("size"))
    grouped = frame.groupBy(*PATH_COLUMNS, *file, "partition")
    rows = grouped.agg(
        f.min("offset").alias("first"), f.max("offset").alias("last"), f.count("offset").alias("records")
    ).collect()
    return [
        FileContent(
            directory=f"topic={row.topic}/date={row.date}/hour={row.hour}",
            name=row["name"],
            topic=row.topic,
            partition=row.partition,
            first_offset=row.first,
            last_offset=row.last,
            records=row.records,
            size_bytes=row["size"],
        )
        for row in rows
    ]


def offsets_of(archived: DataFrame) -> Offsets:
    """The offsets up to which the rows of an archive go."""
    from pyspark.sql import functions as f

    rows: list[Any] = archived.groupBy("topic", "partition").agg(f.max("offset").alias("last")).collect()
    return merged_offsets({}, [(row.topic, row.partition, row["last"]) for row in rows])


def named(found: Iterable[FileContent], commit: int) -> dict[str, str]:
    """The path below the archive of each of these files: what its first record is, and the commit that adds it."""
    firsts: dict[str, FileContent] = {}
    for one in found:
        before = firsts.get(one.path)
        if before is None or one.partition < before.partition:
            firsts[one.path] = one
    return {
        path: f"{one.directory}/{one.partition:05d}-{one.first_offset:020d}-{commit:06d}.parquet"
        for path, one in firsts.items()
    }


def directories(files: HadoopFiles, archive: str) -> Iterator[Listing]:
    """The files of the archive, directory by directory, listed day by day: all that an archive has may be more than is
    good to hold at once."""
    for topic in files.names(archive):
        for date in files.names(f"{archive}/{topic}") if topic.startswith("topic=") else []:
            yield from files.listings(archive, f"{topic}/{date}")


def check_place(archive: str, listing: Listing) -> None:
    """Confirms that files lie where an archive of plain files has them: a table that has lost its log looks like one
    from outside, and has files that count no longer. Raises `UserError`."""
    if _PLACE.fullmatch(listing.directory):
        return
    if other := min((name for name in listing.sizes_bytes if name.endswith(".parquet")), default=None):
        raise UserError(
            f"{archive} has {listing.path(other)} in it, which is not of an archive of plain files: put back "
            "_delta_log if it is a table, or name another directory"
        )


def highest_commit(names: Iterable[str]) -> int:
    """The highest commit that any of the files was added by; 0 where there are none."""
    return max((int(match[1]) for name in names if (match := _COMMIT_NUMBER.search(name))), default=0)
