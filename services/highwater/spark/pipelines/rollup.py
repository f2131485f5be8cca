"""`rollup`: counts, sums and means over JSON values, by windows of time and by fields, or whatever SQL says, kept up to
date in a topic or written to Parquet when a window is over.

    highwater pipeline rollup --topic flights --checkpoint /data/rollup --to-topic delays \\
        --time-column time --window 1h --group-by carrier --count --mean delay

    highwater pipeline rollup --topic flights --checkpoint /data/rollup --to-parquet /data/delays --time-column time \\
        --sql 'SELECT window, carrier, avg(delay) AS delay FROM records GROUP BY window(time, "1 hour"), carrier'

Spark keeps the sums beside the checkpoint and goes on from there: every record counts once, however often the job is
killed. A micro-batch that is run again writes Parquet files once, and passes over the keys that the topic already has
from its first run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.client.blocking import Admin
from highwater.client.bootstrap import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.rpc.server import UserError
from highwater.spark.client_settings import PREFIXES
from highwater.spark.options import Subscription
from highwater.spark.pipelines.batch_notes import BatchNotes, text_of
from highwater.spark.pipelines.common import (
    StreamOptions,
    pipeline_command,
    session,
    spark_errors,
    submitted,
)
from highwater.spark.pipelines.rollup_query import Rollup, interval, parsed_records, rolled_up, same_schema
from highwater.spark.pipelines.running import run_query
from highwater.spark.topic_offsets import TopicOffsets

SAMPLED_RECORDS = 1000
# Of the source's options, those that say what is read, and not how much at a time.
_WHERE = ("subscribe", *PREFIXES)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Emit(StrEnum):
    """When a row is written."""

    UPDATES = "updates"  # whenever it has changed
    FINAL = "final"  # once, when the watermark has passed its window


class BadRecords(StrEnum):
    """What a record does whose value is not the JSON that the schema says, or has no time."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class RollupOptions(StreamOptions):
    to_topic: Annotated[
        str | None, typer.Option(help="the topic that gets a JSON object for each row", show_default=False)
    ] = None
    to_parquet: Annotated[
        str | None, typer.Option(help="or the directory that gets Parquet files", show_default=False)
    ] = None
    to: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…", help="brokers of --to-topic; default: --bootstrap", show_default=False),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL",
            help="fields of the values, e.g. 'carrier STRING, delay DOUBLE'; default: as in the first records",
            show_default=False,
        ),
    ] = None
    time_column: Annotated[
        str | None,
        typer.Option(
            help="field with the time: a TIMESTAMP, text that is one, or a BIGINT of ms; default: the record's own",
            show_default=False,
        ),
    ] = None
    window: Annotated[
        str | None, typer.Option(help="length of a window: 30s, 10m, 1h, 1d; default: none", show_default=False)
    ] = None
    slide: Annotated[
        str | None,
        typer.Option(help="how often a window begins; default: when the one before ends", show_default=False),
    ] = None
    watermark: Annotated[str, typer.Option(help="how much later than the newest a record may come and count")] = "10m"
    group_by: Annotated[list[str], typer.Option(metavar="FIELD", help="may be repeated", show_default=False)] = field(
        default_factory=list
    )
    count: Annotated[bool, typer.Option("--count", help="a column count")] = False
    sum: Annotated[
        list[str], typer.Option(metavar="FIELD", help="a column sum_FIELD; may be repeated", show_default=False)
    ] = field(default_factory=list)
    mean: Annotated[
        list[str], typer.Option(metavar="FIELD", help="a column mean_FIELD; may be repeated", show_default=False)
    ] = field(default_factory=list)
    sql: Annotated[
        str | None,
        typer.Option(help="instead of --window to --mean: a query over the view records", show_default=False),
    ] = None
    key: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN",
            help="with --sql and --to-topic: a column of the result that belongs to the key; may be repeated",
            show_default=False,
        ),
    ] = field(default_factory=list)
    emit: Annotated[
        Emit | None,
        typer.Option(help="when a row is written; default: updates to a topic, final to Parquet", show_default=False),
    ] = None
    bad_records: Annotated[
        BadRecords, typer.Option(help="a value that is not such JSON, or has no time, ends the job or is left out")
    ] = BadRecords.FAIL

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.to_topic is None) == (self.to_parquet is None):
            raise UserError("say where the result goes: --to-topic or --to-parquet")
        built = [
            f"--{name.replace('_', '-')}"
            for name in ("window", "slide", "group_by", "count", "sum", "mean")
            if getattr(self, name)
        ]
        if self.sql is not None and built:
            raise UserError(f"--sql says what is computed: leave {', '.join(built)} out")
        if self.sql is None and not (self.count or self.sum or self.mean):
            raise UserError("say what to compute: --count, --sum FIELD, --mean FIELD, or --sql QUERY")
        if self.sql is None and self.key:
            raise UserError("--key is for --sql: else the window and the fields of --group-by are the key")
        if self.slide is not None and self.window is None:
            raise UserError("--slide needs --window")
        for option, text in (("--watermark", self.watermark), ("--window", self.window), ("--slide", self.slide)):
            if text is not None:
                interval(option, text)
        if self.to_parquet is not None and self.emit is Emit.UPDATES:
            raise UserError("--emit updates is for a topic: a row of a Parquet file cannot be changed")
        if self.to_parquet is not None and self.sql is None and self.window is None:
            raise UserError("--to-parquet needs --window: without one no row is ever final")

    def rollup(self) -> Rollup:
        return Rollup(
            self.time_column,
            interval("--watermark", self.watermark),
            None if self.window is None else interval("--window", self.window),
            None if self.slide is None else interval("--slide", self.slide),
            tuple(self.group_by),
            self.count,
            tuple(self.sum),
            tuple(self.mean),
            self.sql,
            tuple(self.key),
        )


def run(options: RollupOptions) -> None:
    """Raises `UserError` and the SDK's errors."""
    rollup = options.rollup()
    target = bootstrap_addresses(options.to or options.bootstrap)
    if options.to_topic is not None:
        with Admin(target) as admin:
            admin.describe_topics([options.to_topic])  # an unknown topic is told before anything is computed
    spark = session("rollup", options, {"spark.sql.shuffle.partitions": "8"})
    with spark_errors():
        source = options.source_options()
        schema = same_schema(spark, options.checkpoint, options.schema, lambda: _first_records(spark, options))
        frame = spark.readStream.format("highwater").options(**source).load()
        records = parsed_records(frame, schema, rollup, skip_bad=options.bad_records is BadRecords.SKIP)
        result = rolled_up(spark, records, rollup)
    emit = options.emit or (Emit.UPDATES if options.to_topic is not None else Emit.FINAL)
    if options.to_topic is None:
        rows = result.rows.writeStream.format("parquet").option("path", options.to_parquet)
        writer, each = rows.outputMode("append"), None
    else:
        keyed = result.keyed()
        sink = TopicSink(spark, options, list(target), options.to_topic, keyed=bool(result.key))
        mode = "update" if emit is Emit.UPDATES else "append"
        writer, each = keyed.writeStream.outputMode(mode), sink.write
    run_query("rollup", frame, writer, options, each)


def _first_records(spark: SparkSession, options: RollupOptions) -> DataFrame:
    """The values of the first records of each partition, `SAMPLED_RECORDS` together."""
    bootstrap = tuple(bootstrap_addresses(options.bootstrap))
    with TopicOffsets(bootstrap, Subscription(tuple(options.topic), options.pattern), {}) as topics:
        partitions = topics.partitions()
        begins, ends = topics.earliest(partitions), topics.latest(partitions)
    share = -(-SAMPLED_RECORDS // max(len(partitions), 1))
    until = {partition: min(begins[partition] + share, end) for partition, end in ends.items()}
    source = {name: value for name, value in options.source_options().items() if name.lower().startswith(_WHERE)}
    return (
        spark.read.format("highwater")
        .options(**source)
        .option("startingOffsets", text_of(begins))
        .option("endingOffsets", text_of(until))
        .option("failOnDataLoss", "false")  # retention goes on
        .option("columns", "value")
        .load()
    )


class TopicSink:
    """Rows of a micro-batch to a topic: what an earlier run of the same micro-batch has brought there, by its key or,
    without keys, by its value, is passed over."""

    def __init__(
        self, spark: SparkSession, options: RollupOptions, bootstrap: Sequence[str], topic: str, *, keyed: bool
    ) -> None:
        self._spark = spark
        self._notes = BatchNotes(spark, f"{options.checkpoint}/rollup/notes")
        self._bootstrap = tuple(bootstrap)
        self._topic = topic
        self._compared = "key" if keyed else "value"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        noted = self._notes.read(batch_id)
        ends = self._ends()
        if noted is None:
            self._notes.write(batch_id, ends)
        elif noted != ends:
            batch = self._without(batch, noted, ends)
        (
            batch.write.format("highwater")
            .option("highwater.bootstrap.servers", ",".join(self._bootstrap))
            .option("topic", self._topic)
            .mode("append")
            .save()
        )
        self._notes.forget_before(batch_id)

    def _ends(self) -> dict[TopicPartition, int]:
        with TopicOffsets(self._bootstrap, Subscription((self._topic,)), {}) as topics:
            return dict(topics.latest(topics.partitions()))

    def _without(
        self, batch: DataFrame, noted: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> DataFrame:
        begins = {partition: min(noted.get(partition, 0), end) for partition, end in ends.items()}
        there = (
            self._spark.read.format("highwater")
            .option("highwater.bootstrap.servers", ",".join(self._bootstrap))
            .option("subscribe", self._topic)
            .option("startingOffsets", text_of(begins))
            .option("endingOffsets", text_of(ends))
            .option("columns", self._compared)
            .load()
            .selectExpr(f"cast({self._compared} as string) {self._compared}")
            .distinct()
        )
        return batch.join(there, self._compared, "left_anti")


command = pipeline_command(
    RollupOptions, run, "Counts, sums and means over JSON values, by windows of time and fields, or by SQL."
)


def main(argv: list[str]) -> int:
    """For `spark-submit`; the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
