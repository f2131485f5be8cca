"""An archive back into a topic, in order, with keys, headers and timestamps as they were.

    spark-submit replay.py --archive /data/archive --topic flights --to flights2 --checkpoint /data/flights2.replay

Records of a partition are sent in their order by one task, step by step. A replay that was killed begins again with the
step that it was at, looks up what of it has arrived, and sends the rest: each archived record is sent once, provided
that nothing of the killed replay is still sending.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highwater.client.blocking import Admin
from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.console.output import DEFAULT_BOOTSTRAP, Bootstrap, screen
from highwater.errors import UserError
from highwater.spark.offsets.stream_offset import offsets_json
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.data_source_options import Subscription
from highwater.spark.pipelines.archives.files import archive_session
from highwater.spark.pipelines.archives.pieces import Ranges
from highwater.spark.pipelines.archives.reading import Archive, open_archive, whole_files
from highwater.spark.pipelines.command import termination
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions, key_values
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.sending.replay_progress import PartitionOffsets, ReplayProgress, Step, next_until
from highwater.spark.pipelines.sending.targets import Append, check_empty
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.pipelines.session.task_attempts import ONCE, check_attempts
from highwater.spark.schema import NO_NULL_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SENT_COLUMNS = ("key", "value", NO_NULL_HEADERS, "timestamp")
# What a step without --step sends: enough that what it costs by itself does not count.
_STEP_BYTES = 256 << 20  # of the archive's files
_STEP_RECORDS = range(1_000_000, 10_000_001)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PipelineOptions):
    archive: Annotated[str, typer.Option(help="directory that the pipeline archive writes")]
    to: Annotated[str, typer.Option(help="the topic to send to")]
    checkpoint: Annotated[
        str, typer.Option(help="directory (any of Spark's file systems) that says where a restarted replay goes on")
    ]
    topic: Annotated[
        str | None, typer.Option(help="which of the archived topics; default: the only one", show_default=False)
    ] = None
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="send each record to the partition that it had")
    ] = False
    append: Append = False
    step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="records to send between two notes of how far it is; default: what 256 MiB of the archive's files "
            "hold, from 1,000,000 to 10,000,000",
            show_default=False,
        ),
    ] = None
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
    option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="an option of the Spark sink, e.g. highwater.…; may be repeated",
            show_default=False,
        ),
    ] = field(default_factory=list)

    @property
    def stoppable(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        key_values("--option", self.option)

    def client_options(self) -> dict[str, str]:
        return {"highwater.bootstrap.servers": self.bootstrap, **key_values("--option", self.option)}


def run(options: ReplayOptions) -> None:
    """Sends what the archive holds and the topic lacks. Raises `UserError` and the SDK's errors."""
    # A task that Spark ran again would send again what it had sent: the step fails instead, and the next run looks up
    # what has arrived.
    archive = open_archive("replay", options, options.archive, ONCE)
    check_attempts("replay", archive.spark, ONCE)
    archive.check_bytes()
    archive.check_conflict()
    with spark_errors():
        replay = Replay(archive, options)
        for sent, total in replay.steps():
            screen.print(f"sent {sent:,} of {total:,} offsets to {options.to}")
            if termination.asked() and sent < total:
                raise termination.unfinished()


class Replay:
    def __init__(self, archive: Archive, options: ReplayOptions) -> None:
        self._options = options
        self._spark = archive_session(archive.spark)
        self._bootstrap = tuple(bootstrap_addresses(options.bootstrap))
        self._archive = archive.directory
        self._topic = options.topic or archive.only_topic()
        self._archived = archive.topic(self._topic)
        checkpoint_files = HadoopFiles(archive.spark, options.checkpoint)
        self._progress = ReplayProgress(checkpoint_files, checkpoint_files.qualified(options.checkpoint))

    def steps(self) -> Iterator[tuple[int, int]]:
        """Sends step by step; after each, how many of the archived offsets were sent, and how many there are."""
        topic, firsts, ends = self._topic, self._archived.firsts, self._archived.ends
        topic_id = self._target(ends)
        total = sum(ends.values()) - sum(firsts.values())
        last = self._progress.last()
        number, sent = 0, dict(firsts)
        keeps = self._options.keep_partitions
        if last is None and not self._options.append:
            to = [TopicPartition(self._options.to, partition) for partition in self._topic_ends()]
            check_empty(self._bootstrap, to, self._options.checkpoint)
        if last is not None:
            self._check(last, topic, topic_id)
            if last.sent != last.until:
                self._send(last, resumed=True)
            number = last.number
            sent = {partition: max(first, last.until.get(partition, first)) for partition, first in firsts.items()}
            yield sum(sent.values()) - sum(firsts.values()), total
        step_records = self._options.step or _step_records(total, self._archived.layout.size_bytes)
        while (until := next_until(sent, ends, step_records)) != sent:
            number += 1
            until = _ends(self._archived.layout.pieces.until_file_ends(_ranges(sent, until)))
            step = Step(number, self._archive, topic, topic_id, sent, until, self._topic_ends(), keeps)
            self._progress.write(step)
            self._send(step, resumed=False)
            sent = until
            yield sum(sent.values()) - sum(firsts.values()), total
        self._progress.write(Step(number + 1, self._archive, topic, topic_id, sent, sent, {}, keeps))

    def _send(self, step: Step, *, resumed: bool) -> None:
        ranges = _ranges(step.sent, step.until)
        rows = self._archived.rows(ranges)
        if rows is None:
            return
        if not resumed and self._archived.layout.pieces.in_order(ranges):
            with whole_files(rows):
                self._write(rows)
            return
        if resumed:
            rows = self._lacking(rows, step)
        tasks = max(len(step.until), 1)
        self._write(rows.repartition(tasks, "partition").sortWithinPartitions("partition", "offset"))

    def _write(self, rows: DataFrame) -> None:
        (
            rows.selectExpr(*_SENT_COLUMNS, *(["partition"] if self._options.keep_partitions else []))
            .write.format("highwater")
            .options(**self._options.client_options())
            .option("topic", self._options.to)
            .option("includeTimestamp", "true")
            .mode("append")
            .save()
        )

    def _lacking(self, rows: DataFrame, step: Step) -> DataFrame:
        """Rows of a step that have not arrived. Of equal records as many are left out as have arrived, from the first
        on.

        Which of equal records arrived does not matter, but for their partition where that is kept; of those with one
        key the first ones did."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        now = self._topic_ends()
        behind = {partition: end for partition, end in now.items() if end > step.ends.get(partition, 0)}
        if not behind:
            return rows
        starts = {partition: step.ends.get(partition, 0) for partition in behind}
        arrived = (
            self._spark.read.format("highwater")
            .options(**self._options.client_options())
            .option("includeHeaders", "true")
            .option("assign", json.dumps({self._options.to: sorted(behind)}))
            .option("startingOffsets", json.dumps(self._offsets(starts)))
            .option("endingOffsets", json.dumps(self._offsets(behind)))
            .load()
        )
        timed = not arrived.where("timestampType = 1").limit(1).count()  # else the brokers gave them other times
        digest = _digest(timed=timed, placed=self._options.keep_partitions)
        counted = arrived.groupBy(digest.alias("digest")).agg(f.count("offset").alias("arrived"))
        same = Window.partitionBy("digest").orderBy("partition", "offset")
        return (
            rows.withColumn("digest", digest)
            .withColumn("nth", f.row_number().over(same))
            .join(counted, "digest", "left")
            .where("arrived is null or nth > arrived")
        )

    # What there is

    def _target(self, ends: PartitionOffsets) -> str:
        """The id of the topic that is sent to. Raises `UserError` where it cannot take what is sent."""
        with Admin(self._bootstrap) as admin:
            (topic,) = admin.describe_topics([self._options.to])
        there = len(topic.partitions)
        if self._options.keep_partitions and max(ends, default=0) >= there:
            raise UserError(
                f"the archive has partition {max(ends)}, and topic {self._options.to} only {there} partitions: leave "
                "--keep-partitions out, or send to a topic that has more"
            )
        return topic.topic_id.hex()

    def _check(self, last: Step, topic: str, topic_id: str) -> None:
        checkpoint = self._options.checkpoint
        if (last.archive, last.topic) != (self._archive, topic):
            raise UserError(
                f"checkpoint {checkpoint} is of a replay of {last.topic} of {last.archive}: take another one"
            )
        if last.keep_partitions not in (None, self._options.keep_partitions):
            raise UserError(
                f"checkpoint {checkpoint} is of a replay {'with' if last.keep_partitions else 'without'} "
                "--keep-partitions: go on as it began, or take another one"
            )
        if last.topic_id != topic_id:
            raise UserError(
                f"checkpoint {checkpoint} is of a replay to another topic than {self._options.to} is now: take another "
                "one to send everything"
            )

    def _topic_ends(self) -> dict[int, int]:
        subscription = Subscription(topics=(self._options.to,))
        with TopicOffsets(self._bootstrap, subscription, {}) as topics:
            return {partition: offset for (_, partition), offset in topics.latest(topics.partitions()).items()}

    def _offsets(self, offsets: PartitionOffsets) -> Mapping[str, Any]:
        to = self._options.to
        return offsets_json({TopicPartition(to, partition): offset for partition, offset in offsets.items()})


def _step_records(records: int, size_bytes: int) -> int:
    """The default number of records of a step, for an archive of so many records and bytes. Pure."""
    fitting = _STEP_BYTES * records // max(size_bytes, 1)
    return min(max(fitting, _STEP_RECORDS[0]), _STEP_RECORDS[-1])


def _ranges(sent: PartitionOffsets, until: PartitionOffsets) -> Ranges:
    return {partition: (sent[partition], end) for partition, end in until.items()}


def _ends(ranges: Ranges) -> dict[int, int]:
    return {partition: end for partition, (_, end) in ranges.items()}


def _digest(*, timed: bool, placed: bool) -> Column:
    """Equal for records that are equal; `placed`: and in the same partition."""
    from pyspark.sql import functions as f

    headers = "transform(headers, h -> struct(h.key as k, base64(h.value) as v))"
    time = "unix_millis(timestamp)" if timed else "0"
    place = "partition" if placed else "0"
    text = f"to_json(struct(base64(key) as k, base64(value) as v, {headers} as h, {time} as t, {place} as p))"
    return f.expr(f"unhex(sha2({text}, 256))")


command = pipeline_command(ReplayOptions, run, "Send archived records to a topic: in order, as they were.")


def main(argv: Sequence[str]) -> int:
    """Runs as `spark-submit` does; returns the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
