"""Scans of a running cluster: beside producers, of empty partitions, and a million records in bounded memory. Polars
and DuckDB read them where they are installed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from running_cluster import HEAL_S, Deployment, traffic

import highwater
from highwater.client import (
    Producer,
    Scan,
    ScanProgress,
    TopicPartition,
    UnknownTopicError,
)

MILLION = 1_000_000
# Reads all of a topic by itself, and prints what it counted and how its memory grew meanwhile.
COUNT = """
import resource, sys
import highwater, pyarrow as pa, pyarrow.compute as pc

topic, bootstrap = sys.argv[1:]

def kilobytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

with highwater.scan(topic, end=1000, bootstrap=bootstrap) as warm:
    warm.to_table()
before, rows, total = kilobytes(), 0, 0
for batch in highwater.scan(topic, columns=["offset", "value"], bootstrap=bootstrap, fetch_max_bytes=8 << 20):
    rows += batch.num_rows
    total += pc.sum(pc.binary_length(batch.column("value"))).as_py()
print(rows, total, kilobytes() - before)
"""


@pytest.fixture
async def topic(deployed: Deployment, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    name = request.node.name.partition("[")[0]
    await deployed.create_topic(name, [[1, 2], [2, 3], [3, 1]])
    yield name
    if name in await deployed.admin.list_topics():
        await deployed.admin.delete_topic(name)


async def fill(deployed: Deployment, topic: str, records: int, partition: int = 0, size: int = 10) -> None:
    async with Producer(deployed.cluster.bootstrap, linger_ms=5) as producer:
        for number in range(records):
            await producer.send(topic, b"%d" % number * size, key=b"k%d" % (number % 7), partition=partition)


async def test_a_scan_beside_a_producer(deployed: Deployment, topic: str) -> None:
    async with traffic(deployed.cluster.bootstrap, topic, 3) as flow:
        async with asyncio.timeout(HEAL_S), Scan(topic, bootstrap=deployed.cluster.bootstrap) as scan:
            ranges = scan.ranges
            await flow.until_acked(200)
            tables = [await scan.to_table(), await scan.to_table()]
        for table in tables:
            for partition in range(3):
                mine = table.filter(pc.equal(table["partition"], partition))
                until = ranges[TopicPartition(topic, partition)].until
                assert until > 0
                assert mine["offset"].to_pylist() == list(range(until))
                values = [bytes(value).split(b":")[1] for value in mine["value"].to_pylist()]
                assert [int(value) for value in values] == list(range(until))


async def test_a_leader_that_is_killed_meanwhile(deployed: Deployment) -> None:
    topic = "scanned-failover"
    await deployed.create_topic(topic, [[1, 2, 3]])  # of two replicas the one that is left would hold back the end
    await fill(deployed, topic, 20_000, size=20)
    await deployed.preferred_lead(topic)
    bootstrap = deployed.cluster.bootstrap
    limits = {"fetch_max_bytes": 50_000, "max_partition_fetch_bytes": 20_000}
    async with asyncio.timeout(HEAL_S), Scan(topic, columns=["offset"], bootstrap=bootstrap, **limits) as scan:  # type: ignore[arg-type]
        found: list[int] = []
        async for batch in scan:
            if not found:
                deployed.cluster.processes["replica-manager-1"].kill()
            found += batch["offset"].to_pylist()
    assert found == list(range(20_000))
    deployed.cluster.processes["replica-manager-1"].start()
    await deployed.healed(topic)
    await deployed.admin.delete_topic(topic)


async def test_an_empty_partition_and_columns_alone(deployed: Deployment, topic: str) -> None:
    await fill(deployed, topic, 1000, partition=1)
    seen: list[ScanProgress] = []
    bootstrap = deployed.cluster.bootstrap
    async with Scan(topic, columns=["partition", "offset"], progress=seen.append, bootstrap=bootstrap) as scan:
        table = await scan.to_table()
    assert table.to_pydict() == {"partition": [1] * 1000, "offset": list(range(1000))}
    assert (seen[-1].records, seen[-1].fraction) == (1000, 1.0)
    async with Scan(topic, partitions=[0, 2], bootstrap=bootstrap) as scan:
        assert (await scan.to_table()).num_rows == 0


async def test_times_and_ranges(deployed: Deployment, topic: str) -> None:
    bootstrap = deployed.cluster.bootstrap
    async with Producer(bootstrap) as producer:
        for number in range(100):
            await producer.send(topic, b"x", partition=0, timestamp_ms=1_767_225_600_000 + number * 1000)
        await producer.send(topic, b"now", partition=0)
    for options, expected in (
        ({"start": "2026-01-01T00:00:50Z", "end": "2026-01-01T00:01:00Z"}, range(50, 60)),
        ({"start": "-1m"}, range(100, 101)),
        ({"end": "-1h", "start": "latest-3"}, range(98, 100)),
        ({"start": {0: 10}, "end": {0: 12}}, range(10, 12)),
    ):
        async with Scan(topic, columns=["offset"], bootstrap=bootstrap, **options) as scan:  # type: ignore[arg-type]
            assert (await scan.to_table())["offset"].to_pylist() == list(expected)


async def test_a_topic_that_is_deleted_meanwhile(deployed: Deployment, topic: str) -> None:
    await fill(deployed, topic, 1000)
    async with asyncio.timeout(HEAL_S), Scan(topic, bootstrap=deployed.cluster.bootstrap) as scan:
        await deployed.admin.delete_topic(topic)
        with pytest.raises(UnknownTopicError, match="deleted, or made anew"):
            await scan.to_table()


async def test_a_million_records_in_bounded_memory(deployed: Deployment, topic: str) -> None:
    bootstrap = deployed.cluster.bootstrap
    table = pa.table({"value": pa.array([b"%0200d" % number for number in range(MILLION // 10)])})
    async with Producer(bootstrap, compression="none") as producer:
        for _ in range(10):
            await (await producer.send_table(topic, table))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", COUNT, topic, bootstrap], capture_output=True, text=True, timeout=100
    )
    assert done.stderr == ""
    rows, size_bytes, grown_kb = map(int, done.stdout.split())
    assert (rows, size_bytes) == (MILLION, 200 * MILLION)
    assert grown_kb < 100_000  # half of the topic's values


async def test_other_libraries(deployed: Deployment, topic: str) -> None:
    await fill(deployed, topic, 1000, size=1)
    bootstrap = deployed.cluster.bootstrap

    def read() -> None:
        events = highwater.scan(topic, columns=["key", "value", "timestamp"], bootstrap=bootstrap)
        assert pa.RecordBatchReader.from_stream(events).read_all().num_rows == 1000
        assert pa.table(events).num_rows == 1000

    await asyncio.to_thread(read)


async def test_a_script_that_ends_half_way(deployed: Deployment, topic: str) -> None:
    """Nothing waits for what it did not read, and nobody complains."""
    await fill(deployed, topic, 5000, size=20)
    script = (
        "import sys, highwater, pyarrow as pa; "
        "scan = highwater.scan(sys.argv[1], bootstrap=sys.argv[2], max_partition_fetch_bytes=10_000); "
        "rows = iter(scan); next(rows); reader = pa.RecordBatchReader.from_stream(scan); reader.read_next_batch()"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", script, topic, deployed.cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_polars(deployed: Deployment, topic: str) -> None:
    polars = pytest.importorskip("polars")
    await fill(deployed, topic, 1000, size=1)

    def read() -> None:
        frame = polars.DataFrame(highwater.scan(topic, bootstrap=deployed.cluster.bootstrap))
        assert frame["offset"].to_list() == list(range(1000))
        assert frame["value"].to_list()[-1] == b"999"

    await asyncio.to_thread(read)


async def test_duckdb(deployed: Deployment, topic: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    await fill(deployed, topic, 1000, size=1)

    def read() -> None:
        events = highwater.scan(topic, columns=["key", "offset"], bootstrap=deployed.cluster.bootstrap)
        assert events.schema.names == ["key", "offset"]
        counted = duckdb.sql('select key, count(*), max("offset") from events group by key order by key').fetchall()
        assert counted[0] == (b"k0", 143, 994)
        assert duckdb.sql("select count(*) from events").fetchall() == [(1000,)]

    await asyncio.to_thread(read)
