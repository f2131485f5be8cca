"""Topics into Parquet files, by topic, date and hour: every record once, whatever is killed when.

    spark-submit archive.py --topic flights --to /data/archive --checkpoint /data/archive.checkpoint

What a micro-batch wrote is staged, and becomes part of the archive by a commit that says which offsets it has
(`archive_commits`). A micro-batch that Spark runs again, or a query that begins again without its checkpoint, finds its
records below these offsets and archives the others only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highwater.rpc.server import UserError
from highwater.spark.pipelines.archive_commits import Commit, CommitLog, Offsets, check_topics, merged_offsets
from highwater.spark.pipelines.archive_compaction import compact
from highwater.spark.pipelines.archive_files import (
    archive_session,
    contents,
    highest_commit,
    named,
    read_files,
    write_files,
)
from highwater.spark.pipelines.common import (
    PipelineOptions,
    StreamOptions,
    pipeline_command,
    run_query,
    session,
    spark_errors,
    submitted,
)
from highwater.spark.pipelines.hadoop_files import HadoopFiles, check_one_file_system
from highwater.spark.positions import EARLIEST_OFFSET, OptionError, parse_duration_ms
from highwater.spark.stream_offset import parse_stream_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(StreamOptions):
    to: Annotated[str, typer.Option(help="directory of the archive (any of Spark's file systems)")]
    compression: Annotated[str, typer.Option(help="of the Parquet files: zstd, snappy, gzip, lz4_raw, none")] = "zstd"
    compact: Annotated[bool, typer.Option("--compact", help="only merge small files of hours that are over")] = False
    compact_every: Annotated[
        int | None, typer.Option(min=1, help="merge small files after so many micro-batches", show_default=False)
    ] = None
    closed_after: Annotated[str, typer.Option(help="how long after its end an hour may be merged")] = "10m"
    file_mib: Annotated[int, typer.Option(min=1, help="merge files below half of this, into files of about this")] = 128

    def __post_init__(self) -> None:
        if self.compact:
            PipelineOptions.__post_init__(self)  # no topic is read
        else:
            super().__post_init__()
        _ = self.closed_after_ms

    @property
    def closed_after_ms(self) -> int:
        """Raises `UserError`."""
        try:
            return parse_duration_ms("--closed-after", self.closed_after)
        except OptionError as error:
            raise UserError(str(error)) from None


def run(options: ArchiveOptions) -> None:
    """Archives until the topics' end, or for ever. Raises `UserError` and the SDK's errors."""
    spark = session("archive", options)
    with spark_errors():
        archive = Archive(spark, options)
        archive.open()
        if options.compact:
            archive.compact()
            return
        source = archive.source()
    run_query("archive", source.writeStream.foreachBatch(archive.add), options)


class Archive:
    """A directory of Parquet files, and the one process that writes to it."""

    def __init__(self, spark: SparkSession, options: ArchiveOptions) -> None:
        self._options = options
        self._spark = archive_session(spark)
        self._files = HadoopFiles(spark, options.to)
        self._directory = self._files.qualified(options.to)
        self._checkpoint = HadoopFiles(spark, options.checkpoint).qualified(options.checkpoint)
        check_one_file_system(self._directory, self._checkpoint)
        if f"{self._checkpoint}/".startswith(f"{self._directory}/"):
            raise UserError(
                f"checkpoint {options.checkpoint} is in {options.to}: what is staged there would be read, too"
            )
        self._staging = f"{self._checkpoint}/staging"
        self._commits = CommitLog(self._files, self._directory)
        self._batches = 0

    def open(self) -> None:
        """Finishes what a crash left, and removes what it staged. Raises `UserError`."""
        if not self._commits.open():
            paths = [one.path for one in self._files.files(self._directory)]
            if not paths and self._files.names(f"{self._checkpoint}/offsets"):
                raise UserError(
                    f"checkpoint {self._options.checkpoint} is of an archive that is no longer in {self._options.to}: "
                    "remove it to archive from the beginning"
                )
            if not paths and self._options.compact:
                raise UserError(f"there is no archive in {self._options.to}")
            self._commits.begin(highest_commit(paths) + 1, self._offsets_of_files() if paths else {})
        self._files.delete(self._staging)

    def source(self) -> DataFrame:
        """The streaming read. A query without a checkpoint goes on where the archive ends."""
        found = {**self._options.source_options(), "includeHeaders": "true"}
        archived = self._commits.last.offsets
        if archived and not self._files.names(f"{self._checkpoint}/offsets"):
            found["startingOffsets"] = json.dumps(self._starts(found, archived))
        return self._spark.readStream.format("highwater").options(**found).load()

    def add(self, frame: DataFrame, batch: int) -> None:
        """A micro-batch. Spark calls this again with the same records where it does not know that they are in."""
        archived, planned = self._commits.last.topic_ids, self._planned_ids(batch)
        check_topics(archived, planned, self._options.to)
        number = self._commits.last.number + 1
        staging = f"{self._staging}/{number}"
        self._files.delete(staging)
        write_files(self._placed(self._new(frame)), staging, self._options.compression)
        found = contents(read_files(self._spark, staging))
        if found:
            offsets = merged_offsets(
                self._commits.last.offsets, [(one.topic, one.partition, one.last_offset) for one in found]
            )
            adds = {target: f"{staging}/{path}" for path, target in named(found, number).items()}
            ids = {one.topic: planned[one.topic] for one in found if one.topic in planned}
            self._commits.commit(Commit(number, offsets, adds, topic_ids={**archived, **ids}))
        self._files.delete(staging)
        self._batches += 1
        if self._options.compact_every is not None and self._batches % self._options.compact_every == 0:
            self.compact()

    def compact(self) -> None:
        """Merges the small files of hours that are over."""
        options = self._options
        compact(
            self._spark,
            self._files,
            self._commits,
            self._directory,
            self._staging,
            compression=options.compression,
            file_bytes=options.file_mib << 20,
            closed_after_ms=options.closed_after_ms,
        )

    def _new(self, frame: DataFrame) -> DataFrame:
        """Without what the archive has already: later micro-batches of a process go on where its first one ended."""
        archived = [
            (topic, partition, offset)
            for topic, partitions in self._commits.last.offsets.items()
            for partition, offset in partitions.items()
        ]
        if self._batches or not archived:
            return frame
        from pyspark.sql import functions as f

        known = frame.sparkSession.createDataFrame(archived, "topic string, partition int, archived bigint")
        return (
            frame.join(f.broadcast(known), ["topic", "partition"], "left")
            .where("archived is null or offset >= archived")
            .drop("archived")
        )

    def _placed(self, frame: DataFrame) -> DataFrame:
        """With date and hour in UTC, whatever the session's time zone is."""
        return frame.selectExpr(
            "key",
            "value",
            "partition",
            "offset",
            "timestamp",
            "timestampType",
            "headers",
            "topic",
            f"cast(date_from_unix_date(cast(floor(unix_millis(timestamp) / {_DAY_MS}) as int)) as string) as date",
            f"lpad(cast(floor(pmod(unix_millis(timestamp), {_DAY_MS}) / {_HOUR_MS}) as string), 2, '0') as hour",
        )

    def _offsets_of_files(self) -> Offsets:
        """Of an archive whose commits are lost: what its files hold."""
        from pyspark.sql import functions as f

        grouped = read_files(self._spark, self._directory).groupBy("topic", "partition")
        rows: list[Any] = grouped.agg(f.max("offset").alias("last")).collect()
        return merged_offsets({}, [(row.topic, row.partition, row["last"]) for row in rows])

    def _planned_ids(self, batch: int) -> Mapping[str, str]:
        """Of the topics that a micro-batch reads: Spark writes down what it is to read before it begins."""
        planned = self._files.read(f"{self._checkpoint}/offsets/{batch}").decode().splitlines()[-1]
        return parse_stream_offset(json.loads(planned)).topic_ids

    def _starts(self, source_options: dict[str, str], archived: Offsets) -> dict[str, dict[str, int]]:
        """Where each partition that there is now goes on; those that the archive does not know begin."""
        from highwater.client import Admin
        from highwater.spark.client_settings import client_settings
        from highwater.spark.options import lower_case, parse_read_options
        from highwater.spark.topic_offsets import TopicOffsets

        parsed = parse_read_options(source_options, streaming=True)
        settings = client_settings(lower_case(source_options), Admin)
        starts: dict[str, dict[str, int]] = {}
        with TopicOffsets(parsed.bootstrap, parsed.subscription, settings) as topics:
            for topic, partition in topics.partitions(missing_ok=not parsed.fail_on_data_loss):
                offset = archived.get(topic, {}).get(partition, EARLIEST_OFFSET)
                starts.setdefault(topic, {})[str(partition)] = offset
            check_topics(self._commits.last.topic_ids, topics.topic_ids, self._options.to)
        return starts


command = pipeline_command(ArchiveOptions, run, "Archive topics as Parquet files: every record once.")


def main(argv: Sequence[str]) -> int:
    """Of `spark-submit`; the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
