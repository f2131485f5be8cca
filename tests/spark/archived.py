"""What an archive holds, read without Spark, and what a topic holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.pipelines.archives.commits import Commit, pending_commit, visible
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import ReadPlan

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
HOUR_MS = 3_600_000
FIRST_MS = 1_600_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS

Rows = list[dict[str, Any]]


def in_topic(bootstrap: str, topic: str) -> Rows:
    """All records, by topic, partition and offset."""
    with Admin(bootstrap) as admin:
        (found,) = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, one.partition) for one in found.partitions]
        ends = {partition: end.offset for partition, end in admin.list_offsets(partitions).items()}
    plan = ReadPlan((bootstrap,), COLUMNS, True, 60_000, {})
    return [
        row
        for partition in partitions
        for batch in read_range(plan, OffsetRange(partition, 0, ends[partition]))
        for row in batch.to_pylist()
    ]


def in_archive(directory: Path) -> Rows:
    """As any reader of Parquet finds it, by topic, partition and offset."""
    return sorted_rows(pq.read_table(directory))


def in_table(directory: Path, version: int | None = None) -> Rows:
    """As a reader of Delta tables without Spark finds it, by topic, partition and offset."""
    return sorted_rows(DeltaTable(directory, version=version).to_pyarrow_table())


def visible_in_archive(directory: Path) -> Rows:
    """As a reader finds it who looks at the commits, too."""
    files = visible(parquet_files(directory), pending(directory))
    found = ds.dataset([str(directory / path) for path in files], format="parquet", partitioning="hive")
    return sorted_rows(found.to_table())


def parquet_files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.glob("topic=*/**/*.parquet"))


def pending(directory: Path) -> Commit | None:
    return pending_commit(_LocalFiles(), str(directory))


def sorted_rows(table: pa.Table) -> Rows:
    rows = [dict(row) for row in table.select(COLUMNS).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


class _LocalFiles:
    """To look only."""

    def names(self, directory: str) -> list[str]:
        return [path.name for path in Path(directory).glob("*")]

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()


def produce_all_kinds(bootstrap: str, topic: str, numbers: range, hours: int = 3) -> None:
    """Records with and without key, value and headers, some of them equal, with times in so many hours."""
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(
                topic,
                None if number % 7 == 0 else b"value %d" % (number % 1000),
                key=None if number % 5 == 0 else b"%d" % (number % 20),
                headers=[("n", b"%d" % (number % 40)), ("n", None)] if number % 3 == 0 else None,
                timestamp_ms=FIRST_MS + number % hours * HOUR_MS + number % 1000,
            )
