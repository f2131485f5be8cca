"""Sources of the records of a rollup: topics, or an archive of them that is a Delta table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlparse

from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.errors import UserError
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.client_settings import PREFIXES, client_settings
from highwater.spark.options.data_source_options import Subscription, lower_case, parse_read_options
from highwater.spark.options.positions import EARLIEST_OFFSET
from highwater.spark.pipelines.archives.history import History, quoted
from highwater.spark.pipelines.archives.reading import Archive
from highwater.spark.pipelines.command.pipeline_options import COMMIT_OFFSETS_TO_GROUP, key_values
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.files.offset_log import OffsetLog, offsets_text
from highwater.spark.pipelines.rollups.transactions_read import TransactionsRead
from highwater.spark.pipelines.typed_values.decoded_values import decoded
from highwater.spark.pipelines.typed_values.value_schema import BadValues, ValueSchemaOptions, value_type
from highwater.spark.values.value_options import parse_value_options

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession

SAMPLED_RECORDS = 1000
_SAMPLED_BYTES = 64 * 1024  # of an archived value at most: the driver holds them
# Of the source's options, those that say what is read, and not how much at a time.
_WHERE = ("subscribe", *PREFIXES)
# Of Delta's source, those that say how much at a time, and what `--value-schema` needs to know of a registry.
_ARCHIVE_OPTIONS = ("maxFilesPerTrigger", "maxBytesPerTrigger")
_VALUE_OPTIONS = ("valueSchemaId",)
# As of topics, a micro-batch has all that is there: the watermark, which moves between two, cuts off nothing of an
# archive whose files are in no order. (Delta's own limit is 1000 files.)
_NO_LIMIT = {"maxFilesPerTrigger": str((1 << 31) - 1)}
# What Delta says where its log begins later than it was to be read from.
_LOG_IS_SHORTER = (
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_STREAMING_TRAILING_COMMIT",
    "Could not find any delta files",
)
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


class RecordSource(Protocol):
    raw: str
    """The column with the bytes of values that may be bad."""
    typed_by: str
    """The option, or the archive, that gives values their type."""

    def stream(self, bad: BadValues, *, second: bool = False) -> DataFrame:
        """The columns of a read; of a second query those of the headers, too. Raises `UserError`."""

    def sample(self) -> DataFrame:
        """Values to take a schema from."""

    def noting(self, checkpoint: str) -> Callable[[], None]:
        """Called before a query with this checkpoint begins; returns a function that writes down how far it reads,
        whenever a micro-batch is planned. Raises `UserError`, as that does, where what it has read was replaced."""

    def errors_explained(self) -> AbstractContextManager[None]:
        """Turns what ends a query into a sentence that says what to do."""


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Tells whether there is a micro-batch in the checkpoint."""
    return any(map(str.isdecimal, HadoopFiles(spark, checkpoint).names(f"{checkpoint}/offsets")))


def _note(checkpoint: str) -> str:
    """The path of the file in which a rollup of an archive says which records it counts."""
    return f"{checkpoint}/rollup/archive"


# Topics


class TopicRecords:
    typed_by = "--value-schema"

    def __init__(self, spark: SparkSession, options: ValueSchemaOptions) -> None:
        """Raises `UserError`."""
        files, noted = HadoopFiles(spark, options.checkpoint), _note(options.checkpoint)
        if files.exists(noted):
            if has_begun(spark, options.checkpoint):
                raise UserError(
                    f"checkpoint {options.checkpoint} is of a rollup of an archive: say --archive, or take another one"
                )
            files.delete(noted)  # that one ended before its first micro-batch
        self._spark = spark
        self._options = options if options.dead_letter is None else _begun_where(spark, options)
        self.raw = "rawValue" if options.value_schema is not None else "value"

    def stream(self, bad: BadValues, *, second: bool = False) -> DataFrame:
        values = value_type(self._spark, self._options, bad).source_options
        source = {**self._options.source_options(), **values}
        if second:
            # It reads the same, later: a group that both told how far they are would go back.
            source = {name: value for name, value in source.items() if name.lower() != COMMIT_OFFSETS_TO_GROUP.lower()}
            source["includeHeaders"] = "true"
        return self._spark.readStream.format("highwater").options(**source).load()

    def sample(self) -> DataFrame:
        """Values of the first records of each partition, `SAMPLED_RECORDS` together."""
        options = self._options
        bootstrap = tuple(bootstrap_addresses(options.bootstrap))
        with TopicOffsets(bootstrap, Subscription(tuple(options.topic), options.pattern), {}) as topics:
            partitions = topics.partitions()
            begins, ends = topics.earliest(partitions), topics.latest(partitions)
        share = -(-SAMPLED_RECORDS // max(len(partitions), 1))
        until = {partition: min(begins[partition] + share, end) for partition, end in ends.items()}
        source = {name: value for name, value in options.source_options().items() if name.lower().startswith(_WHERE)}
        return (
            self._spark.read.format("highwater")
            .options(**source)
            .option("startingOffsets", offsets_text(begins))
            .option("endingOffsets", offsets_text(until))
            .option("failOnDataLoss", "false")  # retention goes on
            .option("columns", "value")
            .load()
        )

    def noting(self, checkpoint: str) -> Callable[[], None]:
        """Writes nothing down: the source's offsets say of which topics they are."""
        return lambda: None

    @contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Leaves errors as they are: the source has said what to do."""
        yield


def _begun_where(spark: SparkSession, options: ValueSchemaOptions) -> ValueSchemaOptions:
    """Options with the offsets at which a rollup with dead letters begins. These are looked up once and written down:
    both of its queries have to begin there, and the second one may do so much later."""
    offset_log = OffsetLog(spark, f"{options.checkpoint}/dead-letter/begun")
    source = options.source_options()
    read = parse_read_options(source, streaming=True)
    with TopicOffsets(read.bootstrap, read.subscription, client_settings(lower_case(source), "Admin")) as topics:
        partitions = topics.partitions(missing_ok=not read.fail_on_data_loss)
        if not has_begun(spark, options.checkpoint):
            offset_log.purge_before(1)
            offset_log.write(0, topics.resolved(read.starting, topics.latest(partitions), read.no_match))
    if (noted := offset_log.read(0)) is None:  # there were no dead letters when it began
        return options
    # Partitions that have come since are read from their first offset on, by both.
    starts = {partition: noted.get(partition, EARLIEST_OFFSET) for partition in partitions}
    others = [one for one in options.option if not one.lower().startswith("starting")]
    return replace(options, starting_offsets=offsets_text(starts), option=others)


# An archive


def check_archive_options(options: ValueSchemaOptions) -> None:
    """Refuses options for a rollup of an archive that only topics have. Raises `UserError`."""
    if options.starting_offsets != "earliest":
        raise UserError(
            "--starting-offsets is of topics, and an archive is read from its beginning: leave it out, and choose "
            "records with --sql '… WHERE _timestamp >= …'"
        )
    if options.max_offsets_per_trigger is not None:
        raise UserError(
            "--max-offsets-per-trigger is of topics: for an archive say --option maxBytesPerTrigger=1g, or --option "
            "maxFilesPerTrigger=100"
        )
    if options.commit_offsets_to_group is not None:
        raise UserError(
            "--commit-offsets-to-group is of topics, of whose offsets an archive says nothing: leave it out"
        )
    known = lower_case(dict.fromkeys((*_ARCHIVE_OPTIONS, *_VALUE_OPTIONS), ""))
    for name in key_values("--option", options.option):
        if name.lower() not in known:
            raise UserError(
                f"--option {name} is not for an archive: it can be {', '.join(_ARCHIVE_OPTIONS)}, and with "
                f"--value-schema {', '.join(_VALUE_OPTIONS)}"
            )
    if options.pattern is not None:
        try:
            re.compile(options.pattern)
        except re.error as error:
            raise UserError(f"--pattern is not a regular expression: {options.pattern!r} ({error})") from None


class ArchivedRecords:
    """The records of a table as Delta's source streams them: what the table held when the query began, then what each
    transaction has added. Its offsets say how far that is, by version and file. Of a transaction that merges files it
    takes nothing (`dataChange` is false), and one that takes rows away ends the query."""

    def __init__(self, archive: Archive, options: ValueSchemaOptions) -> None:
        """Raises `UserError`."""
        if archive.table is None:
            raise UserError(
                f"{archive.said} has plain Parquet files, and a rollup reads an archive that is a Delta table: archive "
                "the topics into one (archive --format delta --to …), or leave --archive out to read the topics"
            )
        archive.check_conflict()
        self._archive = archive
        self._table = archive.table
        self._options = options
        self._spark = archive.spark
        typed = dict(archive.table.dtypes)["value"] != "binary"
        if typed and options.value_schema is not None:
            raise UserError(f"{archive.said} has values with a type: leave --value-schema out")
        if typed and options.dead_letter is not None:
            raise UserError(
                f"{archive.said} was written with --value-schema, and has not the bytes of its values for "
                "--dead-letter: say --bad-records skip, or correct --time-column"
            )
        self.typed_by = "--value-schema" if not typed else f"the type of the values of {archive.said}"
        self.raw = "rawValue" if options.value_schema is not None else "value"
        for name in options.topic:
            archive.check_topic(name)
        if options.pattern is not None and not any(re.fullmatch(options.pattern, name) for name in archive.topics):
            raise UserError(
                f"no topic of {archive.said} matches --pattern {options.pattern}; it has {', '.join(archive.topics)}"
            )
        self._go_on()

    def stream(self, bad: BadValues, *, second: bool = False) -> DataFrame:
        given = lower_case(key_values("--option", self._options.option))
        limits = {**_NO_LIMIT, **{name: given[name.lower()] for name in _ARCHIVE_OPTIONS if name.lower() in given}}
        rows = self._spark.readStream.format("delta").options(**limits).load(self._archive.directory)
        rows = rows.where(self._wanted()).select(*_COLUMNS, *(["headers"] if second else []))
        if self._options.value_schema is None:
            return rows
        # Where a bad value is to end the query, the rollup does that itself: it knows the record's place.
        bad = BadValues.NULL if bad is BadValues.FAIL else bad
        values = value_type(self._spark, self._options, bad).source_options
        parsed = parse_value_options(lower_case({**given, **values}))
        assert parsed is not None
        return decoded(rows, parsed)

    def sample(self) -> DataFrame:
        """Values of `SAMPLED_RECORDS` records, whichever Spark finds first, but for large ones."""
        rows = self._table.where(self._wanted()).where(f"octet_length(value) <= {_SAMPLED_BYTES}").select("value")
        return self._spark.createDataFrame(rows.limit(SAMPLED_RECORDS).collect(), "value binary")

    def noting(self, checkpoint: str) -> Callable[[], None]:
        spark, archive = self._spark, self._archive
        latest = History(spark, archive.directory, archive.said).latest_version
        files, table_files = HadoopFiles(spark, checkpoint), HadoopFiles(spark, archive.directory)
        read = TransactionsRead(files, checkpoint, table_files, archive.directory, archive.said, latest)
        read.check()
        return read.note

    @contextmanager
    def errors_explained(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            told = f"{error}\n{error.__cause__ or ''}"
            said = sentence_of(told, self._archive.said, self._archive.directory, self._options.checkpoint)
            if said is None:
                raise
            raise UserError(said) from error

    def _wanted(self) -> Column:
        from pyspark.sql import functions as f

        if self._options.pattern is not None:
            return f.col("topic").rlike(f"^(?:{self._options.pattern})$")
        return f.col("topic").isin(*self._options.topic)

    def _go_on(self) -> None:
        """Notes which records are counted. Raises `UserError` where the checkpoint is of others: Spark would go on
        there, and not count what it has passed over."""
        checkpoint, archive = self._options.checkpoint, self._archive
        (detail,) = self._spark.sql(f"DESCRIBE DETAIL {quoted(archive.directory)}").select("id").collect()
        counted: Mapping[str, Any] = {
            "table": detail.id,
            "topics": sorted(set(self._options.topic)),
            "pattern": self._options.pattern,
        }
        files, path = HadoopFiles(self._spark, checkpoint), _note(checkpoint)
        noted = json.loads(files.read(path)) if files.exists(path) else None
        if noted == counted:
            return
        if has_begun(self._spark, checkpoint):
            if noted is None:
                raise UserError(
                    f"checkpoint {checkpoint} is of a rollup of topics: leave --archive out, or take another one"
                )
            if noted["table"] != counted["table"]:
                raise UserError(
                    f"checkpoint {checkpoint} is of a rollup of another archive than {archive.said} is now: take "
                    "another checkpoint"
                )
            before = " ".join(f"--topic {one}" for one in noted["topics"]) or f"--pattern {noted['pattern']}"
            raise UserError(f"checkpoint {checkpoint} is of a rollup of {before}: say that, or take another checkpoint")
        files.delete(path)
        files.write(path, json.dumps(counted).encode())


def sentence_of(told: str, archive: str, directory: str, checkpoint: str) -> str | None:
    """The sentence for what Spark and Delta say of a table that is not what it was; None for anything else, such as a
    file of the checkpoint or of the target that is gone. `directory` is that of the archive, as a URI. Pure."""
    anew = f"remove checkpoint {checkpoint} and what was written with it, and start again"
    if found := re.search(r"DELTA_SOURCE_(?:IGNORE_DELETE|TABLE_IGNORE_CHANGES).*? at version (\d+)", told, re.DOTALL):
        return (
            f"version {found[1]} of {archive} takes records away, or changes them (DELETE, RESTORE or the like), and "
            f"what was counted stays counted: {anew}"
        )
    if "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE" in told or "DELTA_SCHEMA_NOT_SET" in told:
        return f"{archive} was removed, or made anew, since checkpoint {checkpoint} was begun: {anew}"
    path = urlparse(directory).path
    within = "|".join(map(re.escape, (path, quote(path))))
    if re.search(rf"\b(?:FILE_NOT_EXIST|FileNotFoundException)\b.*(?:{within})/", told):
        return (
            f"a file of {archive} that was still to be read is gone, as after VACUUM of files that had been merged: "
            f"{anew}, and VACUUM what is older than the longest time that a rollup may stand still"
        )
    if any(one in told for one in _LOG_IS_SHORTER):
        return (
            f"the log of {archive} no longer says what came since checkpoint {checkpoint} was written (Delta keeps 30 "
            f"days of it): {anew}"
        )
    return None
