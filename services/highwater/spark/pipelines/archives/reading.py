"""An archive for who only reads it: what is there when reading begins, whatever is added or merged meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from highwater.errors import UserError
from highwater.spark.pipelines.archives.commits import applied_commit, settled
from highwater.spark.pipelines.archives.delta_session import DeltaSettings
from highwater.spark.pipelines.archives.files import FileContent, archive_session, contents, read_files, without
from highwater.spark.pipelines.archives.found import found_format, local_format
from highwater.spark.pipelines.archives.history import History, archived_by, quoted
from highwater.spark.pipelines.archives.offsets import Offsets
from highwater.spark.pipelines.archives.options import ArchiveFormat
from highwater.spark.pipelines.archives.snapshots import size_snapshots
from highwater.spark.pipelines.archives.value_types import (
    check_bytes,
    check_value_type,
    value_type_of,
    value_type_of_files,
)
from highwater.spark.pipelines.common import PipelineOptions, nothing_needed, session, spark_errors
from highwater.spark.pipelines.hadoop_files import HadoopFiles
from highwater.spark.pipelines.value_schema import BYTES, ValueType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
Ranges = Mapping[int, tuple[int, int]]  # of a partition: from the first of these offsets to before the other


class ArchivedTopic(Protocol):
    firsts: Mapping[int, int]
    """The first archived offset of each partition."""
    ends: Mapping[int, int]
    """The offset after the last archived one."""

    def rows(self, ranges: Ranges) -> DataFrame | None:
        """The records in these ranges; None where it has none."""


def open_archive(
    pipeline: str, options: PipelineOptions, archive: str, defaults: Mapping[str, str] | None = None
) -> Archive:
    """With the pipeline's session, `defaults` as in `session`: it has Delta Lake where the archive may be a table.
    Raises `UserError`."""
    delta = DeltaSettings()
    plain = local_format(archive) is ArchiveFormat.PARQUET
    spark = session(pipeline, options, defaults, nothing_needed if plain else delta)
    with spark_errors():
        return Archive(spark, archive, delta)


class Archive:
    """What lies in a directory when this is made; of a table, one version. Raises `UserError`."""

    def __init__(self, spark: SparkSession, archive: str, delta: DeltaSettings) -> None:
        self.spark = spark
        self.said = archive
        self._files = HadoopFiles(spark, archive)
        self.directory = self._files.qualified(archive)
        self._session = archive_session(spark)
        self.table: DataFrame | None = None
        """Of the version; None: plain files."""
        self._values: str | None  # their type; None: there is no file yet
        self.offsets: Offsets = {}
        """Up to where it was archived, as the archive itself says; of what it does not say, nothing."""
        self.topic_ids: Mapping[str, str] = {}
        topics: list[str]
        kind = found_format(self._files, archive)
        if kind is None:
            raise UserError(f"{archive} is no archive: it has neither a table nor a directory topic=…")
        if kind is ArchiveFormat.DELTA:
            delta.check(spark)
            size_snapshots(self._files, self.directory, self._session)
            (latest,) = self._session.sql(f"DESCRIBE HISTORY {quoted(self.directory)} LIMIT 1").collect()
            table = self._session.read.format("delta").option("versionAsOf", latest.version).load(self.directory)
            if not set(table.columns) >= _COLUMNS:
                raise UserError(f"{archive} is a table of something else: it has no columns of an archive")
            self.table, self._values = table, value_type_of(table)
            topics = [row.topic for row in table.select("topic").distinct().collect()]
            history = History(self._session, self.directory, archive).back_to_last()
            said = archived_by(one for one in history if one.version <= latest.version)
            if said is not None:
                _, archived = said
                self.offsets, self.topic_ids = archived.offsets, archived.topic_ids
        else:
            self._values = value_type_of_files(self._session, self._files, self.directory)
            names = self._files.names(self.directory)
            topics = [one.removeprefix("topic=") for one in names if one.startswith("topic=")]
            if (commit := applied_commit(self._files, self.directory)) is not None:
                self.offsets, self.topic_ids = commit.offsets, commit.topic_ids
        self.topics = sorted({*topics, *self.offsets})
        if not self.topics:
            raise UserError(f"{archive} has no topic yet")

    def check_bytes(self) -> None:
        """Raises `UserError` where it does not have the values as they were."""
        check_bytes(self.said, self._values)

    def check_values(self, values: ValueType) -> None:
        """Raises `UserError` where its values are of another type."""
        if self._values is not None:
            check_value_type(self.said, self._values, values)

    def check_topic(self, name: str) -> None:
        """Raises `UserError` where it does not have it."""
        if name not in self.topics:
            raise UserError(f"{self.said} has no topic {name}; it has {', '.join(self.topics)}")

    def topic(self, name: str) -> ArchivedTopic:
        """Raises `UserError`."""
        self.check_topic(name)
        if self.table is not None:
            return _TableTopic(self._session, self.table.where(self.table.topic == name))
        return _FilesTopic(self._session, self._files, self.directory, name, self._values or BYTES.ddl)

    def only_topic(self) -> str:
        """Raises `UserError`."""
        if len(self.topics) > 1:
            raise UserError(f"{self.said} has several topics: say which with --topic: {', '.join(self.topics)}")
        return self.topics[0]


class _TableTopic:
    """Of one version of a table."""

    def __init__(self, session: SparkSession, table: DataFrame) -> None:
        from pyspark.sql import functions as f

        self._session = session
        self._table = table
        grouped = table.groupBy("partition").agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        rows: list[Any] = grouped.collect()
        self.firsts: Mapping[int, int] = {row.partition: row["first"] for row in rows}
        self.ends: Mapping[int, int] = {row.partition: row["last"] + 1 for row in rows}

    def rows(self, ranges: Ranges) -> DataFrame | None:
        return _within(self._session, self._table, ranges)


class _FilesTopic:
    """Files that hold each record once, where the archive is being changed, or was left so, too."""

    def __init__(self, session: SparkSession, files: HadoopFiles, directory: str, topic: str, value: str) -> None:
        """`value` is the type of the values."""

        def look() -> DataFrame:  # Spark lists the files now, and only now
            return read_files(session, directory, [f"topic={topic}"])

        self._session = session
        self._directory = directory
        self._value = value
        self._contents: list[FileContent] = []
        if files.exists(f"{directory}/topic={topic}"):
            frame, hidden = settled(files, directory, look)
            self._contents = contents(without(frame, hidden))
        firsts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for one in self._contents:
            firsts[one.partition] = min(firsts.get(one.partition, one.first_offset), one.first_offset)
            ends[one.partition] = max(ends.get(one.partition, 0), one.last_offset + 1)
        self.firsts: Mapping[int, int] = firsts
        self.ends: Mapping[int, int] = ends

    def rows(self, ranges: Ranges) -> DataFrame | None:
        paths = sorted({one.path for one in self._contents if _overlaps(one, ranges)})
        if not paths:
            return None
        return _within(self._session, read_files(self._session, self._directory, paths, value=self._value), ranges)


def _overlaps(one: FileContent, ranges: Ranges) -> bool:
    first, until = ranges.get(one.partition, (0, 0))
    return one.first_offset < until and one.last_offset >= first


def _within(session: SparkSession, rows: DataFrame, ranges: Ranges) -> DataFrame:
    from pyspark.sql import functions as f

    wanted = [(partition, first, until) for partition, (first, until) in ranges.items()]
    limits = session.createDataFrame(wanted, "partition int, first bigint, until bigint")
    lowest, highest = min(first for _, first, _ in wanted), max(until for _, _, until in wanted)
    return (
        rows.where(f.col("offset").between(lowest, highest))
        .join(f.broadcast(limits), "partition")
        .where("offset >= first and offset < until")
    )
