"""`highwater pipeline mirror`: cluster to cluster, every record once and as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import FOREVER, send
from pipeline_process import pipeline_process
from pyspark.sql import SparkSession

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.client.exceptions import HighwaterError
from highwater.errors import UserError
from highwater.spark.errors import OptionError
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.pipelines.files.lease import checkpoint_lease
from highwater.spark.pipelines.mirror import MirrorOptions, run
from highwater.spark.pipelines.sending.mirror_rows import MirrorPlan, copying
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import ReadPlan

pytestmark = pytest.mark.timeout(1200)  # many small jobs of Spark

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(LocalClusterSettings(tmp_path_factory.mktemp("target"), brokers=1, port=0))
    running.start()
    yield running
    running.kill()


def everything(cluster: LocalCluster, topic: str) -> list[dict[str, object]]:
    """All records of a topic with all that is known of each, in order."""
    with Admin(cluster.bootstrap) as admin:
        (found,) = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, one.partition) for one in found.partitions]
        ends = {partition: end.offset for partition, end in admin.list_offsets(partitions).items()}
    plan = ReadPlan((cluster.bootstrap,), COLUMNS, True, 60_000, {})
    return [
        row
        for partition in partitions
        for batch in read_range(plan, OffsetRange(partition, 0, ends[partition]))
        for row in batch.to_pylist()
    ]


def options(cluster: LocalCluster, target: LocalCluster, directory: Path, **more: object) -> MirrorOptions:
    checkpoint = str(directory / "checkpoint")
    return MirrorOptions(bootstrap=cluster.bootstrap, to=target.bootstrap, checkpoint=checkpoint, **more)  # type: ignore[arg-type]


def produce_all_kinds(cluster: LocalCluster, topic: str, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(
                topic,
                None if number % 7 == 0 else b"value %d" % number,
                key=None if number % 5 == 0 else b"%d" % (number % 20),
                headers=[("n", b"%d" % number), ("n", None)] if number % 3 == 0 else None,
                timestamp_ms=1_600_000_000_000 + 37 * number,
            )


def test_records_arrive_as_they_were(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(f"{topic}-a", 3, 1, {**FOREVER, "segment.bytes": "1048576"})
    admin.create_topic(f"{topic}-b", 1, 1)
    produce_all_kinds(cluster, f"{topic}-a", 1000)
    given = options(cluster, target, tmp_path, pattern=f"{topic}-.")
    run(given)
    send(cluster, f"{topic}-b", range(100))
    produce_all_kinds(cluster, f"{topic}-a", 500)
    run(given)
    run(given)
    for name, count in ((f"{topic}-a", 1500), (f"{topic}-b", 100)):
        rows = everything(cluster, name)
        assert len(rows) == count
        assert everything(target, name) == rows
    with Admin(target.bootstrap) as there:
        (made,) = there.describe_topics([f"{topic}-a"])
    assert made.config["segment.bytes"] == "1048576"
    lost = options(cluster, target, tmp_path / "lost", pattern=f"{topic}-.")
    with pytest.raises(UserError, match=f"topic {topic}-a, {topic}-b has records, and checkpoint .* say --append"):
        run(lost)


def test_kill_9_and_ctrl_c_of_the_mirror(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 1, FOREVER)
    arguments = ["--topic", topic, "--bootstrap", cluster.bootstrap, "--to", target.bootstrap]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--max-offsets-per-trigger", "700"]

    def arrived() -> int:
        if topic not in there.list_topics():
            return 0
        found = there.list_offsets([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        return sum(end.offset for end in found.values())

    def until_more_arrived(than: int) -> None:
        process.until(lambda: arrived() > than, every_s=0.3)

    with Admin(target.bootstrap) as there, pipeline_process("mirror", tmp_path) as process:
        for end in (process.kill, process.interrupt):
            produce_all_kinds(cluster, topic, 5000)
            process.start([*arguments, "--trigger", "10ms"])
            until_more_arrived(arrived() + 1000)
            end()
        process.end(130)
    run(options(cluster, target, tmp_path, topic=[topic]))
    rows = everything(cluster, topic)
    assert len(rows) == 10_000
    assert everything(target, topic) == rows


def test_a_task_that_is_run_again_passes_over_what_is_there(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, topic: str
) -> None:
    """As where the job is killed between two of a task's batches, or before the micro-batch is committed."""
    admin.create_topic(topic, 1, 1, FOREVER)
    produce_all_kinds(cluster, topic, 300)
    with Admin(target.bootstrap) as there:
        there.create_topic(topic, 1, 1, FOREVER)
    source = ReadPlan((cluster.bootstrap,), COLUMNS, True, 60_000, {})

    def rows(start: int, until: int) -> Iterator[pa.RecordBatch]:
        return read_range(source, OffsetRange(TopicPartition(topic, 0), start, until))

    copy = copying(MirrorPlan((target.bootstrap,), {}), {TopicPartition(topic, 0): 0})
    for until, sent, there_already in ((120, 120, 0), (300, 180, 120), (300, 0, 300)):
        (outcome,) = copy(rows(0, until))
        assert outcome.select(["sent", "there"]).to_pylist() == [{"sent": sent, "there": there_already}]
    assert list(copy(rows(0, 0))) == []
    assert everything(target, topic) == everything(cluster, topic)


def test_what_is_refused(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3, 1)
    with Admin(target.bootstrap) as there:
        there.create_topic(topic, 2, 1)
        there.create_topic(f"{topic}-stamped", 1, 1, {"message.timestamp.type": "LogAppendTime"})
    admin.create_topic(f"{topic}-stamped", 1, 1)
    with pytest.raises(UserError, match=f"topic {topic} has 3 partitions, and 2 in the target: .* give it 3 there"):
        run(options(cluster, target, tmp_path, topic=[topic]))
    with pytest.raises(UserError, match="LogAppendTime in the target"):
        run(options(cluster, target, tmp_path, topic=[f"{topic}-stamped"]))
    with pytest.raises(UserError, match="--bootstrap and --to are the same cluster"):
        run(options(cluster, cluster, tmp_path, topic=[topic]))
    with pytest.raises(UserError, match="two tasks would write one partition"):
        options(cluster, target, tmp_path, topic=[topic], option=["minPartitions=4"])
    given = options(cluster, target, tmp_path, topic=[topic], option=["highwater.request.timeout.ms=x"])
    with pytest.raises(OptionError, match=r"request.timeout.ms is 'x'; it is a whole number"):
        run(given)


def test_two_mirrors_with_one_checkpoint(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(5))
    given = options(cluster, target, tmp_path, topic=[topic])
    other = checkpoint_lease(spark, "mirror", given.checkpoint)
    with (
        other.held(),
        pytest.raises(UserError, match=r"another mirror \(process .*\) works with checkpoint .*: only one"),
    ):
        run(given)
    assert everything(target, topic) == []
    run(given)
    assert everything(target, topic) == everything(cluster, topic)


def test_a_topic_that_was_deleted(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        admin.create_topic(name, 1, 1)
        send(cluster, name, range(5))
    run(options(cluster, target, tmp_path, topic=names))
    admin.delete_topic(names[0])
    send(cluster, names[1], range(7))
    with pytest.raises(HighwaterError, match=f"{topic}-a"):
        run(options(cluster, target, tmp_path, topic=names))
    run(options(cluster, target, tmp_path, topic=names, option=["failOnDataLoss=false"]))
    assert [len(everything(target, name)) for name in names] == [5, 12]


def test_records_that_nobody_has_any_more_end_the_mirror_with_a_sentence(
    cluster: LocalCluster, target: LocalCluster, admin: Admin, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    send(cluster, topic, range(50))
    given = options(cluster, target, tmp_path, topic=[topic])
    run(given)
    admin.delete_topic(topic)
    admin.create_topic(topic, 1, 1)
    with pytest.raises(UserError, match=f"^{topic} is another topic than before: records may be lost"):
        run(given)
