"""`rollup`: counts, sums and means over JSON values, by windows of time and by fields, or whatever SQL says, kept up to
date in a topic, or written to a Delta table or Parquet files when a window is over.

    highwater pipeline rollup --topic flights --checkpoint /data/rollup --to-topic delays \\
        --time-column time --window 1h --group-by carrier --count --mean delay

    highwater pipeline rollup --topic flights --checkpoint /data/rollup --to-parquet /data/delays --time-column time \\
        --sql 'SELECT window, carrier, avg(delay) AS delay FROM records GROUP BY window(time, "1 hour"), carrier'

    highwater pipeline rollup --archive /data/archive --topic flights --checkpoint /data/rollup --to-table /data/x \\
        --time-column time --window 1h --watermark 366d --count

Spark keeps the sums beside the checkpoint and goes on from there: every record counts once, however often the job is
killed. A micro-batch that is run again writes Parquet files once, and passes over the keys that the topic already has
from its first run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.client.blocking import Admin
from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.data_source_options import Subscription
from highwater.spark.pipelines.archives.found import DELTA_LOG
from highwater.spark.pipelines.archives.reading import Archive, open_archive
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.command.pipeline_options import AVAILABLE_NOW
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles, qualified
from highwater.spark.pipelines.files.lease import Lease, checkpoint_lease
from highwater.spark.pipelines.files.offset_log import OffsetLog, offsets_text
from highwater.spark.pipelines.rollups.query import (
    ERROR,
    RECORD_COLUMNS,
    REMEDY,
    Rollup,
    interval,
    marked_records,
    parsed_records,
    rolled_up,
    same_schema,
)
from highwater.spark.pipelines.rollups.sources import (
    ArchivedRecords,
    RecordSource,
    TopicRecords,
    check_archive_options,
    has_begun,
)
from highwater.spark.pipelines.running.concurrent_query import concurrent_query
from highwater.spark.pipelines.running.graceful_stop import MicroBatch
from highwater.spark.pipelines.running.query_run import run_query
from highwater.spark.pipelines.session.delta_session import DeltaSettings
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.pipelines.session.spark_session import nothing_needed, session
from highwater.spark.pipelines.typed_values.dead_letters import DeadLetters, check_dead_letter_topic
from highwater.spark.pipelines.typed_values.value_schema import BadValues, ValueSchemaOptions, remedy_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Emit(StrEnum):
    """The time at which a row is written."""

    UPDATES = "updates"  # whenever it has changed
    FINAL = "final"  # once, when the watermark has passed its window


class BadRecords(StrEnum):
    """The effect of a record whose value is not the JSON that the schema says, or that has no time."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class RollupOptions(ValueSchemaOptions):
    archive: Annotated[
        str | None,
        typer.Option(
            help="read the topics from this archive, a Delta table that the pipeline archive writes, and not from "
            "brokers",
            show_default=False,
        ),
    ] = None
    to_topic: Annotated[
        str | None, typer.Option(help="the topic that gets a JSON object for each row", show_default=False)
    ] = None
    to_table: Annotated[
        str | None, typer.Option(help="or the directory of a Delta table, which gets them", show_default=False)
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
        if self.archive is not None:
            check_archive_options(self)
        if self.schema is not None and self.value_schema is not None:
            raise UserError("--value-schema says what values are: leave --schema out")
        if self.dead_letter is not None and self.bad_records is BadRecords.SKIP:
            raise UserError("--dead-letter takes bad records: leave --bad-records out")
        if [self.to_topic, self.to_table, self.to_parquet].count(None) != 2:
            raise UserError("say where the result goes: --to-topic, --to-table or --to-parquet")
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
        option = "--to-table" if self.to_parquet is None else "--to-parquet"
        if self.to_topic is None and self.emit is Emit.UPDATES:
            raise UserError(f"--emit updates is for a topic: {option} gets each row once, when it is final")
        if self.to_topic is None and self.sql is None and self.window is None:
            raise UserError(f"{option} needs --window: without one no row is ever final")

    @property
    def bad_values(self) -> BadValues:
        """The treatment of values that do not fit `--value-schema`, by the query that computes."""
        fail = self.bad_records is BadRecords.FAIL and self.dead_letter is None
        return BadValues.FAIL if fail else BadValues.NULL

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
    if options.to_topic is not None:
        with Admin(bootstrap_addresses(options.to or options.bootstrap)) as admin:
            admin.describe_topics([options.to_topic])  # an unknown topic is told before anything is computed
    check_dead_letter_topic(options)
    delta = DeltaSettings()
    settings = {"spark.sql.shuffle.partitions": "8"}
    archive = None
    if options.archive is not None:
        archive = open_archive("rollup", options, options.archive, settings)
        spark = archive.spark
    else:
        spark = session("rollup", options, settings, nothing_needed if options.to_table is None else delta)
    with spark_errors():
        if options.to_table is not None:
            delta.check(spark)
        lease = checkpoint_lease(spark, "rollup", options.checkpoint)
    # Also what is noted at the beginning is for one process to write: where it begins, the schema.
    with lease.held():
        _compute(spark, options, archive, lease)


def _compute(spark: SparkSession, options: RollupOptions, archive: Archive | None, lease: Lease) -> None:
    """The lease is held."""
    rollup = options.rollup()
    with spark_errors():
        if options.to_table is not None:
            _check_new(spark, options.to_table, options.checkpoint)
        source: RecordSource = TopicRecords(spark, options) if archive is None else ArchivedRecords(archive, options)
        note = source.noting(options.checkpoint)
        frame = source.stream(options.bad_values)
        schema = _schema(spark, options, source, frame)
        records = parsed_records(frame, schema, rollup, skip_bad=options.bad_values is not BadValues.FAIL)
        result = rolled_up(spark, records, rollup)
    emit = options.emit or (Emit.UPDATES if options.to_topic is not None else Emit.FINAL)
    if options.to_topic is None:
        kind, path = ("delta", options.to_table) if options.to_parquet is None else ("parquet", options.to_parquet)
        assert path is not None  # one of the three is given
        files = result.rows.writeStream.format(kind).option("path", qualified(spark, path))
        writer, each, poll = files.outputMode("append"), None, note
    else:
        keyed = result.keyed()
        target = list(bootstrap_addresses(options.to or options.bootstrap))
        sink = TopicSink(spark, options, target, options.to_topic, lease, keyed=bool(result.key))
        mode = "update" if emit is Emit.UPDATES else "append"
        writer, each, poll = keyed.writeStream.outputMode(mode), _noted_first(note, sink.write), None
    compute = partial(run_query, "rollup", frame, writer, options, each, poll)
    with remedy_named(REMEDY), source.errors_explained():
        if options.dead_letter is None:
            compute()
        else:
            _run_with_dead_letters(spark, compute, options, source, schema, lease)


def _check_new(spark: SparkSession, table: str, checkpoint: str) -> None:
    """Raises `UserError` where a table has rows that a new checkpoint would add once more."""
    if HadoopFiles(spark, table).exists(f"{table}/{DELTA_LOG}") and not has_begun(spark, checkpoint):
        raise UserError(
            f"{table} has a table, and checkpoint {checkpoint} is new: what was computed before would be added again; "
            "name another directory, or remove the table"
        )


def _schema(spark: SparkSession, options: RollupOptions, source: RecordSource, frame: DataFrame) -> StructType:
    """The schema of the values, which is the one that the job was begun with. Raises `UserError`."""
    from pyspark.sql.types import BinaryType, StructType

    option, given = "--schema", None
    if not isinstance(kind := frame.schema["value"].dataType, BinaryType):
        if options.schema is not None:
            raise UserError(f"{options.archive} has values with a type: leave --schema out")
        option, given = source.typed_by, kind
    elif options.schema is not None:
        given = StructType.fromDDL(options.schema)
    return same_schema(spark, options.checkpoint, option, given, source.sample)


def _run_with_dead_letters(
    spark: SparkSession,
    compute: Callable[[], None],
    options: RollupOptions,
    source: RecordSource,
    schema: StructType,
    lease: Lease,
) -> None:
    """The dead letters are a query of their own, which reads the same with a checkpoint of its own: what is summed up
    cannot say which records it was made of. To the end of what there is, it follows the other one, and so has seen all
    that this has when it ends."""
    extra = {"headers": "_headers", source.raw: "_raw"}
    checkpoint = f"{options.checkpoint}/dead-letter"
    with spark_errors():
        rows = source.stream(BadValues.ALL_RAW, second=True)
        marked = marked_records(rows, schema, options.time_column, extra=extra)
        columns = [f"{name} {name[1:]}" for name in (ERROR, "_headers", *RECORD_COLUMNS)]
        bad = marked.where(f"{ERROR} is not null").selectExpr(*columns, "_raw rawValue")
        letters = _noted_first(
            source.noting(checkpoint), DeadLetters(spark, options, f"{checkpoint}/notes", lease).write
        )
    of_dead = replace(options, checkpoint=checkpoint)
    if options.trigger == AVAILABLE_NOW:
        compute()
        run_query("rollup dead letters", rows, bad.writeStream, of_dead, letters)
    else:
        with concurrent_query("rollup", "rollup dead letters", bad, letters, of_dead):
            compute()


def _noted_first(note: Callable[[], None], each: MicroBatch) -> MicroBatch:
    def write(batch: DataFrame, batch_id: int) -> None:
        note()
        each(batch, batch_id)

    return write


class TopicSink:
    """Rows of a micro-batch to a topic: what an earlier run of the same micro-batch has brought there, by its key or,
    without keys, by its value, is passed over."""

    def __init__(
        self,
        spark: SparkSession,
        options: RollupOptions,
        bootstrap: Sequence[str],
        topic: str,
        lease: Lease,
        *,
        keyed: bool,
    ) -> None:
        """`lease`, which is held, says that nobody else works with the checkpoint."""
        self._lease = lease
        self._spark = spark
        self._offset_log = OffsetLog(spark, f"{options.checkpoint}/rollup/notes")
        self._bootstrap = tuple(bootstrap)
        self._topic = topic
        self._compared = "key" if keyed else "value"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        noted = self._offset_log.read(batch_id)
        ends = self._ends()
        self._lease.check()
        if noted is None:
            self._offset_log.write(batch_id, ends)
        elif noted != ends:
            batch = self._without(batch, noted, ends)
        (
            batch.write.format("highwater")
            .option("highwater.bootstrap.servers", ",".join(self._bootstrap))
            .option("topic", self._topic)
            .mode("append")
            .save()
        )
        self._offset_log.purge_before(batch_id)

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
            .option("startingOffsets", offsets_text(begins))
            .option("endingOffsets", offsets_text(ends))
            .option("columns", self._compared)
            .option("failOnDataLoss", "false")  # retention goes on
            .load()
            .selectExpr(f"cast({self._compared} as string) {self._compared}")
            .distinct()
        )
        return batch.join(there, self._compared, "left_anti")


command = pipeline_command(
    RollupOptions, run, "Counts, sums and means over JSON values, by windows of time and fields, or by SQL."
)


def main(argv: list[str]) -> int:
    """Runs as `spark-submit` does; returns the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
