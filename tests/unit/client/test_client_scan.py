"""Scans against the cluster double: ranges, columns, order, gaps, losses, bounds, and what is left of a reader."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cluster_double import ClusterDouble, PartitionDouble
from test_client_consumer import fill

from highwater.client import (
    ClientClosedError,
    CorruptRecordError,
    InvalidRequestError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    OffsetRange,
    RequestTimedOutError,
    Scan,
    ScanProgress,
    TopicPartition,
    UnknownTopicError,
    blocking,
)
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.scan import range_consumer
from highwater.client.scan.columns import COLUMNS
from highwater.client.scan.scan_progress import progress_display
from highwater.errors import ErrorCode
from highwater.records import Codec, Record, TimestampType, encode_lists, encode_rows, read_header, retain


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.3)
    monkeypatch.setattr(range_consumer, "_POLL_S", 0.05)
    monkeypatch.setattr(range_consumer, "_GONE_S", 0.2)


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble(brokers=2) as running:
        running.create("t", 2)
        yield running


def append(partition: PartitionDouble, batch: bytes) -> None:
    assert partition.append(read_header(batch), batch)[0] is ErrorCode.NONE


async def table(cluster: ClusterDouble, **options: Any) -> pa.Table:
    async with asyncio.timeout(10), Scan("t", bootstrap=cluster.bootstrap, **options) as scan:
        return await scan.to_table()


def offsets(found: pa.Table, partition: int = 0) -> list[int]:
    return found.filter(pc.equal(found["partition"], partition))["offset"].to_pylist()


async def test_all_of_a_topic(cluster: ClusterDouble) -> None:
    for partition in cluster.topics["t"].partitions:
        fill(partition, 0, 1000)
    found = await table(cluster)
    assert found.schema.names == list(COLUMNS)
    assert found.num_rows == 2000
    for number in (0, 1):
        assert offsets(found, number) == list(range(1000))
    one = found.filter(pc.equal(found["partition"], 1)).slice(60, 1).to_pylist()[0]
    assert one["value"] == b"60"
    assert one["key"] is None
    assert one["headers"] == [{"key": "h", "value": b"x"}]
    assert one["topic"] == "t"
    assert one["timestamp"].timestamp() == 0.6


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": 120, "end": 380}, range(120, 380)),
        ({"start": "latest-7"}, range(993, 1000)),
        ({"start": {0: 10}, "end": {0: "latest-980"}}, range(10, 20)),
        ({"end": "1970-01-01T00:00:00.505Z"}, range(51)),
        ({"start": "1970-01-01T00:00:09.900Z"}, range(990, 1000)),
        ({"start": "-1d"}, range(0)),
        ({"start": 5, "end": 5}, range(0)),
    ],
)
async def test_ranges_within_batches(cluster: ClusterDouble, options: dict[str, Any], expected: range) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 1000)
    found = await table(cluster, **options)
    assert offsets(found) == list(expected)
    assert offsets(found, 1) == []


async def test_an_empty_topic_asks_for_nothing(cluster: ClusterDouble) -> None:
    found = await table(cluster, columns=["value"])
    assert (found.num_rows, found.schema.names) == (0, ["value"])
    assert not [request for broker in cluster.brokers.values() for request in broker.fetch_requests]


async def test_ends_are_fixed_at_the_start(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 300)
    async with Scan("t", bootstrap=cluster.bootstrap) as scan:
        assert scan.ranges == {TopicPartition("t", 0): OffsetRange(0, 300), TopicPartition("t", 1): OffsetRange(0, 0)}
        fill(partition, 300, 300)
        cluster.grow("t", 3)
        fill(cluster.topics["t"].partitions[2], 0, 50)
        first, second = await scan.to_table(), await scan.to_table()
    assert offsets(first) == list(range(300))
    assert first.equals(second)


async def test_nothing_behind_the_end_is_fetched(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 1000)
    await table(cluster, end=100, max_partition_fetch_bytes=2000)
    asked = [
        item.fetch_offset
        for broker in cluster.brokers.values()
        for request in broker.fetch_requests
        for item in request.partitions
    ]
    assert asked
    assert max(asked) < 100


@pytest.mark.parametrize("name", COLUMNS)
async def test_a_column_by_itself_is_that_of_all(cluster: ClusterDouble, name: str) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 300)
    whole = await table(cluster, start=20, end=280)
    alone = await table(cluster, start=20, end=280, columns=[name])
    assert alone.schema.names == [name]
    assert alone[name].to_pylist() == whole[name].to_pylist()


async def test_what_the_header_says_is_not_decoded(cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 200)
    stamped = encode_lists([7] * 10, None, [b"x"] * 10, timestamp_type=TimestampType.LOG_APPEND_TIME)
    append(partition, stamped)
    decoded: list[int] = []
    real = FetchBuffer.decoded

    def counted(self: FetchBuffer, fetched: Any) -> Any:
        decoded.append(fetched.header.base_offset)
        return real(self, fetched)

    monkeypatch.setattr(FetchBuffer, "decoded", counted)
    found = await table(cluster, columns=["offset", "partition", "topic"])
    assert (offsets(found), decoded) == (list(range(210)), [])
    found = await table(cluster, start=150, columns=["timestamp"])
    assert decoded == [150]
    assert [each.timestamp() for each in found["timestamp"].to_pylist()[-3:]] == [0.007] * 3
    # Compaction has taken records: which of them only the payload says.
    kept = retain(partition.batches[0][1], 0, np.arange(50) % 10 == 0)
    partition.batches[0] = (read_header(kept), kept)
    found = await table(cluster, end=60, columns=["offset", "partition"])
    assert offsets(found) == [*range(0, 50, 10), *range(50, 60)]


async def test_damage_is_found_without_decoding(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 50)
    header, batch = partition.batches[0]
    damaged = bytearray(batch)
    damaged[-1] ^= 1
    partition.batches[0] = (header, bytes(damaged))
    for columns in (["offset"], ["value"]):
        with pytest.raises(CorruptRecordError, match="t-0 at offset 0"):
            await table(cluster, columns=columns)
    assert (await table(cluster, columns=["offset"], check_crcs=False)).num_rows == 50


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ([], "columns is empty"),
        (["valu"], "there is no column 'valu'; there are topic, "),
        ("value", "columns=['value']"),
    ],
)
def test_wrong_columns(columns: Any, part: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Scan("t", columns=columns)
    assert part in str(refused.value)
    with pytest.raises(InvalidRequestError, match="names one twice: key, key"):
        Scan("t", columns=["key", "key"])


async def test_gaps_that_compaction_left_stall_nothing(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 500)
    # The first batch, one in the middle and those at the end of the range are gone; the last left is a header alone.
    kept = [entry for entry in partition.batches if entry[0].base_offset not in (0, 200, 350, 450)]
    emptied = retain(kept[-1][1], 0, np.zeros(50, dtype=bool))
    kept[-1] = (read_header(emptied), emptied)
    partition.batches = kept
    left = [offset for offset in range(500) if offset // 50 * 50 not in (0, 200, 350, 400, 450)]
    append(partition, encode_lists([1], None, [b"last"]))
    assert offsets(await table(cluster, end=500)) == left
    assert offsets(await table(cluster, end=370)) == [offset for offset in left if offset < 370]
    assert offsets(await table(cluster)) == [*left, 500]


async def test_markers_of_transactions_are_passed_over(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 50)
    append(partition, encode_rows([Record(0, 1, b"\0\0\0\0", b"\0" * 6, ())], control=True))
    assert offsets(await table(cluster)) == list(range(50))
    assert offsets(await table(cluster, columns=["offset", "partition"])) == list(range(50))
    assert offsets(await table(cluster, start=50)) == []


async def test_small_batches_are_joined(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 400, batch=1)
    async with Scan("t", bootstrap=cluster.bootstrap) as scan:
        sizes = [batch.num_rows async for batch in scan]
    assert sum(sizes) == 400
    assert len(sizes) < 20


async def test_a_topic_that_does_not_exist(cluster: ClusterDouble) -> None:
    with pytest.raises(UnknownTopicError, match="'absent'"):
        await Scan("absent", bootstrap=cluster.bootstrap).start()
    with pytest.raises(UnknownTopicError, match="there is no 2"):
        await Scan("t", bootstrap=cluster.bootstrap, partitions=[2]).start()


@pytest.mark.parametrize("anew", [False, True])
async def test_a_topic_that_is_deleted_meanwhile(cluster: ClusterDouble, anew: bool) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 1000)
    async with asyncio.timeout(10), Scan("t", bootstrap=cluster.bootstrap) as scan:
        del cluster.topics["t"]
        if anew:
            cluster.create("t", 2)
            fill(cluster.topics["t"].partitions[0], 0, 1000)
        with pytest.raises(UnknownTopicError, match=r"deleted, or made anew.*1000 offsets"):
            await scan.to_table()


@pytest.mark.parametrize("fail", [True, False])
async def test_a_range_that_retention_trims_meanwhile(cluster: ClusterDouble, fail: bool) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 1000)
    async with (
        asyncio.timeout(10),
        Scan("t", bootstrap=cluster.bootstrap, end=900, fail_on_data_loss=fail) as scan,
    ):
        partition.log_start_offset = 700
        if fail:
            with pytest.raises(OffsetOutOfRangeError, match="t-0: offsets 0 to 699 are no longer in the log"):
                await scan.to_table()
        else:
            assert offsets(await scan.to_table()) == list(range(700, 900))
            partition.log_start_offset = 950
            assert offsets(await scan.to_table()) == []


async def test_a_log_that_an_election_has_cut(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 1000)
    async with asyncio.timeout(10), Scan("t", bootstrap=cluster.bootstrap, start=700) as scan:
        partition.truncate(500)
        with pytest.raises(OffsetOutOfRangeError, match="offsets 700 to 999 .* an unclean election has cut it"):
            await scan.to_table()


async def test_an_offset_that_was_trimmed_before(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 1000)
    partition.log_start_offset = 700
    with pytest.raises(OffsetOutOfRangeError, match="offsets 5 to 699"):
        await table(cluster, start={0: 5})
    assert offsets(await table(cluster, start=5, fail_on_data_loss=False)) == list(range(700, 1000))
    assert offsets(await table(cluster)) == list(range(700, 1000))


async def test_a_leader_that_moves(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 1000)
    async with asyncio.timeout(10), Scan("t", bootstrap=cluster.bootstrap, max_partition_fetch_bytes=3000) as scan:
        found = []
        async for batch in scan:
            if not found:
                cluster.move_leader("t", 0, 2)
            found.append(batch)
    assert offsets(pa.Table.from_batches(found)) == list(range(1000))


async def test_nothing_comes(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 100)
    async with asyncio.timeout(10), Scan("t", bootstrap=cluster.bootstrap, timeout_ms=300) as scan:
        partition.batches, partition.high_watermark = [], 0
        with pytest.raises(RequestTimedOutError, match=r"t-0: nothing came at offset 0 for 0.3 s.*went to 100"):
            await scan.to_table()
        cluster.move_leader("t", 0, 99)
        with pytest.raises(LeaderNotAvailableError, match="t-0 has had no leader"):
            await scan.to_table()


async def test_progress(cluster: ClusterDouble) -> None:
    for partition in cluster.topics["t"].partitions:
        fill(partition, 0, 1000)
    seen: list[ScanProgress] = []
    await table(cluster, progress=seen.append, max_partition_fetch_bytes=3000)
    assert [each.fraction for each in seen] == sorted(each.fraction for each in seen)
    assert seen[0].fraction < 1
    size_bytes = sum(len(batch) for each in cluster.topics["t"].partitions for _, batch in each.batches)
    assert seen[-1] == ScanProgress(2000, size_bytes, 2000, 2000)
    assert ScanProgress(0, 0, 0, 0).fraction == 1.0


def test_a_bar_only_where_rich_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = progress_display(True, "t")
    bar.show(ScanProgress(1, 1, 1, 2))
    bar.close()
    assert type(bar).__name__ == "ProgressBar"
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    assert type(progress_display(True, "t")).__name__ == "NoDisplay"
    assert type(progress_display(False, "t")).__name__ == "NoDisplay"


async def test_a_reader_that_does_not_read_is_not_fetched_for(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    value = b"x" * 10_000
    for _ in range(400):
        append(partition, encode_lists([1], None, [value], codec=Codec.NONE))
    limit, answer = 200_000, 100_000
    options = {"fetch_max_bytes": limit, "max_partition_fetch_bytes": answer}
    async with asyncio.timeout(20), Scan("t", bootstrap=cluster.bootstrap, **options) as scan:  # type: ignore[arg-type]
        reader = scan.reader()
        await reader.start()
        consumer = reader._consumer
        (buffer,) = [each for each in consumer._fetcher.buffers.values() if each.until]
        await cluster.until(lambda: buffer.buffered_bytes >= answer)
        asked = sum(len(broker.fetch_requests) for broker in cluster.brokers.values())
        for _ in range(20):
            await asyncio.sleep(0.02)  # it would have fetched more by now
            assert buffer.buffered_bytes < answer + limit
        assert sum(len(broker.fetch_requests) for broker in cluster.brokers.values()) <= asked + 1
        read = 0
        while taken := await reader.take():
            read += sum(batch.num_rows for batch in reader.decode(taken))
        assert read == 400
        await reader.close()


async def test_a_scan_that_was_stopped(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 1000)
    scan = Scan("t", bootstrap=cluster.bootstrap, max_partition_fetch_bytes=3000)
    with pytest.raises(ClientClosedError, match="not started"):
        await scan.to_table()
    await scan.start()
    reading = aiter(scan)
    await anext(reading)
    await scan.stop()
    with pytest.raises(ClientClosedError, match="stopped while it was being read"):
        async for _ in reading:
            pass
    with pytest.raises(ClientClosedError, match="was stopped"):
        await scan.to_table()
    with pytest.raises(ClientClosedError, match="was stopped"):
        await scan.start()


# The blocking form. The double's event loop is the test's own: so what blocks runs in a thread.


async def test_the_blocking_scan(cluster: ClusterDouble) -> None:
    for partition in cluster.topics["t"].partitions:
        fill(partition, 0, 1000)

    def read() -> None:
        with blocking.Scan("t", bootstrap=cluster.bootstrap, start=500, columns=["partition", "offset"]) as scan:
            assert scan.ranges[TopicPartition("t", 1)] == OffsetRange(500, 1000)
            tables = [
                pa.RecordBatchReader.from_stream(scan).read_all(),
                pa.table(scan),
                scan.to_table(),
                scan.to_reader().read_all(),
                pa.Table.from_batches(scan),
            ]
            for found in tables:
                assert found.schema == scan.schema
                assert [offsets(found, number) for number in (0, 1)] == [list(range(500, 1000))] * 2
        with pytest.raises(ClientClosedError):
            scan.to_table()

    await asyncio.to_thread(read)


async def test_errors_reach_who_reads(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 1000)

    def read() -> None:
        with blocking.Scan("t", bootstrap=cluster.bootstrap) as scan:
            partition.log_start_offset = 700
            with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 699"):
                scan.to_table()
            with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 699"):
                scan.to_reader().read_all()
            with pytest.raises(Exception, match="offsets 0 to 699"):
                pa.RecordBatchReader.from_stream(scan).read_all()

    await asyncio.to_thread(read)


async def test_readers_that_are_dropped_half_way_leave_nothing(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 1000)
    closed: list[object] = []
    real = range_consumer.RangeConsumer.stop

    async def stop(self: range_consumer.RangeConsumer) -> None:
        await real(self)
        closed.append(self)

    monkeypatch.setattr(range_consumer.RangeConsumer, "stop", stop)

    def read() -> blocking.Scan:
        scan = blocking.Scan("t", bootstrap=cluster.bootstrap, max_partition_fetch_bytes=3000)
        rows = iter(scan)
        next(rows)
        del rows
        reader = pa.RecordBatchReader.from_stream(scan)
        reader.read_next_batch()
        del reader
        pa.RecordBatchReader.from_stream(scan)  # of which nothing is read: it never connects
        gc.collect()
        return scan

    scan = await asyncio.to_thread(read)
    await cluster.until(lambda: len(closed) == 3)  # and that which asked for the ends
    await asyncio.to_thread(scan.close)
    assert len(closed) == 3
