"""The micro-batches of an archive's query, and the part of them that the archive lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.offsets.stream_offset import StreamOffset, parse_stream_offset
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import ReadOptions, lower_case, parse_read_options
from highwater.spark.options.positions import EARLIEST_OFFSET
from highwater.spark.pipelines.archives.offsets import Offsets, archived_at, check_topics, knows
from highwater.spark.pipelines.archives.options import ArchiveOptions
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.files.lease import Lease, checkpoint_lease
from highwater.spark.pipelines.typed_values.dead_letters import DeadLetters
from highwater.spark.pipelines.typed_values.value_schema import ValueType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Planned:
    """The ranges that a micro-batch reads."""

    ranges: Mapping[TopicPartition, tuple[int, int]]  # from the first of these offsets to before the other
    topic_ids: Mapping[str, str]  # in hex
    taken_up: frozenset[TopicPartition] = frozenset()  # the partitions that the query begins with this micro-batch

    def lacking(self, archived: Offsets) -> Planned:
        """The ranges of which some is not archived, and their topics; also where a partition is taken up at its end:
        that the archive begins there is to be known when it goes on."""
        lacking = {
            partition: (first, end)
            for partition, (first, end) in self.ranges.items()
            if end > max(first, archived_at(archived, partition))
            or (partition in self.taken_up and first > 0 and not knows(archived, partition))
        }
        topics = {partition.topic for partition in lacking}
        ids = {topic: value for topic, value in self.topic_ids.items() if topic in topics}
        return Planned(lacking, ids, self.taken_up.intersection(lacking))

    def archived_in_part(self, archived: Offsets) -> list[tuple[str, int, int]]:
        """Topic, partition, and the first offset that is not archived, of ranges that begin before it."""
        return [
            (*partition, archived_at(archived, partition))
            for partition, (first, _) in self.ranges.items()
            if first < archived_at(archived, partition)
        ]

    def beyond(self, archived: Offsets) -> list[tuple[TopicPartition, int, int]]:
        """A partition, the first offset of the range and where the archive ends, of ranges that begin after it. Where
        the archive does not know the partition, it begins where the query does, and nowhere later."""
        return [
            (partition, first, archived_at(archived, partition))
            for partition, (first, _) in self.ranges.items()
            if first > archived_at(archived, partition)
            and (partition not in self.taken_up or knows(archived, partition))
        ]

    def offsets(self) -> list[tuple[str, int, int]]:
        """Topic, partition and the last offset of each range; of an empty one, the offset before it."""
        return [(*partition, end - 1) for partition, (_, end) in self.ranges.items()]


class MicroBatches:
    def __init__(self, spark: SparkSession, options: ArchiveOptions, values: ValueType) -> None:
        self._spark = spark
        self._options = options
        self._values = values
        self._files = HadoopFiles(spark, options.checkpoint)
        self.checkpoint = self._files.qualified(options.checkpoint)
        noted = f"{self.checkpoint}/dead-letter"
        self._lease: Lease | None = None
        self._dead_letters: DeadLetters | None = None
        if options.dead_letter is not None:
            self._lease = checkpoint_lease(spark, "archive pipeline", options.checkpoint)
            self._dead_letters = DeadLetters(spark, options, noted, self._lease)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps others from the checkpoint while the block runs, where there are dead letters. Raises `UserError`."""
        if self._lease is None:
            yield
        else:
            with self._lease.held():
                yield

    @property
    def begun(self) -> bool:
        """True where the checkpoint says at which offsets the query goes on."""
        return any(map(str.isdecimal, self._files.names(f"{self.checkpoint}/offsets")))

    def source(self, archived: Offsets, topic_ids: Mapping[str, str]) -> DataFrame:
        """The streaming read. A query without a checkpoint goes on where the archive ends. Raises `UserError`."""
        found = {**self._options.source_options(), **self._values.source_options, "includeHeaders": "true"}
        if self.begun:
            self._check_done(archived, topic_ids)
            self._check_behind(found, archived)
        elif archived:
            found = {name: value for name, value in found.items() if not name.lower().startswith("starting")}
            found["startingOffsets"] = json.dumps(self._starts(found, archived, topic_ids))
        return self._spark.readStream.format("highwater").options(**found).load()

    def planned(self, batch: int) -> Planned:
        """Spark writes down what a micro-batch is to read before it begins."""
        return planned(self._written(batch - 1) if batch else None, self._written(batch))

    def rows(self, frame: DataFrame, batch: int, planned: Planned, archived: Offsets) -> DataFrame:
        """The rows of a micro-batch that go into the archive; those that cannot have gone to the dead letters."""
        lacking = new_rows(frame, planned, archived)
        if self._dead_letters is None:
            return lacking
        bad = lacking.where("valueError is not null").withColumnRenamed("valueError", "error")
        self._dead_letters.write(bad.drop("value"), batch)
        return lacking.where("valueError is null")

    def _written(self, batch: int) -> StreamOffset:
        return written_offset(self._files.read(f"{self.checkpoint}/offsets/{batch}"), self._options.checkpoint, batch)

    def check(self, planned: Planned, archived: Offsets, topic_ids: Mapping[str, str]) -> None:
        """Confirms that a micro-batch goes on with what is archived. Raises `UserError`."""
        options = self._options
        check_topics(topic_ids, planned.topic_ids, options.to)
        for (topic, number), first, end in planned.beyond(archived):
            raise UserError(
                f"checkpoint {options.checkpoint} goes on at offset {first} of {topic}-{number}, and archive "
                f"{options.to} ends at {end}: it is of another archive, or this one was put back; remove the "
                "checkpoint to go on where the archive ends"
            )

    def _check_done(self, archived: Offsets, topic_ids: Mapping[str, str]) -> None:
        """Confirms that the archive has what the checkpoint has done: where the topics have nothing new, no micro-batch
        would find that it leaves a gap. Raises `UserError`."""
        last = self._last("offsets")
        if self._last("commits") >= last:  # else a micro-batch is done again
            self.check(nothing_new(self._written(last)), archived, topic_ids)

    def _check_behind(self, source_options: dict[str, str], archived: Offsets) -> None:
        """Confirms that what the checkpoint would read once more is still in the topics: one that was put back may be
        behind the archive. Raises `UserError`."""
        going_on = self._going_on(archived).items()
        behind = {partition: first for partition, first in going_on if first < archived_at(archived, partition)}
        if not behind or not _read_options(source_options).fail_on_data_loss:
            return
        with _topic_offsets(source_options) as topics:
            there = behind.keys() & set(topics.partitions(missing_ok=True))
            earliest = topics.earliest(sorted(there))
        for partition, first in earliest.items():
            if behind[partition] < first:
                topic, number = partition
                raise UserError(
                    f"checkpoint {self._options.checkpoint} goes on at offset {behind[partition]} of {topic}-{number}, "
                    f"which begins at {first} by now, and archive {self._options.to} goes up to "
                    f"{archived_at(archived, partition)}: remove the checkpoint to go on where the archive ends"
                )

    def _going_on(self, archived: Offsets) -> Mapping[TopicPartition, int]:
        """The offsets from which the query reads on. A micro-batch that is archived is done again without reading
        it."""
        last, done = (self._last(name) for name in ("offsets", "commits"))
        ends = self._written(last).ends
        if done >= last:
            return ends
        again = self.planned(last)
        if not again.lacking(archived).ranges:
            return ends
        # All of it is read, and what is archived passed over.
        return {partition: first for partition, (first, _) in again.ranges.items()}

    def _last(self, log: str) -> int:
        return max(map(int, filter(str.isdecimal, self._files.names(f"{self.checkpoint}/{log}"))), default=-1)

    def _starts(
        self, source_options: dict[str, str], archived: Offsets, topic_ids: Mapping[str, str]
    ) -> dict[str, dict[str, int]]:
        """The offsets at which each partition that exists now goes on, or begins where the archive does not know it."""
        starts: dict[str, dict[str, int]] = {}
        missing_ok = not _read_options(source_options).fail_on_data_loss
        with _topic_offsets(source_options) as topics:
            for topic, partition in topics.partitions(missing_ok=missing_ok):
                offset = archived.get(topic, {}).get(partition, EARLIEST_OFFSET)
                starts.setdefault(topic, {})[str(partition)] = offset
            check_topics(topic_ids, topics.topic_ids, self._options.to)
        return starts


def _read_options(source_options: dict[str, str]) -> ReadOptions:
    return parse_read_options(source_options, streaming=True)


def _topic_offsets(source_options: dict[str, str]) -> TopicOffsets:
    parsed = _read_options(source_options)
    return TopicOffsets(parsed.bootstrap, parsed.subscription, client_settings(lower_case(source_options), "Admin"))


def written_offset(text: bytes, checkpoint: str, batch: int) -> StreamOffset:
    """The offset that Spark wrote down of a micro-batch. Raises `UserError`. Pure."""
    try:
        form, *_, offset = text.decode().splitlines()
        if form == "v1":
            return parse_stream_offset(json.loads(offset))
    except (ValueError, AttributeError):
        raise UserError(
            f"offsets/{batch} in checkpoint {checkpoint} is not whole, as after a loss of power: remove the checkpoint "
            "to go on where the archive ends"
        ) from None
    raise UserError(
        f"checkpoint {checkpoint} has offsets in Spark's format {form}, and an archive reads v1: leave "
        "spark.sql.streaming.offsetLog.formatVersion as it is, and begin with another checkpoint"
    )


def planned(before: StreamOffset | None, written: StreamOffset) -> Planned:
    """The plan of a micro-batch, from its offset and that of the one before it in the checkpoint. Pure."""
    ends = before.ends if before is not None else {}
    starts = {**ends, **(written.starts or {})}
    ranges = {partition: (starts.get(partition, 0), end) for partition, end in written.ends.items()}
    taken_up = frozenset(
        partition for partition in ranges if partition not in ends or partition in (written.starts or {})
    )
    return Planned(ranges, written.topic_ids, taken_up)


def nothing_new(written: StreamOffset) -> Planned:
    """The plan of a micro-batch that goes on with nothing new. Pure."""
    return Planned({partition: (end, end) for partition, end in written.ends.items()}, written.topic_ids)


def new_rows(frame: DataFrame, planned: Planned, archived: Offsets) -> DataFrame:
    """The rows of a micro-batch that the archive does not have yet."""
    known = planned.archived_in_part(archived)
    if not known:
        return frame
    from pyspark.sql import functions as f

    offsets = frame.sparkSession.createDataFrame(known, "topic string, partition int, archived bigint")
    return (
        frame.join(f.broadcast(offsets), ["topic", "partition"], "left")
        .where("archived is null or offset >= archived")
        .drop("archived")
    )


def date_of(time: str) -> str:
    """SQL: the date of a timestamp in UTC, whatever the session's time zone is."""
    return f"date_from_unix_date(cast(floor(unix_millis({time}) / {_DAY_MS}) as int))"


def hour_of(time: str) -> str:
    """SQL: `00` to `23`, in UTC."""
    return f"lpad(cast(floor(pmod(unix_millis({time}), {_DAY_MS}) / {_HOUR_MS}) as string), 2, '0')"
