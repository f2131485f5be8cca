"""An archived topic for who only reads it: what is there when reading begins, whatever is added or merged meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from highwater.rpc.server import UserError
from highwater.spark.pipelines.archives.commits import settled_files
from highwater.spark.pipelines.archives.history import quoted
from highwater.spark.pipelines.archives.delta_session import DeltaSettings
from highwater.spark.pipelines.archives.files import FileContent, archive_session, contents, read_files
from highwater.spark.pipelines.archives.found import found_format
from highwater.spark.pipelines.archives.options import ArchiveFormat
from highwater.spark.pipelines.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ranges = Mapping[int, tuple[int, int]]  # of a partition: from the first of these offsets to before the other


class ArchivedTopic(Protocol):
    firsts: Mapping[int, int]
    """The first archived offset of each partition."""
    ends: Mapping[int, int]
    """The offset after the last archived one."""

    def rows(self, ranges: Ranges) -> DataFrame | None:
        """The records in these ranges; None where it has none."""


def archived_topic(
    spark: SparkSession, archive: str, topic: str | None, delta: DeltaSettings
) -> tuple[str, ArchivedTopic]:
    """A topic of an archive, and its name; None: the only one there is. Raises `UserError`."""
    files = HadoopFiles(spark, archive)
    directory = files.qualified(archive)
    kind = found_format(files, archive)
    if kind is None:
        raise UserError(f"{archive} is no archive: it has neither a table nor a directory topic=…")
    session = archive_session(spark)
    if kind is ArchiveFormat.DELTA:
        delta.check(spark)
        (latest,) = session.sql(f"DESCRIBE HISTORY {quoted(directory)} LIMIT 1").collect()
        table = session.read.format("delta").option("versionAsOf", latest.version).load(directory)
        name = _one(archive, topic, sorted(row.topic for row in table.select("topic").distinct().collect()))
        return name, _TableTopic(session, table.where(table.topic == name))
    names = [one.removeprefix("topic=") for one in files.names(directory) if one.startswith("topic=")]
    name = _one(archive, topic, names)
    return name, _FilesTopic(session, files, directory, name)


def _one(archive: str, topic: str | None, topics: Sequence[str]) -> str:
    if not topics:
        raise UserError(f"{archive} has no topic yet")
    if topic is None:
        if len(topics) > 1:
            raise UserError(f"{archive} has several topics: say which with --topic: {', '.join(topics)}")
        return topics[0]
    if topic not in topics:
        raise UserError(f"{archive} has no topic {topic}; it has {', '.join(topics)}")
    return topic


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

    def __init__(self, session: SparkSession, files: HadoopFiles, directory: str, topic: str) -> None:
        def listed() -> list[str]:
            return [one.path for one in files.files(directory)]

        paths = [path for path in settled_files(files, directory, listed) if path.startswith(f"topic={topic}/")]
        self._session = session
        self._directory = directory
        self._contents = contents(read_files(session, directory, paths))
        firsts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for one in self._contents:
            firsts[one.partition] = min(firsts.get(one.partition, one.first_offset), one.first_offset)
            ends[one.partition] = max(ends.get(one.partition, 0), one.last_offset + 1)
        self.firsts: Mapping[int, int] = firsts
        self.ends: Mapping[int, int] = ends

    def rows(self, ranges: Ranges) -> DataFrame | None:
        paths = sorted({one.path for one in self._contents if _overlaps(one, ranges)})
        return _within(self._session, read_files(self._session, self._directory, paths), ranges) if paths else None


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
