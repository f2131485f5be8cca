"""kill -9 of a streaming query and of brokers in mid-stream: every record in the output once, compared one by one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from conftest import kill_group, numbers, send, wait_until, with_options
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import PartitionDescription, TopicPartition
from highwater.client.blocking import Admin, Consumer, Producer

RECORDS = 30_000
PARTITIONS = 3
JOB = Path(__file__).with_name("archive_job.py")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three, all of them up at the end of each test."""
    settings = {"broker.session.timeout.ms": "3000", "controller.session.timeout.ms": "1000"}
    data = tmp_path_factory.mktemp("brokers")
    running = LocalCluster(LocalClusterSettings(data, brokers=3, port=0, settings=settings))
    running.start()
    yield running
    running.kill()


class Job:
    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.out = directory / "out"
        self._command = [sys.executable, str(JOB), bootstrap, topic, str(directory / "checkpoint"), str(self.out)]
        self._log = directory / "job.log"

    def start(self, how: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen([*self._command, how], stdout=log, stderr=log, start_new_session=True)

    def committed(self) -> int:
        """Micro-batches that the file sink has committed."""
        return len([path for path in (self.out / "_spark_metadata").glob("*") if path.name.isdecimal()])

    def until_committed(self, process: subprocess.Popen[bytes], count: int) -> None:
        deadline = monotonic() + 180
        while self.committed() < count:
            said = f"{self.committed()} of {count} micro-batches; the job says:\n{self._log.read_text()[-4000:]}"
            assert monotonic() < deadline, said
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                raise AssertionError(said)


def in_sync(bootstrap: str, topic: str) -> None:
    """Waits until every replica is in its partition's ISR."""
    with Admin(bootstrap) as admin:

        def behind() -> list[PartitionDescription]:
            return [one for one in admin.describe_topics([topic])[0].partitions if set(one.isr) != set(one.replicas)]

        wait_until(lambda: not behind(), behind)


def all_records(bootstrap: str, topic: str) -> list[tuple[int, int, bytes, bytes]]:
    found = []
    with Consumer(bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        left = sum(consumer.end_offsets(partitions).values())
        while left > 0:
            records = consumer.poll(20_000, 100_000)
            assert records, f"{left} records did not come"
            left -= len(records)
            found += [(one.partition, one.offset, one.key, one.value) for one in records]
    return sorted(found)


@pytest.mark.timeout(900)
def test_kill_9_of_the_query_and_of_brokers_in_mid_stream(
    brokers: LocalCluster, spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, 3, {"min.insync.replicas": "2"})
    job = Job(brokers.bootstrap, topic, tmp_path)
    running = job.start("forever")
    try:
        with Producer(brokers.bootstrap) as producer:

            def produce(first: int, end: int) -> None:
                for number in range(first, end):
                    producer.send(topic, b"value %d" % number, key=b"%d" % (number % 100))
                producer.flush()

            produce(0, RECORDS // 2)
            job.until_committed(running, 2)
            kill_group(running)
            before = job.committed()
            produce(RECORDS // 2, RECORDS * 3 // 5)
            running = job.start("forever")
            job.until_committed(running, before + 2)
            # One broker after another: each leads a partition, and with two gone nothing would be committed.
            for broker, end in ((1, RECORDS * 4 // 5), (2, RECORDS)):
                brokers.kill_broker(broker)
                produce(end - RECORDS // 5, end)
                job.until_committed(running, job.committed() + 1)
                brokers.start_broker(broker)
                in_sync(brokers.bootstrap, topic)
            kill_group(running)
        running = job.start("available-now")
        assert running.wait(240) == 0
    finally:
        if running.poll() is None:
            kill_group(running)
    rows = spark.read.parquet(str(job.out)).select("partition", "offset", "key", "value").collect()
    archived = sorted((row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in rows)
    expected = all_records(brokers.bootstrap, topic)
    assert len(expected) == RECORDS
    assert archived == expected


def test_a_partition_without_a_leader_fails_the_query(brokers: LocalCluster, spark: SparkSession, topic: str) -> None:
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, 1, 1)
        send(brokers, topic, range(10))
        leader = admin.describe_topics([topic])[0].partitions[0].leader

        def read(**options: str) -> DataFrame:
            return with_options(spark.read, brokers, {"subscribe": topic, **options}).load()

        planned = read(**{"kafkaConsumer.pollTimeoutMs": "2000"})
        assert planned.rdd.getNumPartitions() == 1
        brokers.kill_broker(leader)
        try:
            with pytest.raises(PySparkException, match=f"{topic}-0 has had no leader for 2 s: is its broker up"):
                planned.collect()
            with pytest.raises(PySparkException, match=f"{topic}-0 has no leader now: is its broker up"):
                read(**{"highwater.request.timeout.ms": "3000"}).collect()
            rows = spark.sql("select 'v' value")
            late = with_options(rows.write, brokers, {"topic": topic, "highwater.delivery.timeout.ms": "3000"})
            with pytest.raises(PySparkException, match=f"for {topic}-0 were not acknowledged within 3 s"):
                late.mode("append").save()
        finally:
            brokers.start_broker(leader)
        assert numbers(read()) == list(range(10))
