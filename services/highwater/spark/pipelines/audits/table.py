"""`audit --to-table`: what an audit found, and its sums, in a Delta table: a transaction for each run.

Rows of three kinds (`what`): one `run`, one for each `partition`, one for each `finding`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.pipelines.archives.found import is_table
from highwater.spark.pipelines.audits.findings import Audited, Finding, Sums
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN, PARTITION, FINDING = "run", "partition", "finding"
SCHEMA = (
    "run string, time timestamp, what string, topic string, partition int, "
    # Sums, of a run and of a partition.
    "partitions bigint, replicas bigint, segments bigint, batches bigint, bytes bigint, unbounded bigint, "
    "findings bigint, "
    # Of a finding.
    "broker string, kind string, first bigint, last bigint, file string, problem string"
)
_COLUMNS = tuple(one.split()[0] for one in SCHEMA.split(", "))


def rows_of(audited: Audited, run: str, time: datetime) -> Iterator[tuple[Any, ...]]:
    """Rows of the table, in the columns of `SCHEMA`. Pure."""

    def row(what: str, **columns: Any) -> tuple[Any, ...]:
        values = {"run": run, "time": time, "what": what, **columns}
        return tuple(values.get(name) for name in _COLUMNS)

    count = Counter(TopicPartition(one.topic, one.partition) for one in audited.findings)
    total = Sums(audited.replicas, audited.segments, audited.batches, audited.size_bytes, audited.unbounded)
    yield row(RUN, partitions=audited.partitions, findings=len(audited.findings), **_sums(total))
    # A partition of which a log is gone may have no replica to count.
    for partition in sorted({*audited.by_partition, *(one for one in count if one.topic)}):
        sums = audited.by_partition.get(partition, Sums())
        yield row(
            PARTITION, topic=partition.topic, partition=partition.partition, findings=count[partition], **_sums(sums)
        )
    for one in audited.findings:
        yield row(FINDING, **_finding(one))


def _sums(sums: Sums) -> dict[str, int]:
    return {
        "replicas": sums.replicas,
        "segments": sums.segments,
        "batches": sums.batches,
        "bytes": sums.size_bytes,
        "unbounded": sums.unbounded,
    }


def _finding(one: Finding) -> dict[str, Any]:
    """The columns of a finding, without those that it does not have."""
    said: dict[str, Any] = {"kind": one.kind.value, "problem": one.problem}
    if one.topic:
        said |= {"topic": one.topic, "partition": one.partition}
    if one.first <= one.last:
        said |= {"first": one.first, "last": one.last}
    return {**said, "broker": one.broker or None, "file": one.file or None}


class AuditTable:
    """A Delta table that audits append to."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        """The session has Delta Lake. Raises `UserError` where the directory has something else in it."""
        from pyspark.sql.types import StructType

        self._spark = spark
        self._schema = StructType.fromDDL(SCHEMA)
        files = HadoopFiles(spark, directory)
        self._path = files.qualified(directory)
        if is_table(files, self._path):
            there = dict(spark.read.format("delta").load(self._path).dtypes)
            if any(there.get(one.name) != one.dataType.simpleString() for one in self._schema.fields):
                raise UserError(f"{directory} is a table of something else: name another directory with --to-table")
        elif others := [name for name in files.names(self._path) if not name.startswith(("_", "."))]:
            raise UserError(f"{directory} has {min(others)} in it and is no table: name another directory")

    def append(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Appends rows in one transaction, which makes the table where there is none."""
        frame = self._spark.createDataFrame(rows, self._schema).coalesce(1)
        frame.write.format("delta").mode("append").save(self._path)
