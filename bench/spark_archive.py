"""A topic into a Delta table: by the pipeline `archive`, by a streaming query on Spark's Kafka connector, and the same
rows by Spark alone, from no topic; and the pipeline's table into a topic again, by `replay`.

The tables have the same columns, partitions (topic and date) and compression.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.spark_rows import KEY, VALUE, made_rows
from highwater.spark.pipelines.archive import ArchiveOptions
from highwater.spark.pipelines.archive import run as archive
from highwater.spark.pipelines.archives.delta import PARTITIONED_BY
from highwater.spark.pipelines.replay import ReplayOptions
from highwater.spark.pipelines.replay import run as replay
from highwater.spark.pipelines.session.delta_session import delta_settings

COMPRESSION = "zstd"  # as the pipeline has it
_COLUMNS = (
    "topic",
    "to_date(timestamp) as date",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)
_MADE = (
    "'bench-spark-read' as topic",
    "date'2026-11-21' as date",
    "spark_partition_id() as partition",
    "id as offset",
    "timestamp_millis(1795255200000 + id div 1000) as timestamp",
    "0 as timestampType",
    f"cast({KEY} as binary) as key",
    f"cast({VALUE} as binary) as value",
    "cast(null as array<struct<key:string,value:binary>>) as headers",
)


def archive_settings(jars: str) -> dict[str, str]:
    """Of a session with Delta Lake. What the pipeline says to Spark for itself is said to all."""
    return {
        **delta_settings({"spark.jars": jars} if jars else {}),
        "spark.sql.parquet.compression.codec": COMPRESSION,
        "spark.sql.shuffle.partitions": "8",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def archive_by_pipeline(bootstrap: str, topic: str, directory: Path) -> None:
    options = ArchiveOptions(
        topic=[topic],
        to=_table(directory),
        checkpoint=str(directory / "checkpoint"),
        bootstrap=bootstrap,
        compression=COMPRESSION,
    )
    archive(options)


def archive_by_query(source: DataFrame, directory: Path) -> None:
    """Available-now, in one micro-batch."""
    query = (
        source.selectExpr(*_COLUMNS)
        .writeStream.format("delta")
        .partitionBy(*PARTITIONED_BY)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(_table(directory))
    )
    query.awaitTermination()


def archive_by_spark_alone(spark: SparkSession, rows: int, directory: Path) -> None:
    made_rows(spark, rows, *_MADE).write.format("delta").partitionBy(*PARTITIONED_BY).save(_table(directory))


def replay_archive(bootstrap: str, directory: Path, to: str, checkpoint: Path) -> None:
    options = ReplayOptions(
        archive=_table(directory),
        to=to,
        checkpoint=str(checkpoint),
        append=True,
        bootstrap=bootstrap,
        option=["highwater.compression=lz4"],
    )
    replay(options)


def check_archive(spark: SparkSession, rows: int, directory: Path) -> None:
    found = spark.read.format("delta").load(_table(directory)).count()
    assert found == rows, f"{found} rows were archived, {rows} were written"


def _table(directory: Path) -> str:
    return str(directory / "table")
