"""`verify`: whether an archive holds what its topics hold, record by record.

    spark-submit verify.py /data/archive --bootstrap 127.0.0.1:9092

Of each partition, what both have is compared by a checksum of the records, and where these differ, record by record:
key, value, headers, timestamp. What the topic has no longer (retention) is looked at in the archive alone, and what
came after the last record of the archive is not its yet. The archive is read as it was when this began; what is found
is looked for again, where the topic may have lost its first records meanwhile. An archive whose values have a type is
compared with the values of the topic as the same schema makes them; those that do not fit are not in the archive.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highwater.client.blocking import Admin
from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, Bootstrap, json_line, screen, table
from highwater.errors import UserError
from highwater.spark.offsets.stream_offset import offsets_json
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import Subscription, lower_case
from highwater.spark.pipelines.archives.files import archive_session
from highwater.spark.pipelines.archives.offsets import check_topics
from highwater.spark.pipelines.archives.pieces import Ranges
from highwater.spark.pipelines.archives.reading import Archive, open_archive
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.command.pipeline_options import key_values
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.pipelines.typed_values.value_schema import (
    BYTES,
    BadValues,
    ValueType,
    ValueTypeOptions,
    value_type,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS = 3  # at what was found, at most
_CHECKED = "partition int, offset bigint, checksum bigint"

# Spark's hash passes over nulls, so what is null is hashed, too; and it takes no maps.
_JSON = (
    "to_json(struct(value), map('ignoreNullFields', 'false', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\", "
    "'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\"))"
)
_CHECKSUM = (
    "xxhash64(partition, offset, key is null, key, value is null, {value}, unix_millis(timestamp), timestampType, "
    "size(headers), transform(headers, h -> h.value is null), headers)"
)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ValueTypeOptions):
    archive: Annotated[str, typer.Argument(help="directory that the pipeline archive writes")]
    topic: Annotated[
        list[str], typer.Option(help="an archived topic, may be repeated; default: all", show_default=False)
    ] = field(default_factory=list)
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
    json: Annotated[bool, typer.Option("--json", help="print a JSON object for each partition")] = False

    def source_options(self) -> dict[str, str]:
        return {"highwater.bootstrap.servers": self.bootstrap, **key_values("--option", self.option)}


@dataclass(frozen=True, slots=True)
class Verified:
    """The comparison of one partition. `first` is the first offset that is archived, `end` the one after the last."""

    topic: str
    partition: int
    first: int = 0
    end: int = 0
    archived: int = 0  # records in the archive
    twice: int = 0  # offsets that the archive has more than once
    compared: int = 0  # records of the topic
    unfit: int = 0  # those whose values do not fit the archive's type: it does not have them
    lacking: int = 0
    added: int = 0  # that the topic does not have between or after those that it has
    different: int = 0
    at: int | None = None  # the lowest offset of these
    earlier: int = 0  # offsets of the topic before the first that is archived
    later: int = 0  # from the archive's end on
    compacted: bool = False  # the topic: what it does not have says nothing

    @property
    def problem(self) -> str:
        """Empty where it is as it should be."""
        said = [
            f"{count:,} {what}"
            for count, what in (
                (self.twice, "more than once"),
                (self.lacking, "lacking"),
                (0 if self.compacted else self.added, "not in the topic"),
                (self.different, "different"),
            )
            if count
        ]
        return f"{', '.join(said)}; the first one at offset {self.at}" if said else ""


def verify(options: VerifyOptions) -> list[Verified]:
    """Compares an archive with its topics, by topic and partition. Raises `UserError` and the SDK's errors."""
    return _verified(options, open_archive("verify", options, options.archive))


def _verified(options: VerifyOptions, archive: Archive) -> list[Verified]:
    with spark_errors():
        values = value_type(archive.spark, options, BadValues.NULL)
        archive.check_values(values)
        own = archive_session(archive.spark)
        return [
            one
            for topic in options.topic or archive.topics
            for one in _Comparison(own, options, topic, archive, values).partitions()
        ]


def run(options: VerifyOptions) -> None:
    """Prints what was compared; raises `UserError` where a partition, or the table's log, is not as it should be."""
    archive = open_archive("verify", options, options.archive)
    verified = _verified(options, archive)
    wrong = [one for one in verified if one.problem]
    if options.json:
        for one in verified:
            json_line({**asdict(one), "problem": one.problem or None})
    else:
        shown = ("earlier", "first", "end", "archived", "compared", "later")
        table(
            "",
            ["partition", "earlier", "first", "end", "archived", "compared", "later", "problem"],
            [
                [f"{one.topic}-{one.partition}", *(getattr(one, name) for name in shown), one.problem]
                for one in verified
            ],
        )
    partitions = counted(len(verified), "partition")
    sums = f"{counted(sum(one.archived for one in verified), 'archived record')} of {partitions}"
    if wrong:
        unlike = (f"of {partitions} is not as its topic is", f"of {partitions} are not as their topic is")
        found = f"{counted(len(wrong), *unlike)} ({sums})"
        raise UserError(found if archive.conflict is None else f"{found}; {archive.conflict}")
    archive.check_conflict()  # of other topics
    if not options.json:
        compared = sum(one.compared for one in verified)
        screen.print(f"{sums}: each once, and the same as the {compared:,} that their topics still have of these")
        if unfit := sum(one.unfit for one in verified):
            screen.print(f"{unfit:,} records of the topics do not fit the schema: the archive does not have them")
        if earlier := sum(one.earlier for one in verified):
            screen.print(f"{earlier:,} offsets of the topics are before the first one that is archived of a partition")


class _Comparison:
    """The comparison of a topic."""

    def __init__(
        self, spark: SparkSession, options: VerifyOptions, topic: str, archive: Archive, values: ValueType
    ) -> None:
        self._spark = spark
        self._options = options
        self._values = values
        self._topic = topic
        self._archive = archive
        self._archived = archive.topic(topic)
        bootstrap = tuple(bootstrap_addresses(options.bootstrap))
        settings = client_settings(lower_case(options.source_options()), "Admin")
        self._offsets = TopicOffsets(bootstrap, Subscription(topics=(topic,)), settings)
        with Admin(bootstrap, **settings) as admin:
            policy = admin.describe_topic_config(topic)["cleanup.policy"].value
        self._compacted = "compact" in (policy or "")
        self._twice_at: dict[int, int] = {}

    def partitions(self) -> list[Verified]:
        with self._offsets:
            verified = self._alone()
            wanted = set(verified)
            for _ in range(LOOKS):
                before = {number: verified[number] for number in wanted}
                verified |= self._against_topic(before)
                wanted = {number for number in wanted if verified[number].problem}
                if not wanted or all(verified[number] == before[number] for number in wanted):
                    break
        return [verified[number] for number in sorted(verified)]

    def _alone(self) -> dict[int, Verified]:
        """Compares the archive with itself: the ranges that it has, and the offsets that it has more than once."""
        from pyspark.sql import functions as f

        firsts, ends = self._archived.firsts, self._archived.ends
        rows = self._archived.rows({number: (first, ends[number]) for number, first in firsts.items()})
        verified = {}
        if rows is not None:
            counted = rows.groupBy("partition", "offset").count().groupBy("partition")
            again = f.col("count") > 1
            which = f.min(f.when(again, f.col("offset")))
            sums = counted.agg(f.sum("count").alias("n"), f.count_if(again).alias("twice"), which.alias("at"))
            for row in sums.collect():
                number = row.partition
                if row.twice:
                    self._twice_at[number] = row["at"]
                verified[number] = Verified(
                    self._topic,
                    number,
                    firsts[number],
                    ends[number],
                    row.n,
                    row.twice,
                    at=row["at"],
                    compacted=self._compacted,
                )
        said = self._archive.offsets.get(self._topic, {})
        for number in {*said, *(number for _, number in self._offsets.partitions())}:
            # Of a partition without rows it is not known where the archive begins.
            nothing = Verified(self._topic, number, said.get(number, 0), compacted=self._compacted)
            one = verified.get(number, nothing)
            verified[number] = replace(one, end=max(one.end, said.get(number, 0)))
        check_topics(self._archive.topic_ids, self._offsets.topic_ids, self._options.archive)
        return verified

    def _against_topic(self, verified: Mapping[int, Verified]) -> dict[int, Verified]:
        there = {one.partition: one for one in self._offsets.partitions()}
        firsts = self._offsets.earliest(there.values())
        ends = self._offsets.latest(there.values())
        ours: dict[int, tuple[int, int]] = {}
        theirs: dict[int, tuple[int, int]] = {}
        for number, one in verified.items():
            first, end = (firsts[there[number]], ends[there[number]]) if number in there else (0, 0)
            if one.end > max(one.first, first):
                ours[number] = (max(one.first, first), one.end)
            if min(one.end, end) > max(one.first, first):
                theirs[number] = (max(one.first, first), min(one.end, end))
        archived, topic = self._archived_rows(ours), self._topic_rows(theirs)
        (sums, _), (expected, unfit) = _sums(archived), _sums(topic)
        differing = {number for number in verified if sums.get(number) != expected.get(number)}
        found = self._differing(archived, topic, differing) if differing else {}
        return {
            number: replace(
                one,
                compared=expected.get(number, (0, 0))[0],
                unfit=unfit.get(number, 0),
                earlier=max(one.first - firsts[there[number]], 0) if number in there else 0,
                later=max(ends[there[number]] - max(one.end, firsts[there[number]]), 0) if number in there else 0,
                **differences(found.get(number, {}), self._twice_at.get(number), compacted=self._compacted),
            )
            for number, one in verified.items()
        }

    def _archived_rows(self, ranges: Ranges) -> DataFrame | None:
        rows = self._archived.rows(ranges) if ranges else None
        return None if rows is None else self._checked(rows)

    def _topic_rows(self, ranges: Ranges) -> DataFrame | None:
        if not ranges:
            return None
        starts = {TopicPartition(self._topic, number): first for number, (first, _) in ranges.items()}
        ends = {TopicPartition(self._topic, number): end for number, (_, end) in ranges.items()}
        return self._checked(
            self._spark.read.format("highwater")
            .options(**self._options.source_options(), **self._values.source_options)
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")  # what retention takes meanwhile is not asked for at the next look
            .option("assign", json.dumps({self._topic: sorted(ranges)}))
            .option("startingOffsets", json.dumps(offsets_json(starts)))
            .option("endingOffsets", json.dumps(offsets_json(ends)))
            .load()
        )

    def _checked(self, rows: DataFrame) -> DataFrame:
        value = "value" if self._values == BYTES else _JSON
        fits = "valueError is null" if "valueError" in rows.columns else "true"
        return rows.selectExpr("partition", "offset", f"{_CHECKSUM.format(value=value)} as checksum", f"{fits} as fits")

    def _differing(
        self, archived: DataFrame | None, topic: DataFrame | None, partitions: Iterable[int]
    ) -> dict[int, dict[str, tuple[int, int]]]:
        """Record by record, by partition and kind: how many, and the first offset. The archive may have an offset more
        than once."""
        from pyspark.sql import functions as f

        nothing = self._spark.createDataFrame([], _CHECKED)
        wanted = f.col("partition").isin(*partitions)
        ours = (nothing if archived is None else archived).where(wanted).groupBy("partition", "offset")
        left = ours.agg(f.min("checksum").alias("ours"), f.max("checksum").alias("other"))
        there = (nothing if topic is None else topic.where("fits").drop("fits")).where(wanted)
        right = there.withColumnRenamed("checksum", "theirs")
        joined = left.join(right, ["partition", "offset"], "full_outer")
        kind = (
            f.when(f.col("ours").isNull(), "lacking")
            .when(f.col("theirs").isNull(), "added")
            .when((f.col("ours") != f.col("theirs")) | (f.col("other") != f.col("theirs")), "different")
        )
        rows = (
            joined.withColumn("kind", kind)
            .where("kind is not null")
            .groupBy("partition", "kind")
            .agg(f.count("offset").alias("n"), f.min("offset").alias("at"))
            .collect()
        )
        found: dict[int, dict[str, tuple[int, int]]] = {}
        for row in rows:
            found.setdefault(row.partition, {})[row.kind] = row.n, row["at"]
        return found


def differences(found: Mapping[str, tuple[int, int]], twice_at: int | None, *, compacted: bool) -> dict[str, Any]:
    """Fields of `Verified`. `found`: how many records of each kind differ, and the first offset of these. Pure."""
    said = [at for kind, (_, at) in found.items() if not (compacted and kind == "added")]
    if twice_at is not None:
        said.append(twice_at)
    counts = {kind: found[kind][0] if kind in found else 0 for kind in ("lacking", "added", "different")}
    return {**counts, "at": min(said, default=None)}


def _sums(rows: DataFrame | None) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """The number of records of each partition and a checksum of them all; and the number of records that do not fit."""
    if rows is None:
        return {}, {}
    from pyspark.sql import functions as f

    fits = f.col("fits")
    sums = [f.count_if(fits).alias("n"), f.bit_xor(f.when(fits, f.col("checksum"))).alias("all")]
    found = rows.groupBy("partition").agg(*sums, f.count_if(~fits).alias("unfit")).collect()
    return {row.partition: (row.n, row.all) for row in found if row.n}, {row.partition: row.unfit for row in found}


command = pipeline_command(
    VerifyOptions, run, "Compare an archive with its topics, record by record. Exit status 1 where they differ."
)


def main(argv: Sequence[str]) -> int:
    """Runs as `spark-submit` does; returns the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
