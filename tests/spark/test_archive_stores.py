"""Archives on file systems that machines share, by a cluster whose two executors have disks of their own. For
`make test-stores`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Protocol

import psutil
import pyarrow as pa
import pytest
from archived import Rows, in_topic, produce_all_kinds, sorted_rows
from conftest import FOREVER, started, wait_until
from machines import can_have_disks_of_their_own, two_machines
from pipeline_process import PipelineProcess, pipeline_process
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin
from highwater.spark.pipelines import archive, replay, verify
from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.files.lease import Lease
from highwater.spark.pipelines.replay import ReplayOptions
from highwater.spark.pipelines.verify import VerifyOptions

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif("HIGHWATER_TEST_STORES" not in os.environ, reason="make test-stores installs what it needs"),
    pytest.mark.skipif(not can_have_disks_of_their_own(), reason="needs root, or the right to make mount namespaces"),
]

LOGS = {ArchiveFormat.DELTA: "_delta_log", ArchiveFormat.PARQUET: "_commits"}


class Store(Protocol):
    @property
    def root(self) -> str: ...
    def names(self, directory: str) -> list[str]: ...
    def table(self, directory: str) -> pa.Table: ...
    def files(self, directory: str) -> pa.Table: ...
    def settings(self, scratch: Path) -> list[str]: ...


@pytest.fixture(scope="module")
def s3a() -> Iterator[Store]:
    from object_store import object_store

    with object_store("highwater") as started:
        yield started


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    import hdfs

    with hdfs.hdfs(tmp_path_factory.mktemp("hdfs")) as started:
        yield started


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    started: Store = request.getfixturevalue(request.param)
    return started


def executors(group: int) -> list[int]:
    """The process ids of Spark's executors in a process group."""
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if one.info["cmdline"]
        and "org.apache.spark.executor.CoarseGrainedExecutorBackend" in one.info["cmdline"]
        and os.getpgid(one.pid) == group
    ]


def commits(store: Store, directory: str, kind: ArchiveFormat) -> int:
    """The number of the last one; -1 where there is none."""
    names = [Path(name) for name in store.names(f"{directory}/{LOGS[kind]}")]
    return max((int(name.stem) for name in names if re.fullmatch(r"\d+\.json", name.name)), default=-1)


def archived(store: Store, directory: str, kind: ArchiveFormat) -> Rows:
    if kind is ArchiveFormat.DELTA:
        return sorted_rows(store.table(directory))
    return sorted_rows(store.files(directory)) if commits(store, directory, kind) > 1 else []


@pytest.mark.parametrize("kind", list(ArchiveFormat))
@pytest.mark.parametrize("store", ["s3a", "hdfs"], indirect=True)
def test_kill_9_of_an_executor_and_of_the_driver(
    cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path, store: Store, kind: ArchiveFormat
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(3000))
    disk = tmp_path / "disk"
    disk.mkdir()
    master, *conf = two_machines(disk, tmp_path)
    given = ["--topic", topic, "--bootstrap", cluster.bootstrap, "--format", kind, "--to", f"{store.root}/{topic}"]
    given += ["--checkpoint", f"{store.root}/{topic}.checkpoint"]
    for setting in (*conf, *store.settings(disk), "spark.sql.shuffle.partitions=2"):
        given += ["--conf", setting]

    def one_more_commit() -> None:
        before = commits(store, topic, kind)
        process.until(lambda: commits(store, topic, kind) > before, every_s=0.1)

    with pipeline_process("archive", tmp_path) as process:
        group = process.start([*given, "--master", master, "--trigger", "10ms", "--max-offsets-per-trigger", "100"])
        for _ in range(2):  # the first one of an archive makes it
            one_more_commit()
        os.kill(executors(group)[0], signal.SIGKILL)
        for _ in range(2):
            one_more_commit()
        process.kill()
        produce_all_kinds(cluster.bootstrap, topic, range(500))
        process.start(given)
        process.end()
    assert archived(store, topic, kind) == in_topic(cluster.bootstrap, topic)


@pytest.mark.parametrize("kind", list(ArchiveFormat))
def test_two_archives_at_the_same_moment(
    cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path, hdfs: Store, kind: ArchiveFormat
) -> None:
    """With checkpoints of their own: one of them ends with a sentence, the other one goes on."""
    admin.create_topic(topic, 3, 1, FOREVER)
    given = ["--master", "local[1]", "--topic", topic, "--bootstrap", cluster.bootstrap, "--format", kind]
    given += ["--to", f"hdfs:///{topic}", "--trigger", "10ms"]
    for setting in (f"spark.hadoop.fs.defaultFS={hdfs.root}", "spark.sql.shuffle.partitions=2"):
        given += ["--conf", setting]

    def one_has_ended() -> bool:
        produce_all_kinds(cluster.bootstrap, topic, range(20))
        return not all(one.running for one in two)

    with ExitStack() as opened:
        two: list[PipelineProcess] = []
        for number in range(2):
            (tmp_path / f"{number}").mkdir()
            two.append(opened.enter_context(pipeline_process("archive", tmp_path / f"{number}")))
            two[-1].start([*given, "--checkpoint", f"hdfs:///{topic}.checkpoint-{number}"])
        wait_until(one_has_ended, lambda: [one.said() for one in two], every_s=0.5)
        refused, going_on = sorted(two, key=lambda one: one.running)
        refused.end(1)
        rows = in_topic(cluster.bootstrap, topic)
        going_on.until(lambda: len(archived(hdfs, topic, kind)) >= len(rows), every_s=0.5)
        going_on.terminate()
        going_on.end()
    last = refused.said().strip().splitlines()[-1]
    whose = f"highwater: another archive pipeline( .*)? writes to hdfs:///{topic}: only one at a time can"
    assert re.fullmatch(whose, last), refused.said()
    assert "Traceback" not in refused.said(), refused.said()
    assert archived(hdfs, topic, kind) == rows


@pytest.mark.parametrize("kind", list(ArchiveFormat))
def test_an_archive_verified_and_sent_back(
    cluster: LocalCluster,
    admin: Admin,
    spark: SparkSession,
    topic: str,
    hdfs: Store,
    capsys: pytest.CaptureFixture[str],
    kind: ArchiveFormat,
) -> None:
    """After its small files were merged."""
    back = f"{topic}-back"
    for name in (topic, back):
        admin.create_topic(name, 3, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(900))
    to, given = f"{hdfs.root}/{topic}", {"bootstrap": cluster.bootstrap}
    reading = {"max_offsets_per_trigger": 300, "compact_every": 2}
    archive.run(ArchiveOptions(topic=[topic], to=to, checkpoint=f"{to}.checkpoint", format=kind, **reading, **given))
    capsys.readouterr()
    verify.run(VerifyOptions(archive=to, **given))
    assert "900 archived records of 3 partitions: each once, and the same as the 900 that" in capsys.readouterr().out
    replay.run(ReplayOptions(archive=to, to=back, checkpoint=f"{to}.replay", keep_partitions=True, **given))
    rows = in_topic(cluster.bootstrap, topic)
    assert in_topic(cluster.bootstrap, back) == [{**row, "topic": back} for row in rows]


def test_of_many_that_make_one_file_one_does(spark: SparkSession, topic: str, hdfs: Store) -> None:
    files = HadoopFiles(spark, hdfs.root)
    path = f"{hdfs.root}/{topic}/000000000001.json"
    made: list[int] = []

    def make(number: int) -> None:
        if files.write_new(path, b"%d" % number):
            made.append(number)

    threads = [started(lambda number=number: make(number)) for number in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert files.read(path) == b"%d" % made[0]
    assert (len(made), hdfs.names(topic)) == (1, [f"{topic}/000000000001.json"])


def test_of_many_that_take_a_lease_one_has_it(spark: SparkSession, topic: str, hdfs: Store) -> None:
    files = HadoopFiles(spark, hdfs.root)
    path = f"{hdfs.root}/{topic}/writer.json"
    ended = Event()
    said: list[str] = []

    def take() -> None:
        lease = Lease(files, path, "archive pipeline", f"writes to {topic}")
        try:
            with lease.held():
                said.append("held")
                ended.wait(60)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    threads = [started(take) for _ in range(4)]
    wait_until(lambda: len(said) == len(threads), lambda: said)
    ended.set()
    for thread in threads:
        thread.join()
    said.remove("held")
    whose = f"UserError: another archive pipeline \\(process {os.getpid()} on .*\\) writes to {topic}: .*"
    assert all(re.fullmatch(whose, one) for one in said), said
    assert not hdfs.names(topic)
