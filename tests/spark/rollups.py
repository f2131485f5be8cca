"""Flights, rollups of them by hour and carrier, and the same sums made in Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from highwater.cli.local_cluster import LocalCluster
from highwater.client import TopicPartition
from highwater.client.blocking import Admin, Producer
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.pipelines.rollup import RollupOptions
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import ReadPlan

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = "carrier STRING, delay DOUBLE, time TIMESTAMP"


def flight(number: int, minutes: float | None = None) -> dict[str, Any]:
    time = BEGIN + timedelta(minutes=number if minutes is None else minutes)
    return {"carrier": f"C{number % 3}", "delay": float(number % 50), "time": time.isoformat()}


def send_json(cluster: LocalCluster, topic: str, rows: Iterable[dict[str, Any]]) -> None:
    values = [json.dumps(row) for row in rows]
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(topic, pa.table({"value": values}), partition=0)


def records(cluster: LocalCluster, topic: str) -> list[tuple[dict[str, Any] | None, dict[str, Any]]]:
    """Key and value of each record, in order of the partitions."""
    found = []
    with Admin(cluster.bootstrap) as admin:
        (described,) = admin.describe_topics([topic])
        ends = admin.list_offsets([TopicPartition(topic, one.partition) for one in described.partitions])
    plan = ReadPlan((cluster.bootstrap,), ("key", "value"), True, 60_000, {})
    for partition, end in ends.items():
        for batch in read_range(plan, OffsetRange(partition, 0, end.offset)):
            for row in batch.to_pylist():
                found.append((json.loads(row["key"]) if row["key"] else None, json.loads(row["value"])))
    return found


def latest(cluster: LocalCluster, topic: str) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """The last value of each key: start and carrier to count and mean."""
    found = {}
    for key, value in records(cluster, topic):
        assert key == {name: value[name] for name in ("start", "end", "carrier")}
        found[value["start"], value["carrier"]] = (value["count"], value["mean_delay"])
    return found


def expected(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], tuple[Any, ...]]:
    delays: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        start = datetime.fromisoformat(row["time"]).replace(minute=0, second=0)
        delays[start.strftime("%Y-%m-%dT%H:%M:%S.000Z"), row["carrier"]].append(row["delay"])
    return {key: (len(found), sum(found) / len(found)) for key, found in delays.items()}


def options(cluster: LocalCluster, topic: str, directory: Path, /, **more: Any) -> RollupOptions:
    given: dict[str, Any] = {
        "bootstrap": cluster.bootstrap,
        "topic": [topic],
        "checkpoint": str(directory / "checkpoint"),
    }
    return RollupOptions(**{**given, **more})


HOURLY: dict[str, Any] = {
    "time_column": "time",
    "window": "1h",
    "watermark": "100d",
    "group_by": ["carrier"],
    "count": True,
    "mean": ["delay"],
}
