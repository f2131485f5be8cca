"""`audit`: whether the replicas of partitions hold the same, read from the segment files of every log directory in
parallel, beside the brokers that write them.

Below its high watermark, and above its log start, each replica has to hold every batch, whole, and the same as the
others. What compaction has gone over (by the cleaner's checkpoint of any replica, or where the cluster says that the
topic is compacted) is judged by its records: those of one offset have to be the same in all replicas that still have
them, and a key's last one has to be in every replica, unless it is a tombstone and the replica has nothing of the key.

What is found is looked for again, in files read anew, until it is gone or the same as before: retention, compaction and
truncation may have passed, and may pass again.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.topic_partition import TopicPartition
from highwater.console.counted import counted
from highwater.console.output import json_line, screen, table
from highwater.errors import UserError
from highwater.log_storage.inspect.segment_audit import Damage
from highwater.spark.pipelines.audits import segment_scan
from highwater.spark.pipelines.audits.findings import TOLD, Audited, Finding, Sums, Version, blame, merged
from highwater.spark.pipelines.audits.replicas import AuditTargets, Replica, find, only, read_cluster
from highwater.spark.pipelines.audits.segment_scan import AuditTask
from highwater.spark.pipelines.audits.table import AuditTable, rows_of
from highwater.spark.pipelines.command.pipeline_command import pipeline_command, submitted
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions
from highwater.spark.pipelines.session.delta_session import DeltaSettings
from highwater.spark.pipelines.session.spark_errors import spark_errors
from highwater.spark.pipelines.session.spark_session import nothing_needed, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 256 * 1024 * 1024

LOOKS = 5  # at what was found, at most


@dataclass(frozen=True, kw_only=True)
class AuditOptions(PipelineOptions):
    directories: Annotated[
        list[str], typer.Argument(help="every directory of log.dirs of every broker, as Spark's executors see them")
    ]
    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="a cluster that is running on them: then its high watermarks, replicas and topics count, too",
            show_default=False,
        ),
    ] = None
    topic: Annotated[
        list[str], typer.Option(help="a topic to audit, may be repeated; default: all", show_default=False)
    ] = field(default_factory=list)
    pattern: Annotated[
        str | None,
        typer.Option(help="instead of --topic: a regular expression for names of topics", show_default=False),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="print a JSON object for each finding, and one with sums")] = (
        False
    )

    to_table: Annotated[
        str | None,
        typer.Option(
            help="a Delta table that gets the findings, and sums of the run and of each partition, too",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wanted()

    def wanted(self) -> Callable[[str], bool]:
        """Raises `UserError`."""
        if self.topic and self.pattern is not None:
            raise UserError("say which topics to audit with --topic or with --pattern, not with both")
        if self.pattern is None:
            return lambda topic: not self.topic or topic in self.topic
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise UserError(f"--pattern is not a regular expression: {self.pattern!r} ({error})") from None
        return lambda topic: pattern.fullmatch(topic) is not None


def audit(options: AuditOptions) -> Audited:
    """Raises `UserError`, the SDK's errors, `OSError`."""
    targets = _find(options)
    spark = _session(options)
    with spark_errors():
        first = _look(spark, targets)
        if not first.findings:
            return first
        suspects = {TopicPartition(one.topic, one.partition) for one in first.findings}
        before = first.findings
        for _ in range(LOOKS - 1):
            latest = _look(spark, only(_find(options), suspects)).findings
            if not latest or latest == before:
                break
            before = latest
    return replace(first, findings=latest)


def run(options: AuditOptions) -> None:
    """Prints what was found; raises `UserError` where that is anything."""
    began, written = datetime.now(UTC), None
    if options.to_table is not None:
        spark = _session(options)
        with spark_errors():
            written = AuditTable(spark, options.to_table)
    audited = audit(options)
    if options.json:
        for one in audited.findings:
            json_line(one.to_json())
        sums = {name: getattr(audited, name) for name in ("partitions", "replicas", "segments", "batches")}
        json_line({**sums, "bytes": audited.size_bytes, "findings": len(audited.findings)})
    elif audited.findings:
        table(
            "",
            ["partition", "broker", "offsets", "", "problem", "file"],
            [[one.log, one.broker, one.offsets, one.kind.value, one.problem, one.file] for one in audited.findings],
        )
    if written is not None:
        with spark_errors():
            written.append([*rows_of(audited, uuid4().hex, began)])
    read = (
        f"{counted(audited.partitions, 'partition')}, {counted(audited.replicas, 'replica')}, "
        f"{counted(audited.segments, 'segment')}, {counted(audited.batches, 'batch', 'batches')}, "
        f"{counted(audited.size_bytes, 'byte')}"
    )
    if audited.findings:
        count = len(audited.findings)
        least = "at least " if count >= TOLD else ""
        raise UserError(f"{least}{counted(count, 'finding')} in {read}")
    if not options.json:
        screen.print(f"{read}: every replica holds what it should")
        if audited.unbounded:
            screen.print(f"{audited.unbounded:,} of the replicas have no high watermark yet: nothing was asked of them")


def _session(options: AuditOptions) -> SparkSession:
    delta = DeltaSettings()
    spark = session("audit", options, needed=nothing_needed if options.to_table is None else delta)
    if options.to_table is not None:
        delta.check(spark)
    return spark


def _find(options: AuditOptions) -> AuditTargets:
    wanted = options.wanted()
    cluster = read_cluster(bootstrap_addresses(options.bootstrap), wanted) if options.bootstrap is not None else None
    return find(options.directories, wanted, cluster)


def _look(spark: SparkSession, targets: AuditTargets) -> Audited:
    replicas = targets.replicas
    bounds = {
        group: tuple(sorted({bound for one in members for bound in (one.start, one.end)}))
        for group, members in _groups(replicas).items()
    }
    tasks = [
        AuditTask(replicas[number].group, number, task, bounds[replicas[number].group])
        for number, task in targets.tasks()
    ]
    findings = [*_without_reading(targets)]
    scanned = _run(spark, tasks, segment_scan.scan, segment_scan.SCAN_SCHEMA).persist()
    try:
        for row in scanned.where(scanned.what.isin(*segment_scan.KINDS)).limit(TOLD).collect():
            findings.append(
                _finding(replicas[row.replica], Damage(row.what), row.first, row.last, row.file, row.problem)
            )
        read = (
            scanned.where(scanned.what == segment_scan.SEGMENT)
            .groupBy("group")
            .agg({"batches": "sum", "bytes": "sum"})
            .select("group", "sum(batches)", "sum(bytes)")
            .collect()
        )
        findings += _differing_batches(spark, scanned, tasks, replicas)
    finally:
        scanned.unpersist()
    findings += _differing_records(spark, tasks, replicas)
    return Audited(tuple(merged(findings)), _sums(replicas, tasks, {group: tuple(sums) for group, *sums in read}))


def _sums(
    replicas: tuple[Replica, ...], tasks: list[AuditTask], read: Mapping[int, tuple[int, ...]]
) -> dict[TopicPartition, Sums]:
    """`read`: batches and bytes, by group."""
    segments = Counter(task.group for task in tasks)
    sums: dict[TopicPartition, Sums] = {}
    for group, members in _groups(replicas).items():
        before = sums.get(members[0].partition, Sums())  # logs of another topic of that name
        batches, size_bytes = read.get(group, (0, 0))
        sums[members[0].partition] = Sums(
            before.replicas + len(members),
            before.segments + segments[group],
            before.batches + batches,
            before.size_bytes + size_bytes,
            before.unbounded
            + sum(one.end == 0 and any(segment.size_bytes for segment in one.files.segments) for one in members),
        )
    return sums


def _without_reading(targets: AuditTargets) -> Iterator[Finding]:
    for problem in targets.problems:
        yield Finding(Damage.CORRUPT, "", -1, "", 0, -1, "", problem)
    for broker, (topic, partition) in targets.lost:
        yield Finding(Damage.MISSING, topic, partition, broker, 0, -1, "", "the log's directory is gone")
    for one in targets.replicas:
        begins = one.files.segments[0].base_offset if one.files.segments else one.end
        if max(one.start, one.compacted_to) < min(begins, one.end):
            problem = f"the first segment begins at {begins}" if one.files.segments else "there is no segment"
            first = max(one.start, one.compacted_to)
            yield _finding(one, Damage.MISSING, first, min(begins, one.end) - 1, one.files.directory, problem)


def _differing_batches(
    spark: SparkSession, scanned: DataFrame, tasks: list[AuditTask], replicas: tuple[Replica, ...]
) -> Iterator[Finding]:
    """Stretches whose digests differ, then their batches."""
    from pyspark.sql import functions as f

    stretches: dict[int, set[tuple[int, int]]] = {}
    suspect = (
        scanned.where(scanned.what == segment_scan.DIGEST)
        .groupBy("group", "stretch", "part", "replica")
        .agg(f.bit_xor("digest").alias("digest"))
        .groupBy("group", "stretch", "part")
        .agg(f.countDistinct("digest").alias("versions"))
        .where("versions > 1")
        .limit(TOLD)
    )
    for row in suspect.collect():
        stretches.setdefault(row.group, set()).add((row.stretch, row.part))
    again = [
        replace(task, stretches=frozenset(stretches[task.group]))
        for task in tasks
        if task.group in stretches and _overlaps(task, stretches[task.group])
    ]
    if not again:
        return
    found = _run(spark, again, segment_scan.batches, segment_scan.BATCH_SCHEMA)
    differing = (
        found.groupBy("group", "base")
        .agg(
            f.collect_list(f.struct(*Version._fields)).alias("versions"),
            f.countDistinct("last", "epoch", "crc", "size").alias("distinct"),
        )
        .where("distinct > 1")
        .limit(TOLD)
    )
    brokers = {number: one.files.broker for number, one in enumerate(replicas)}
    for row in differing.collect():
        for version, problem in blame([Version(*one) for one in row.versions], brokers):
            told = f"position {version.position}: {problem}"
            one = replicas[version.replica]
            yield _finding(one, Damage.DIFFERS, version.base, version.last, version.file, told)


def _overlaps(task: AuditTask, stretches: Iterable[tuple[int, int]]) -> bool:
    segment = task.segment
    return any(
        segment.base_offset < (number + 1) * segment_scan.STRETCH
        and (segment.until is None or number * segment_scan.STRETCH < segment.until)
        for number, _ in stretches
    )


def _differing_records(spark: SparkSession, tasks: list[AuditTask], replicas: tuple[Replica, ...]) -> Iterator[Finding]:
    """Below what compaction has gone over: records of one offset that differ, and last records of a key that a replica
    lacks."""
    from pyspark.sql import functions as f

    compacted = [task for task in tasks if task.segment.base_offset < task.segment.compacted_to]
    if not compacted:
        return
    records = _run(spark, compacted, segment_scan.records, segment_scan.RECORD_SCHEMA).persist()
    try:
        differing = (
            records.groupBy("group", "offset")
            .agg(
                f.countDistinct("digest").alias("distinct"),
                f.collect_list(f.struct("replica", "file", "digest")).alias("versions"),
            )
            .where("distinct > 1")
            .limit(TOLD)
        )
        brokers = {number: one.files.broker for number, one in enumerate(replicas)}
        for row in differing.collect():
            # As batches of one record each.
            versions = [
                Version(one.replica, one.file, 0, row.offset, row.offset, 0, one.digest, 0) for one in row.versions
            ]
            names = ", ".join(sorted(brokers[one.replica] for one in versions))
            for version, _ in blame(versions, brokers):
                told = f"the record is not the same in the brokers {names}"
                yield _finding(replicas[version.replica], Damage.DIFFERS, row.offset, row.offset, version.file, told)
        for row in _lacking(spark, records, replicas).limit(TOLD).collect():
            one = replicas[row.replica]
            told = "the last record of its key: another replica has it"
            yield _finding(one, Damage.MISSING, row.offset, row.offset, one.files.directory, told)
    finally:
        records.unpersist()


def _lacking(spark: SparkSession, records: DataFrame, replicas: tuple[Replica, ...]) -> DataFrame:
    """Replica and offset of what is missing: the last record of a key, where the replica has an older one or, of a
    record that is no tombstone, none at all."""
    from pyspark.sql import functions as f

    own = records.groupBy("group", "key", "replica").agg(f.max("offset").alias("own"))
    keys = records.groupBy("group", "key").agg(f.max(f.struct("offset", "tombstone")).alias("last"))
    members = spark.createDataFrame(
        [(one.group, number, one.start, one.end) for number, one in enumerate(replicas) if one.compacted_to],
        "group int, replica int, start bigint, end bigint",
    )
    return (
        keys.join(f.broadcast(members), "group")
        .where("last.offset >= start and last.offset < end")
        .join(own, ["group", "key", "replica"], "left")
        .where("own < last.offset or (own is null and not last.tombstone)")
        .selectExpr("replica", "last.offset as offset")
    )


def _run(spark: SparkSession, tasks: list[AuditTask], work: segment_scan.Task, schema: str) -> DataFrame:
    context = spark.sparkContext
    rows = [(bytearray(pickle.dumps(some)),) for some in shared_out(tasks, context.defaultParallelism)]
    frame = spark.createDataFrame(context.parallelize(rows, max(len(rows), 1)), segment_scan.TASKS_SCHEMA)
    return frame.mapInArrow(work, schema)


def shared_out(tasks: Iterable[AuditTask], least: int) -> list[list[AuditTask]]:
    """Shares segments out to tasks of Spark: each reads about `_TASK_BYTES`, one segment at least; less where there
    would be fewer than `least`."""
    ordered = sorted(tasks, key=lambda task: (-task.segment.size_bytes, task.segment.path))
    total = sum(task.segment.size_bytes for task in ordered)
    count = min(max(-(-total // _TASK_BYTES), least), len(ordered))
    shares: list[list[AuditTask]] = [[] for _ in range(count)]
    for number, task in enumerate(ordered):
        shares[number % count].append(task)  # by falling size: about the same for each
    return shares


def _finding(one: Replica, kind: Damage, first: int, last: int, file: str, problem: str) -> Finding:
    return Finding(kind, one.files.topic, one.files.partition, one.files.broker, first, last, file, problem)


def _groups(replicas: Iterable[Replica]) -> Mapping[int, list[Replica]]:
    found: dict[int, list[Replica]] = {}
    for one in replicas:
        found.setdefault(one.group, []).append(one)
    return found


command: Any = pipeline_command(
    AuditOptions,
    run,
    "Compare the replicas in log directories, batch by batch. Exit status 1 where one is damaged or lacks something.",
)


def main(argv: list[str]) -> int:
    """Runs as `spark-submit` does; returns the exit status."""
    return submitted(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
