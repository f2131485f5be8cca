"""`highwater pipeline audit`: damage of every kind is found and named; what is sound is, also while it is written."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from highwater.cli.app import app
from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.errors import UserError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.inspect.segment_audit import Damage
from highwater.records import Record, decode, encode_rows, iter_batches, retain
from highwater.spark.pipelines.audit import AuditOptions, audit, run
from highwater.spark.pipelines.audits.findings import Audited, Finding

pytestmark = pytest.mark.timeout(1200)  # many small jobs of Spark

TOPIC = "t"
BROKERS = ("1", "2", "3")


def running_cluster(directory: Path, **more: str) -> LocalCluster:
    settings = {"replica.high.watermark.checkpoint.interval.ms": "200", **more}
    running = LocalCluster(LocalClusterSettings(directory, brokers=3, port=0, settings=settings))
    running.start()
    return running


def produce(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap, batch_size=1500, compression="none") as producer:
        for number in range(count):
            producer.send(topic, b"%d " % number + b"x" * 90, key=b"%d" % (number % 10))


def until_checkpointed(data: Path, ends: dict[tuple[str, int], int]) -> None:
    """Every broker has written down that high watermark."""
    deadline = monotonic() + 60
    pause = threading.Event()
    for broker in BROKERS:
        path = data / f"broker-{broker}" / checkpoints.HIGH_WATERMARKS
        while any(checkpoints.read_offsets(path).get(key, 0) < end for key, end in ends.items()):
            assert monotonic() < deadline, path.read_text()
            pause.wait(0.05)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of a cluster that was killed after every high watermark had been written down."""
    data = tmp_path_factory.mktemp("replicas")
    cluster = running_cluster(data)
    try:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 2, 3, {"segment.bytes": "20000", "min.insync.replicas": "2"})
            produce(cluster.bootstrap, TOPIC, 2000)
            ends = admin.list_offsets([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
        until_checkpointed(data, {(TOPIC, partition): end.offset for (_, partition), end in ends.items()})
    finally:
        cluster.kill()
    return data


@pytest.fixture
def copies(stopped: Path, tmp_path: Path) -> Path:
    for broker in BROKERS:
        shutil.copytree(stopped / f"broker-{broker}", tmp_path / f"broker-{broker}")
    return tmp_path


def audited(data: Path, **options: object) -> Audited:
    directories = [str(data / f"broker-{broker}") for broker in BROKERS]
    return audit(AuditOptions(directories=directories, **options))  # type: ignore[arg-type]


def segments(data: Path, broker: str) -> list[Path]:
    return sorted((data / f"broker-{broker}" / f"{TOPIC}-0").glob("*.log"))


def batches(path: Path) -> list[tuple[int, int, int, int]]:
    """Position, size, first and last offset."""
    content = path.read_bytes()
    return [
        (at, one.size_bytes, one.base_offset, one.last_offset) for at, one in iter_batches(content, partial_ok=True)
    ]


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def log_end(data: Path, broker: str) -> int:
    return batches(segments(data, broker)[-1])[-1][3] + 1


Damaging = Callable[[Path], Finding]


def a_flipped_bit(data: Path) -> Finding:
    path = segments(data, "2")[1]
    position, size, first, last = batches(path)[3]
    at = position + size - 5
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 4]))
    return Finding(Damage.CORRUPT, TOPIC, 0, "2", first, last, str(path), f"position {position}: CRC-32C is")


def another_epoch(data: Path) -> Finding:
    """It stands outside of what the CRC covers: only the other replicas tell."""
    path = segments(data, "3")[1]
    position, size, first, last = batches(path)[2]
    overwrite(path, position + 12, (7).to_bytes(4, "big"))
    problem = f"position {position}: epoch 7, {size} bytes, crc "
    return Finding(Damage.DIFFERS, TOPIC, 0, "3", first, last, str(path), problem)


def another_batch(data: Path) -> Finding:
    """A valid one, with other values, in the place of the one that was written."""
    path = segments(data, "1")[2]
    content = path.read_bytes()
    position, size, first, last = batches(path)[1]
    before = decode(content, position)
    records = [one._replace(value=one.value[:-1] + b"?") for one in before.records() if one.value is not None]
    other = encode_rows(
        records,
        base_offset=first,
        leader_epoch=before.header.partition_leader_epoch,
    )
    path.write_bytes(content[:position] + other + content[position + size :])
    return Finding(Damage.DIFFERS, TOPIC, 0, "1", first, last, str(path), f"position {position}: epoch ")


def a_header_that_is_none(data: Path) -> Finding:
    path = segments(data, "2")[2]
    position, _, first, _ = batches(path)[4]
    until = batches(path)[-1][3]
    overwrite(path, position, bytes(61))
    return Finding(Damage.CORRUPT, TOPIC, 0, "2", first, until, str(path), f"position {position}: ")


def a_removed_segment(data: Path) -> Finding:
    path = segments(data, "1")[2]
    first, last = batches(path)[0][2], batches(path)[-1][3]
    before = segments(data, "1")[1]
    path.unlink()
    return Finding(Damage.MISSING, TOPIC, 0, "1", first, last, str(before), "the file ends after ")


def a_removed_first_segment(data: Path) -> Finding:
    path = segments(data, "1")[0]
    last = batches(path)[-1][3]
    path.unlink()
    return Finding(Damage.MISSING, TOPIC, 0, "1", 0, last, str(path.parent), f"the first segment begins at {last + 1}")


def a_cut_below_the_high_watermark(data: Path) -> Finding:
    path = segments(data, "3")[-1]
    end = log_end(data, "3")
    position, _, first, _ = batches(path)[1]
    os.truncate(path, position)
    return Finding(Damage.MISSING, TOPIC, 0, "3", first, end - 1, str(path), f"the file ends after {position} bytes")


def a_cut_through_a_batch(data: Path) -> Finding:
    path = segments(data, "3")[-1]
    position, _, first, last = batches(path)[-1]
    os.truncate(path, position + 100)
    return Finding(Damage.CORRUPT, TOPIC, 0, "3", first, last, str(path), f"position {position}: truncated: 100 of")


def a_removed_log(data: Path) -> Finding:
    shutil.rmtree(data / "broker-2" / f"{TOPIC}-0")
    return Finding(Damage.MISSING, TOPIC, 0, "2", 0, -1, "", "the log's directory is gone")


def a_removed_batch(data: Path) -> Finding:
    path = segments(data, "2")[1]
    position, size, first, last = batches(path)[2]
    content = path.read_bytes()
    path.write_bytes(content[:position] + content[position + size :])
    return Finding(Damage.MISSING, TOPIC, 0, "2", first, last, str(path), f"position {position}: {last + 1} comes next")


@pytest.mark.parametrize(
    "damage",
    [
        a_flipped_bit,
        another_epoch,
        another_batch,
        a_header_that_is_none,
        a_removed_segment,
        a_removed_first_segment,
        a_cut_below_the_high_watermark,
        a_cut_through_a_batch,
        a_removed_log,
        a_removed_batch,
    ],
)
def test_damage_is_found_and_named(copies: Path, spark: SparkSession, damage: Damaging) -> None:
    expected = damage(copies)
    (found,) = audited(copies).findings
    assert found.problem.startswith(expected.problem), found
    assert replace(found, problem="") == replace(expected, problem="")


def test_where_two_replicas_differ_nobody_says_which_is_right(copies: Path, spark: SparkSession) -> None:
    another_epoch(copies)
    options = AuditOptions(directories=[str(copies / "broker-1"), str(copies / "broker-3")])
    found = audit(options).findings
    assert [one.broker for one in found] == ["1", "3"]
    assert all("epoch 7" in one.problem for one in found)


def test_sound_copies(
    copies: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in copies.rglob("*") if path.is_file()}
    directories = [str(copies / f"broker-{broker}") for broker in BROKERS]
    # Above the high watermark nothing is asked: half a batch, and another batch than the other replicas have.
    with segments(copies, "1")[-1].open("ab") as file:
        file.write(encode_rows([Record(0, 0, b"k", b"v", ())], base_offset=log_end(copies, "1"), leader_epoch=9)[:-3])
    before.update({path: path.read_bytes() for path in segments(copies, "1")})
    sums = audit(AuditOptions(directories=directories))
    assert (sums.findings, sums.partitions, sums.replicas) == ((), 2, 6)
    assert sums.segments == sum(len(list((copies / f"broker-{one}").glob(f"{TOPIC}-?/*.log"))) for one in BROKERS)
    assert {path: path.read_bytes() for path in copies.rglob("*") if path.is_file()} == before
    result = CliRunner().invoke(app, ["pipeline", "audit", *directories, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["findings"] == 0


def test_what_is_printed(copies: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    expected = a_flipped_bit(copies)
    directories = [str(copies / f"broker-{broker}") for broker in BROKERS]
    with pytest.raises(UserError, match="^1 finding in 2 partitions, 6 replicas, "):
        run(AuditOptions(directories=directories, json=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [lines[0][name] for name in ("kind", "topic", "partition", "broker")] == ["corrupt", TOPIC, 0, "2"]
    assert (lines[0]["first"], lines[0]["last"]) == (expected.first, expected.last)
    assert lines[-1]["findings"] == 1
    with pytest.raises(UserError, match="holds no log: name directories of log.dirs"):
        run(AuditOptions(directories=[str(copies / "broker-1" / f"{TOPIC}-0")]))
    assert audited(copies, pattern="other.*").replicas == 0


def test_runs_in_a_table(copies: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run in one transaction, also where nothing is found; what is printed is the same."""
    directories = [str(copies / f"broker-{broker}") for broker in BROKERS]
    runs = copies / "audits"

    def printed(**more: object) -> tuple[str, str]:
        """With what it ends with."""
        try:
            run(AuditOptions(directories=directories, json=True, **more))  # type: ignore[arg-type]
        except UserError as error:
            return capsys.readouterr().out, str(error)
        return capsys.readouterr().out, ""

    assert printed(to_table=str(runs)) == printed()
    expected = a_flipped_bit(copies)
    assert printed(to_table=str(runs)) == printed()
    first, second = (DeltaTable(runs, version=version).to_pyarrow_table().to_pylist() for version in (0, 1))
    assert DeltaTable(runs).version() == 1
    second = [row for row in second if row["run"] != first[0]["run"]]
    assert len({row["run"] for row in second}) == 1
    assert len({row["time"] for row in second}) == 1
    assert second[0]["time"] > first[0]["time"]
    for rows, findings in ((first, 0), (second, 1)):
        (whole,) = (row for row in rows if row["what"] == "run")
        parts = sorted((row for row in rows if row["what"] == "partition"), key=lambda row: int(row["partition"]))
        assert [(row["topic"], row["partition"], row["replicas"]) for row in parts] == [(TOPIC, 0, 3), (TOPIC, 1, 3)]
        assert [row["findings"] for row in parts] == [findings, 0]
        assert (whole["partitions"], whole["replicas"], whole["findings"]) == (2, 6, findings)
        for name in ("segments", "batches", "bytes", "unbounded"):
            assert whole[name] == sum(row[name] for row in parts)
        assert whole["bytes"] > whole["batches"] > whole["segments"] > 6
    assert len(second) == len(first) + 1
    (found,) = (row for row in second if row["what"] == "finding")
    assert (found["kind"], found["topic"], found["partition"], found["broker"]) == ("corrupt", TOPIC, 0, "2")
    assert (found["first"], found["last"], found["file"]) == (expected.first, expected.last, expected.file)
    assert found["problem"].startswith(expected.problem)
    # What is not such a table is said before anything is read.
    with pytest.raises(UserError, match="broker-1 has .* in it and is no table: name another directory"):
        run(AuditOptions(directories=["/nowhere"], to_table=str(copies / "broker-1")))
    spark.range(1).write.format("delta").save(str(copies / "other"))
    with pytest.raises(UserError, match="other is a table of something else: name another directory"):
        run(AuditOptions(directories=["/nowhere"], to_table=str(copies / "other")))


def compact(data: Path, broker: str, until: int, *, also: frozenset[int] = frozenset()) -> None:
    """As the cleaner does below `until`: the last record of each key stays there, but for the offsets in `also`."""
    last: dict[bytes | None, int] = {}
    paths = [path for path in segments(data, broker) if int(path.stem) < until]
    for path in paths:
        for position, _ in iter_batches(path.read_bytes()):
            for record in decode(path.read_bytes(), position).records():
                last[record.key] = record.offset
    kept = set(last.values()) - also
    for path in paths:
        content = path.read_bytes()
        cleaned = []
        for position, _ in iter_batches(content):
            keep = np.array([record.offset in kept for record in decode(content, position).records()])
            if keep.any():
                cleaned.append(retain(content, position, keep))
        path.write_bytes(b"".join(cleaned))
    directory = data / f"broker-{broker}"
    checkpoints.write_offsets(directory / checkpoints.CLEANER_OFFSETS, {(TOPIC, 0): until})


def test_replicas_that_were_compacted_each_for_itself(copies: Path, spark: SparkSession) -> None:
    """Their batches differ, their records do not."""
    cuts = [int(path.stem) for path in segments(copies, "1")]
    compact(copies, "1", cuts[-1])
    compact(copies, "2", cuts[-2])
    assert batches(segments(copies, "1")[-2]) != batches(segments(copies, "3")[-2])
    assert audited(copies).findings == ()
    # Damage above what was compacted is found as ever.
    path = segments(copies, "3")[-1]
    position, _, first, last = batches(path)[1]
    overwrite(path, position + 12, (7).to_bytes(4, "big"))
    (found,) = audited(copies).findings
    assert (found.kind, found.broker, found.first, found.last) == (Damage.DIFFERS, "3", first, last)


def test_what_compaction_may_not_take(copies: Path, spark: SparkSession) -> None:
    until = int(segments(copies, "1")[-1].stem)
    compact(copies, "1", until)
    kept = [
        record
        for path in segments(copies, "1")[:-1]
        for position, _ in iter_batches(path.read_bytes())
        for record in decode(path.read_bytes(), position).records()
    ]
    lost = kept[-1].offset
    compact(copies, "2", until, also=frozenset({lost}))
    (missing,) = audited(copies).findings
    assert (missing.kind, missing.broker, missing.first, missing.last) == (Damage.MISSING, "2", lost, lost)
    assert missing.problem == "the last record of its key: another replica has it"


def test_a_running_cluster_under_writes_and_retention(tmp_path: Path, spark: SparkSession) -> None:
    cluster = running_cluster(tmp_path)
    stop = threading.Event()
    written: list[BaseException] = []

    def write() -> None:
        try:
            while not stop.is_set():
                produce(cluster.bootstrap, TOPIC, 500)
        except BaseException as error:
            written.append(error)

    thread = threading.Thread(target=write)
    try:
        with Admin(cluster.bootstrap) as admin:
            config = {"segment.bytes": "20000", "min.insync.replicas": "2", "file.delete.delay.ms": "0"}
            admin.create_topic(TOPIC, 2, 3, {**config, "retention.bytes": "100000"})
            produce(cluster.bootstrap, TOPIC, 3000)
            thread.start()
            for bootstrap in (None, cluster.bootstrap, None):
                found = audited(tmp_path, bootstrap=bootstrap)
                assert found.findings == ()
                assert found.replicas == 6
                assert found.batches > 0
            # What a replica that is in sync lacks is found also where its checkpoint does not tell.
            stop.set()
            thread.join()
            path = sorted((tmp_path / "broker-2" / f"{TOPIC}-1").glob("*.log"))[-1]
            copy = path.read_bytes()
            path.write_bytes(b"")
            (finding,) = audited(tmp_path, bootstrap=cluster.bootstrap).findings
            assert (finding.kind, finding.broker, finding.partition) == (Damage.MISSING, "2", 1)
            path.write_bytes(copy)
        assert written == []
    finally:
        stop.set()
        thread.join()
        cluster.kill()


@pytest.mark.long
def test_a_running_cluster_that_compacts(tmp_path: Path, spark: SparkSession) -> None:
    cluster = running_cluster(tmp_path, **{"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "true"})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "20000"}
    cleaned = [tmp_path / f"broker-{broker}" / checkpoints.CLEANER_OFFSETS for broker in BROKERS]
    pause = threading.Event()
    try:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, 3, {**config, "min.insync.replicas": "2"})
        produce(cluster.bootstrap, TOPIC, 2000)
        for bootstrap in (None, cluster.bootstrap):
            produce(cluster.bootstrap, TOPIC, 500)
            found = audited(tmp_path, bootstrap=bootstrap)
            assert found.findings == ()
            assert found.replicas == 3
        deadline = monotonic() + 120
        while not all(checkpoints.read_offsets(path).get((TOPIC, 0), 0) > 1000 for path in cleaned):
            assert monotonic() < deadline
            pause.wait(0.1)
        assert audited(tmp_path).findings == ()
        assert audited(tmp_path).batches < 3 * 2500 // 14  # most of what was written is gone
    finally:
        cluster.kill()
