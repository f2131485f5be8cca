"""Topics into a Delta table, or into plain Parquet files: every record once, whatever is killed when.

    spark-submit archive.py --topic flights --to /data/archive --checkpoint /data/archive.checkpoint

The archive itself says up to which offset of each partition it goes, and which topics these are, by their ids: in the
transactions of the table (`archives.delta`), or in commits beside the files (`archives.parquet`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from highwater.console.output import screen
from highwater.errors import UserError
from highwater.spark.pipelines.archives.options import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.running.query_run import run_query
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.pipelines.session.spark_session import nothing_needed, session
from highwater.spark.pipelines.typed_values.dead_letters import check_dead_letter_topic
from highwater.spark.pipelines.typed_values.value_schema import BadValues, ValueType, remedy_named, value_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from highwater.spark.pipelines.archives.delta import DeltaArchive
    from highwater.spark.pipelines.archives.parquet import ParquetArchive
    from highwater.spark.pipelines.session.delta_session import DeltaSettings

__all__ = ["ArchiveFormat", "ArchiveOptions", "run"]


def run(options: ArchiveOptions) -> None:
    """Archives until the topics' end, or for ever. Raises `UserError` and the SDK's errors."""
    from highwater.spark.pipelines.archives.found import local_format
    from highwater.spark.pipelines.session.delta_session import DeltaSettings

    delta = DeltaSettings()
    plain = (options.format or local_format(options.to)) is ArchiveFormat.PARQUET
    check_dead_letter_topic(options)
    with spark_errors():
        spark = session("archive", options, needed=nothing_needed if plain else delta)
        values = value_type(spark, options, BadValues.FAIL if options.dead_letter is None else BadValues.RAW)
        archive = _archive(spark, options, delta, values)
        with archive.opened():
            if options.compact:
                began_s = monotonic()
                merged = archive.compact()
                screen.print(f"archive: {merged}, {monotonic() - began_s:.1f} s")
                return
            source = archive.source()
            with remedy_named("correct --value-schema, or say --dead-letter TOPIC"):
                run_query("archive", source, source.writeStream, options, archive.add)


def _archive(
    spark: SparkSession, options: ArchiveOptions, delta: DeltaSettings, values: ValueType
) -> DeltaArchive | ParquetArchive:
    from highwater.spark.pipelines.archives.delta import DeltaArchive
    from highwater.spark.pipelines.archives.found import found_format
    from highwater.spark.pipelines.archives.parquet import ParquetArchive
    from highwater.spark.pipelines.files.hadoop_files import HadoopFiles

    there = found_format(HadoopFiles(spark, options.to), options.to)
    if there is not None and options.format not in (None, there):
        raise UserError(f"{options.to} is an archive of another format: leave --format out, or say --format {there}")
    if (there or options.format or ArchiveFormat.DELTA) is ArchiveFormat.PARQUET:
        return ParquetArchive(spark, options, values)
    delta.check(spark)
    return DeltaArchive(spark, options, values)


command = pipeline_command(ArchiveOptions, run, "Archive topics as a Delta table or Parquet files: every record once.")


def main(argv: Sequence[str]) -> int:
    """Runs as `spark-submit` does; returns the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
