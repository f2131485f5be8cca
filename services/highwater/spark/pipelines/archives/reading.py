"""An archive for who only reads it: what is there when reading begins, whatever is added or merged meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from highwater.errors import UserError
from highwater.spark.pipelines.archives.commits import applied_commit, settled
from highwater.spark.pipelines.archives.conflicts import Conflicts
from highwater.spark.pipelines.archives.files import archive_session, contents, read_files, without
from highwater.spark.pipelines.archives.found import found_format, local_format
from highwater.spark.pipelines.archives.history import History, archived_by, quoted
from highwater.spark.pipelines.archives.offsets import Offsets
from highwater.spark.pipelines.archives.options import ArchiveFormat
from highwater.spark.pipelines.archives.pieces import Piece, Pieces, Ranges
from highwater.spark.pipelines.archives.snapshots import size_snapshots
from highwater.spark.pipelines.archives.table_log import TableLog
from highwater.spark.pipelines.archives.value_types import (
    check_bytes,
    check_value_type,
    value_type_of,
    value_type_of_files,
)
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.session.delta_session import DeltaSettings
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.pipelines.session.spark_session import nothing_needed, session
from highwater.spark.pipelines.typed_values.value_schema import BYTES, ValueType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
# So many ranges are told to the files' reader, which passes over files, row groups and pages by what it knows of them.
# More are joined: each row would be compared with each of them.
_LITERAL_RANGES = 64
# Of reads whose tasks read one whole file each: opening another costs more than a task may read.
_WHOLE_FILES = {
    "spark.sql.files.maxPartitionBytes": str(1 << 44),
    "spark.sql.files.openCostInBytes": str(1 << 44),
    "spark.sql.files.maxPartitionNum": None,  # it goes before them
}


class Layout(NamedTuple):
    """The contents of a topic's files, and their size in bytes."""

    pieces: Pieces
    size_bytes: int


class ArchivedTopic(Protocol):
    firsts: Mapping[int, int]
    """The first archived offset of each partition."""
    ends: Mapping[int, int]
    """The offset after the last archived one."""

    @property
    def layout(self) -> Layout:
        """The layout of the topic's files. That of a table is read when it is asked for: it takes memory for each
        file."""

    def rows(self, ranges: Ranges) -> DataFrame | None:
        """The records in these ranges; None where it has none."""


def open_archive(
    pipeline: str, options: PipelineOptions, archive: str, defaults: Mapping[str, str] | None = None
) -> Archive:
    """Opens an archive with the pipeline's session (`defaults` as in `session`), which has Delta Lake where the archive
    may be a table. Raises `UserError`."""
    delta = DeltaSettings()
    plain = local_format(archive) is ArchiveFormat.PARQUET
    spark = session(pipeline, options, defaults, nothing_needed if plain else delta)
    with spark_errors():
        return Archive(spark, archive, delta)


class Archive:
    """The archive in a directory, as it is when this is made; of a table, one version. Raises `UserError`."""

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
        self.conflict: str | None = None
        """What is wrong with a table that a transaction since its last one of an archive has given rows twice."""
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
            found = History(self._session, self.directory, archive).back_to_last()
            history = [one for one in found if one.version <= latest.version]
            after = -1
            if (said := archived_by(history)) is not None:
                version, archived = said
                self.offsets, self.topic_ids = archived.offsets, archived.topic_ids
                after = version if archived.after is None else archived.after
            conflicts = Conflicts(self._session, TableLog(self._files, self.directory))
            if (wrong := conflicts.first(history, after)) is not None:
                self.conflict = wrong.sentence(
                    archive, "remove the checkpoint of the pipeline that archives to it, and start that again"
                )
        else:
            self._values = value_type_of_files(self._session, self._files, self.directory)
            names = self._files.names(self.directory)
            topics = [one.removeprefix("topic=") for one in names if one.startswith("topic=")]
            if (commit := applied_commit(self._files, self.directory)) is not None:
                self.offsets, self.topic_ids = commit.offsets, commit.topic_ids
        self.topics = sorted({*topics, *self.offsets})
        if not self.topics:
            raise UserError(f"{archive} has no topic yet")

    def check_conflict(self) -> None:
        """Raises `UserError` where its rows may be there twice."""
        if self.conflict is not None:
            raise UserError(self.conflict)

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
    """A topic in one version of a table."""

    def __init__(self, session: SparkSession, table: DataFrame) -> None:
        from pyspark.sql import functions as f

        self._session = session
        self._table = table
        grouped = table.groupBy("partition").agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        rows: list[Any] = grouped.collect()
        self.firsts: Mapping[int, int] = {row.partition: row["first"] for row in rows}
        self.ends: Mapping[int, int] = {row.partition: row["last"] + 1 for row in rows}

    @cached_property
    def layout(self) -> Layout:
        return _layout(self._table)

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
        self.layout = Layout(Pieces([]), 0)
        if files.exists(f"{directory}/topic={topic}"):
            frame, hidden = settled(files, directory, look)
            found = contents(without(frame, hidden))
            pieces = (
                Piece(one.path, one.partition, one.first_offset, one.last_offset + 1, in_order=True) for one in found
            )
            self.layout = Layout(Pieces(pieces), sum({one.path: one.size_bytes for one in found}.values()))
        self.firsts, self.ends = self.layout.pieces.firsts, self.layout.pieces.ends

    def rows(self, ranges: Ranges) -> DataFrame | None:
        paths = self.layout.pieces.paths(ranges)
        if not paths:
            return None
        return _within(self._session, read_files(self._session, self._directory, paths, value=self._value), ranges)


@contextmanager
def whole_files(rows: DataFrame) -> Iterator[None]:
    """While this is open, a query of these rows has a task for each file, which reads all of it in its order."""
    session = rows.sparkSession
    before = {name: session.conf.get(name, None) for name in _WHOLE_FILES}
    _set(session, _WHOLE_FILES)
    try:
        yield
    finally:
        _set(session, before)


def _set(session: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)


def _layout(table: DataFrame) -> Layout:
    """The layout of a table's files, by a hash of their paths.

    Others than the archive may have merged or written them: whether records are in order is looked at."""
    from pyspark.sql import functions as f

    # The number of a row within its task. Where it grows as the offset does, rows are in order, none between them.
    at = f.monotonically_increasing_id()
    file = f.xxhash64("_metadata.file_path").alias("file")  # a path for each row would take most of the time
    columns = (f.col(f"_metadata.{name}") for name in ("file_size", "file_block_start"))
    rows: list[Any] = (
        table.select(file, *columns, "partition", "offset", (f.col("offset") - at).alias("shift"))
        .groupBy("file", "file_block_start", "partition")
        .agg(
            f.min("offset").alias("first"),
            (f.max("offset") + 1).alias("end"),
            (f.min("shift") == f.max("shift")).alias("in_order"),
            f.max("file_size").alias("size"),
        )
        .collect()
    )
    blocks: dict[tuple[int, int], list[Any]] = defaultdict(list)  # which several tasks may have read
    for row in sorted(rows, key=lambda row: int(row.file_block_start)):
        blocks[row.file, row.partition].append(row)
    pieces = (_joined(f"{file:x}", partition, found) for (file, partition), found in blocks.items())
    return Layout(Pieces(pieces), sum({row.file: row["size"] for row in rows}.values()))


def _joined(path: str, partition: int, blocks: Sequence[Any]) -> Piece:
    """Blocks of a file in their order."""
    in_order = all(one.in_order for one in blocks) and all(
        before.end <= after["first"] for before, after in pairwise(blocks)
    )
    return Piece(path, partition, min(one["first"] for one in blocks), max(one.end for one in blocks), in_order)


def _within(session: SparkSession, rows: DataFrame, ranges: Ranges) -> DataFrame:
    from pyspark.sql import functions as f

    wanted = [(partition, first, until) for partition, (first, until) in ranges.items() if first < until]
    if len(wanted) <= _LITERAL_RANGES:
        one = "`partition` = {} and `offset` >= {}L and `offset` < {}L"
        return rows.where(" or ".join(one.format(*limits) for limits in wanted) or "false")
    lowest, highest = min(first for _, first, _ in wanted), max(until for _, _, until in wanted)
    limits = session.createDataFrame(wanted, "partition int, first bigint, until bigint")
    return (
        rows.where(f.col("offset").between(lowest, highest))
        .join(f.broadcast(limits), "partition")
        .where("offset >= first and offset < until")
    )
