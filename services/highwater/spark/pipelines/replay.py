"""An archive of Parquet files back into a topic, in order, with keys, headers and timestamps as they were.

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

from highwater.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, screen
from highwater.client.blocking import Admin
from highwater.client.cluster import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.rpc.server import UserError
from highwater.spark.options import Subscription
from highwater.spark.pipelines.archive_commits import settled_files
from highwater.spark.pipelines.archive_files import FileContent, archive_session, contents, read_files
from highwater.spark.pipelines.common import (
    PipelineOptions,
    key_values,
    pipeline_command,
    session,
    spark_errors,
    submitted,
)
from highwater.spark.pipelines.hadoop_files import HadoopFiles
from highwater.spark.pipelines.replay_progress import PartitionOffsets, ReplayProgress, Step, next_until
from highwater.spark.pipelines.task_attempts import ONCE, check_attempts
from highwater.spark.stream_offset import offsets_json
from highwater.spark.topic_offsets import TopicOffsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SENT_COLUMNS = ("key", "value", "headers", "timestamp")


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
    step: Annotated[int, typer.Option(min=1, help="records to send between two notes of how far it is")] = 1_000_000
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
    option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="an option of the Spark sink, e.g. highwater.…; may be repeated",
            show_default=False,
        ),
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        key_values("--option", self.option)

    def client_options(self) -> dict[str, str]:
        return {"highwater.bootstrap.servers": self.bootstrap, **key_values("--option", self.option)}


def run(options: ReplayOptions) -> None:
    """Sends what the archive holds and the topic lacks. Raises `UserError` and the SDK's errors."""
    # A task that Spark ran again would send again what it had sent: the step fails instead, and the next run looks up
    # what has arrived.
    spark = session("replay", options, ONCE)
    check_attempts("replay", spark, ONCE)
    with spark_errors():
        replay = Replay(spark, options)
        for sent, total in replay.steps():
            screen.print(f"sent {sent:,} of {total:,} offsets to {options.to}")


class Replay:
    def __init__(self, spark: Any, options: ReplayOptions) -> None:
        self._options = options
        self._spark = archive_session(spark)
        self._bootstrap = tuple(bootstrap_addresses(options.bootstrap))
        self._files = HadoopFiles(spark, options.archive)
        self._archive = self._files.qualified(options.archive)
        checkpoint_files = HadoopFiles(spark, options.checkpoint)
        self._progress = ReplayProgress(checkpoint_files, checkpoint_files.qualified(options.checkpoint))

    def steps(self) -> Iterator[tuple[int, int]]:
        """Sends step by step; after each, how many of the archived offsets were sent, and how many there are."""
        topic = self._archived_topic()
        found = contents(read_files(self._spark, self._archive, self._paths(topic)))
        firsts, ends = _firsts(found), _ends(found)
        topic_id = self._target(ends)
        total = sum(ends.values()) - sum(firsts.values())
        last = self._progress.last()
        number, sent = 0, firsts
        keeps = self._options.keep_partitions
        if last is not None:
            self._check(last, topic, topic_id)
            if last.sent != last.until:
                self._send(last, found, resumed=True)
            number = last.number
            sent = {partition: max(first, last.until.get(partition, first)) for partition, first in firsts.items()}
            yield sum(sent.values()) - sum(firsts.values()), total
        while (until := next_until(sent, ends, self._options.step)) != sent:
            number += 1
            step = Step(number, self._archive, topic, topic_id, sent, until, self._topic_ends(), keeps)
            self._progress.write(step)
            self._send(step, found, resumed=False)
            sent = until
            yield sum(sent.values()) - sum(firsts.values()), total
        self._progress.write(Step(number + 1, self._archive, topic, topic_id, sent, sent, {}, keeps))

    def _send(self, step: Step, found: Sequence[FileContent], *, resumed: bool) -> None:
        paths = sorted({one.path for one in found if _overlaps(one, step)})
        if not paths:
            return
        rows = self._rows(paths, step)
        if resumed:
            rows = self._lacking(rows, step)
        columns = [*_SENT_COLUMNS, *(["partition"] if self._options.keep_partitions else [])]
        (
            rows.repartition(max(len(step.until), 1), "partition")
            .sortWithinPartitions("partition", "offset")
            .select(*columns)
            .write.format("highwater")
            .options(**self._options.client_options())
            .option("topic", self._options.to)
            .option("includeTimestamp", "true")
            .mode("append")
            .save()
        )

    def _rows(self, paths: Sequence[str], step: Step) -> DataFrame:
        """Of the step."""
        from pyspark.sql import functions as f

        ranges = self._spark.createDataFrame(
            [(partition, step.sent[partition], until) for partition, until in step.until.items()],
            "partition int, first bigint, until bigint",
        )
        lowest = min(step.sent[partition] for partition in step.until)
        return (
            read_files(self._spark, self._archive, paths)
            .where(f.col("offset").between(lowest, max(step.until.values())))
            .join(f.broadcast(ranges), "partition")
            .where("offset >= first and offset < until")
        )

    def _lacking(self, rows: DataFrame, step: Step) -> DataFrame:
        """Without what of the step has arrived: as many as there are of equal records, from the first on.

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

    def _archived_topic(self) -> str:
        topics = [name.removeprefix("topic=") for name in self._files.names(self._archive) if name.startswith("topic=")]
        if not topics:
            raise UserError(f"{self._options.archive} is no archive: it has no directory topic=…")
        if self._options.topic is None:
            if len(topics) > 1:
                raise UserError(
                    f"{self._options.archive} has several topics: say which with --topic: {', '.join(topics)}"
                )
            return topics[0]
        if self._options.topic not in topics:
            raise UserError(f"{self._options.archive} has no topic {self._options.topic}; it has {', '.join(topics)}")
        return self._options.topic

    def _paths(self, topic: str) -> list[str]:
        """The topic's files; those that hold each record once where the archive is being changed, or was left so."""

        def listed() -> list[str]:
            return [one.path for one in self._files.files(self._archive)]

        found = settled_files(self._files, self._archive, listed)
        return [path for path in found if path.startswith(f"topic={topic}/")]

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


def _firsts(found: Sequence[FileContent]) -> dict[int, int]:
    """The first archived offset of each partition."""
    firsts: dict[int, int] = {}
    for one in found:
        firsts[one.partition] = min(firsts.get(one.partition, one.first_offset), one.first_offset)
    return firsts


def _ends(found: Sequence[FileContent]) -> dict[int, int]:
    """The offset after the last archived one of each partition."""
    ends: dict[int, int] = {}
    for one in found:
        ends[one.partition] = max(ends.get(one.partition, 0), one.last_offset + 1)
    return ends


def _overlaps(one: FileContent, step: Step) -> bool:
    until = step.until.get(one.partition)
    return until is not None and one.first_offset < until and one.last_offset >= step.sent[one.partition]


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
    """Of `spark-submit`; the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
