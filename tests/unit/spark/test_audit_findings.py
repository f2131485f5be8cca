"""Who is to blame, and what the tasks of an audit hand over."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from highwater.client import TopicPartition
from highwater.errors import UserError
from highwater.log_storage.files import boot_record, checkpoints, partition_metadata
from highwater.log_storage.files.boot_record import Boot, BootRecord
from highwater.log_storage.inspect.segment_audit import Damage, SegmentTask
from highwater.records import Record, encode_rows
from highwater.spark.pipelines.audit import shared_out
from highwater.spark.pipelines.audits.findings import Audited, Finding, Sums, Version, blame, merged
from highwater.spark.pipelines.audits.replicas import ClusterPartition, find
from highwater.spark.pipelines.audits.segment_scan import DIGEST, SEGMENT, AuditTask, batches, records, scan
from highwater.spark.pipelines.audits.table import SCHEMA, rows_of

BROKERS = {0: "1", 1: "2", 2: "3"}
TOPIC_ID = b"t" * 16


def version(replica: int, crc: int) -> Version:
    return Version(replica, f"f{replica}", 10, 100, 109, 3, crc, 500)


def test_most_replicas_are_right() -> None:
    ((wrong, problem),) = blame([version(0, 7), version(1, 8), version(2, 7)], BROKERS)
    assert wrong.replica == 1
    assert problem == (
        "epoch 3, 500 bytes, crc 00000008, to offset 109; brokers 1, 3: epoch 3, 500 bytes, crc 00000007, to offset 109"
    )
    for undecided in ([version(0, 7), version(1, 8)], [version(0, 7), version(1, 8), version(2, 9)]):
        found = blame(undecided, BROKERS)
        assert [one.replica for one, _ in found] == [one.replica for one in undecided]
        assert all(problem.startswith("no two agree, broker 1: ") for _, problem in found)


def test_what_goes_on_is_one_finding() -> None:
    one = Finding(Damage.DIFFERS, "t", 0, "2", 10, 19, "f", "first")
    found = merged([replace(one, first=30, last=39), replace(one, first=20, last=29, problem="p"), one])
    assert found == [replace(one, last=39)]
    apart = [one, replace(one, first=21, last=29), replace(one, broker="3"), replace(one, kind=Damage.MISSING)]
    assert len(merged(apart)) == 4


def batch(first: int, values: list[bytes | None], epoch: int = 1) -> bytes:
    content = [Record(0, 5, b"k%d" % (first % 2), value, ()) for value in values]
    return encode_rows(content, base_offset=first, leader_epoch=epoch)


def task(path: Path, *, replica: int = 0, compacted_to: int = 0) -> AuditTask:
    return AuditTask(0, replica, SegmentTask(str(path), 0, None, 0, 6, compacted_to), (0, 6))


def ran(work: Any, *tasks: AuditTask) -> list[dict[str, Any]]:
    rows = pa.RecordBatch.from_pydict({"tasks": [pickle.dumps(list(tasks))]})
    return [row for found in work(iter([rows])) for row in found.to_pylist()]


def test_digests_of_replicas_are_equal_where_their_batches_are(tmp_path: Path) -> None:
    content = batch(0, [b"a", b"b"]) + batch(2, [b"c", b"d"]) + batch(4, [b"e", None])
    for name, written in (
        ("1", content),
        ("2", content + b"half a batch"),
        ("3", content[: len(batch(0, [b"a", b"b"]))] + batch(2, [b"c", b"D"]) + batch(4, [b"e", None])),
    ):
        (tmp_path / name).write_bytes(written)
    found = ran(scan, *(task(tmp_path / name, replica=number) for number, name in enumerate("123")))
    digests = [row["digest"] for row in found if row["what"] == DIGEST]
    assert digests[0] == digests[1] != digests[2]
    assert [row["batches"] for row in found if row["what"] == SEGMENT] == [3, 3, 3]
    assert len(found) == 6
    wanted = replace(task(tmp_path / "3"), stretches=frozenset({(0, 1)}))
    assert [(row["base"], row["last"]) for row in ran(batches, wanted)] == [(0, 1), (2, 3), (4, 5)]
    assert ran(batches, replace(wanted, stretches=frozenset({(7, 1)}))) == []


def test_what_was_compacted_is_read_by_record(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(batch(0, [b"a", b"b"]) + batch(2, [b"c", b"d"]) + batch(4, [b"e", None]))
    one = task(tmp_path / "1", compacted_to=4)
    assert [row["what"] for row in ran(scan, one)] == [SEGMENT, DIGEST]
    assert [row["offset"] for row in ran(records, one)] == [0, 1, 2, 3]
    everything = ran(records, task(tmp_path / "1", compacted_to=6))
    assert [row["tombstone"] for row in everything] == [False] * 5 + [True]
    assert len({row["key"] for row in everything}) == 1
    assert len({row["digest"] for row in everything}) == 6
    assert ran(records, task(tmp_path / "gone", compacted_to=4)) == []


def test_an_executor_that_does_not_see_the_files(tmp_path: Path) -> None:
    (found, _) = ran(scan, task(tmp_path / "gone"))[::-1]
    assert (found["what"], found["first"], found["last"]) == ("missing", 0, 5)
    with pytest.raises(UserError, match=f"an executor does not see {tmp_path}/no: mount it there, too"):
        ran(scan, task(tmp_path / "no" / "t-0" / "0.log"))


def test_tasks_of_spark_are_of_a_size() -> None:
    def sized(size: int) -> AuditTask:
        return AuditTask(0, 0, SegmentTask(f"{size}", 0, None, 0, 0, 0, size), ())

    tasks = [sized(size) for size in range(1, 11)]
    shares = shared_out(tasks, 3)
    assert len(shares) == 3
    assert sorted(one.segment.size_bytes for share in shares for one in share) == list(range(1, 11))
    assert len(shared_out(tasks[:2], 8)) == 2
    assert len(shared_out([sized(1 << 30)] * 4, 2)) == 4
    assert shared_out([], 2) == []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of broker 2 with one log whose high watermark is 4."""
    log = tmp_path / "data" / "t-0"
    log.mkdir(parents=True)
    (log / "00000000000000000000.log").write_bytes(batch(0, [b"a", b"b"]) + batch(2, [b"c", b"d"]))
    partition_metadata.write(log, TOPIC_ID)
    boot_record.write_record(log.parent, BootRecord(2, Boot("b", "m"), flush_every_message=False))
    checkpoints.write_offsets(log.parent / checkpoints.HIGH_WATERMARKS, {("t", 0): 4, ("gone", 1): 9})
    return log.parent


def test_how_far_a_replica_has_to_go(directory: Path) -> None:
    (replica,) = find([str(directory)], lambda topic: True, None).replicas
    assert (replica.files.broker, replica.start, replica.end, replica.compacted_to) == ("2", 0, 4, 0)
    (one,) = replica.tasks()
    assert (one.base_offset, one.until, one.end) == (0, None, 4)
    checkpoints.write_offsets(directory / checkpoints.LOG_STARTS, {("t", 0): 2})
    checkpoints.write_offsets(directory / checkpoints.CLEANER_OFFSETS, {("t", 0): 3})
    (replica,) = find([str(directory)], lambda topic: True, None).replicas
    assert (replica.start, replica.end, replica.compacted_to) == (2, 4, 3)
    assert find([str(directory)], lambda topic: False, None).replicas == ()
    (directory / checkpoints.LOG_STARTS).write_text("7\n")
    assert find([str(directory)], lambda topic: True, None).problems == (
        f"2: {directory / checkpoints.LOG_STARTS}: the version and count lines are missing",
    )
    with pytest.raises(UserError, match="is not a directory"):
        find([str(directory / "no")], lambda topic: True, None)


def test_what_the_cluster_says_counts(directory: Path) -> None:
    topic_id = partition_metadata.format_topic_id(TOPIC_ID)
    said = ClusterPartition(topic_id, 6, ("1", "2"), ("1", "2"), compacted=False)
    partition, other = TopicPartition("t", 0), TopicPartition("gone", 1)

    def found(one: ClusterPartition) -> list[int]:
        return [replica.end for replica in find([str(directory)], lambda topic: True, {partition: one}).replicas]

    assert found(said) == [6]
    assert found(replace(said, in_sync=("1",))) == [4]  # it may be behind
    assert found(replace(said, topic_id="another")) == []  # about to be deleted
    assert found(replace(said, replicas=("1", "3"))) == []
    (replica,) = find([str(directory)], lambda topic: True, {partition: replace(said, compacted=True)}).replicas
    assert replica.compacted_to == 6
    both = {partition: said, other: replace(said, in_sync=("2", "3"))}
    assert find([str(directory)], lambda topic: True, both).lost == (("2", other),)
    # Without a cluster: a checkpoint that names a log counts only where another replica of it is there.
    assert find([str(directory)], lambda topic: True, None).lost == ()


def test_rows_of_a_run() -> None:
    """As many as there are partitions and findings, and one: whatever the number of replicas and segments is."""
    time = datetime(2026, 11, 21, tzinfo=UTC)
    sums = Sums(replicas=3, segments=90, batches=7000, size_bytes=10**9, unbounded=1)
    findings = (
        Finding(Damage.CORRUPT, "", -1, "", 0, -1, "", "1: recovery-point-offset-checkpoint cannot be read"),
        Finding(Damage.DIFFERS, "t", 7, "2", 10, 19, "/2/t-7/0.log", "position 0: epoch 7"),
        Finding(Damage.MISSING, "gone", 0, "2", 0, -1, "", "the log's directory is gone"),
    )
    audited = Audited(findings, {TopicPartition("t", number): sums for number in range(10_000)})
    names = [one.split()[0] for one in SCHEMA.split(", ")]
    rows = [dict(zip(names, row, strict=True)) for row in rows_of(audited, "r", time)]
    assert len(rows) == 1 + 10_001 + 3
    assert {(row["run"], row["time"]) for row in rows} == {("r", time)}

    def said(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if value is not None and name not in ("run", "time")}

    whole = {"replicas": 30_000, "segments": 900_000, "batches": 70_000_000, "bytes": 10**13, "unbounded": 10_000}
    assert said(rows[0]) == {"what": "run", "partitions": 10_000, "findings": 3, **whole}
    none = dict.fromkeys(whole, 0)
    assert said(rows[1]) == {"what": "partition", "topic": "gone", "partition": 0, "findings": 1, **none}
    own = {"replicas": 3, "segments": 90, "batches": 7000, "bytes": 10**9, "unbounded": 1}
    assert said(rows[9]) == {"what": "partition", "topic": "t", "partition": 7, "findings": 1, **own}
    assert [said(row) for row in rows[-3:]] == [
        {"what": "finding", "kind": "corrupt", "problem": findings[0].problem},
        {
            "what": "finding",
            "kind": "differs",
            "topic": "t",
            "partition": 7,
            "broker": "2",
            "first": 10,
            "last": 19,
            "file": "/2/t-7/0.log",
            "problem": "position 0: epoch 7",
        },
        {
            "what": "finding",
            "kind": "missing",
            "topic": "gone",
            "partition": 0,
            "broker": "2",
            "problem": "the log's directory is gone",
        },
    ]
    assert [row["what"] for row in (dict(zip(names, row, strict=True)) for row in rows_of(Audited(()), "r", time))] == [
        "run"
    ]
