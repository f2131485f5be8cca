"""The consumer against the cluster double: positions, resets, epochs (RULES 5.7), tables and iteration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cluster_double import ClusterDouble, PartitionDouble

from highwater.client import (
    ClientClosedError,
    Consumer,
    ConsumerRecord,
    CorruptRecordError,
    HighwaterError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    TopicPartition,
    UnknownTopicError,
)
from highwater.errors import ErrorCode
from highwater.records import Codec, Record, encode_lists, encode_rows, read_header, retain
from highwater.v1 import broker_pb2

T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that nobody knows is not looked for as long as in earnest."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.3)


def fill(partition: PartitionDouble, first: int, count: int, batch: int = 50) -> None:
    """Records whose value is their number and whose timestamp is ten times that; columns and rows in turn."""
    for start in range(first, first + count, batch):
        numbers = range(start, min(start + batch, first + count))
        values = [b"%d" % number for number in numbers]
        times = [number * 10 for number in numbers]
        if (start // batch) % 2:
            rows = [Record(0, time, None, value, (("h", b"x"),)) for time, value in zip(times, values, strict=True)]
            encoded = encode_rows(rows, codec=Codec.LZ4)
        else:
            encoded = encode_lists(times, values, values, codec=Codec.LZ4)
        assert partition.append(read_header(encoded), encoded)[0] is ErrorCode.NONE


@pytest.fixture(params=[True, False], ids=["remembering", "forgetful"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[ClusterDouble]:
    """Brokers that know incremental sessions of consumers, and brokers of before that (RULES 4.13)."""
    async with ClusterDouble(brokers=2, remembers=request.param) as running:
        running.create("t", 2)
        yield running


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await consumer.poll(1000, max_records=count - len(found))
    return found


async def test_everything_is_read_in_order_by_every_way_of_reading(cluster: ClusterDouble) -> None:
    for partition in cluster.topics["t"].partitions:
        fill(partition, 0, 1000)
    expected = [b"%d" % number for number in range(1000)]

    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        found = await read(consumer, 2000)
        for number in (0, 1):
            mine = [record for record in found if record.partition == number]
            assert [record.value for record in mine] == expected
            assert [record.offset for record in mine] == list(range(1000))
            assert [record.timestamp_ms for record in mine] == [time * 10 for time in range(1000)]
            assert mine[60].headers == (("h", b"x"),)
            assert mine[0].headers == ()
        assert await consumer.position(T0) == 1000
        assert await consumer.poll(timeout_ms=20) == []

        consumer.seek_to_beginning()  # no await: it holds like `seek`
        table = pa.concat_tables([await consumer.poll_table(max_records=700) for _ in range(3)])
        assert table.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value"]
        assert table.num_rows <= 2000
        rows = table.to_pylist()
        for number in (0, 1):
            values = [row["value"] for row in rows if row["partition"] == number]
            assert values == expected[: len(values)]

        consumer.assign([T0])
        consumer.seek(T0, 990)
        iterated = []
        async for record in consumer:
            iterated.append(record.offset)
            if len(iterated) == 10:
                break
        assert iterated == list(range(990, 1000))


async def test_leaving_a_loop_or_mixing_calls_loses_no_record(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 300)
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest", include_headers=True) as consumer:
        consumer.assign([T0])
        offsets: list[int] = []
        while len(offsets) < 300:
            async for record in consumer:
                offsets.append(record.offset)
                break
            assert await consumer.position(T0) == offsets[-1] + 1
            offsets += [record.offset for record in await consumer.poll(50, max_records=7)]
            table = await consumer.poll_table(50, max_records=13)
            offsets += table.column("offset").to_pylist()
        assert offsets == list(range(300))
        assert "headers" in table.schema.names


async def test_where_a_partition_without_a_position_begins(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 100)
    async with Consumer(bootstrap=cluster.bootstrap) as latest:
        latest.assign([T0])
        assert await latest.position(T0) == 100
        fill(cluster.topics["t"].partitions[0], 100, 1)
        cluster.changed()
        assert [record.offset for record in await read(latest, 1)] == [100]
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset=555) as timed:
        timed.assign([T0])
        assert await timed.position(T0) == 56
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset=10**12) as late:
        late.assign([T0])
        assert await late.position(T0) == 101
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="error") as strict:
        strict.assign([T0])
        with pytest.raises(OffsetOutOfRangeError, match="t-0 has no position"):
            await strict.poll()
        strict.seek(T0, 99)
        assert [record.offset for record in await read(strict, 2)] == [99, 100]


async def test_a_subscription_takes_up_partitions_that_are_added(cluster: ClusterDouble) -> None:
    """From their first record: what came before they were noticed is not passed over, even by `latest`."""
    fill(cluster.topics["t"].partitions[0], 0, 50)
    async with (
        Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="latest", metadata_max_age_ms=50) as consumer,
        Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="latest", metadata_max_age_ms=50) as assigned,
    ):
        assigned.assign([T0])
        assert await consumer.position(T0) == 50
        cluster.grow("t", 4)
        fill(cluster.topics["t"].partitions[3], 0, 50)
        found = await read(consumer, 50)
        assert {record.partition for record in found} == {3}
        assert found[0].offset == 0
        assert consumer.assignment() == {TopicPartition("t", number) for number in range(4)}
        fill(cluster.topics["t"].partitions[0], 50, 50)
        assert [record.offset for record in await read(consumer, 50)] == list(range(50, 100))
        assert assigned.assignment() == {T0}


async def test_offsets_by_time_beginning_and_end(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 100)
    other = TopicPartition("t", 1)
    async with Consumer(bootstrap=cluster.bootstrap) as consumer:
        found = await consumer.offsets_for_times({T0: 501, other: 0})
        assert found[other] is None
        answer = found[T0]
        assert answer is not None
        assert (answer.offset, answer.timestamp_ms) == (51, 510)
        assert await consumer.beginning_offsets([T0, other]) == {T0: 0, other: 0}
        assert await consumer.end_offsets([("t", 0), ("t", 1)]) == {T0: 100, other: 0}
        with pytest.raises(UnknownTopicError, match="partitions 0 to 1, there is no 7"):
            await consumer.end_offsets([("t", 7)])


async def test_only_what_is_below_the_high_watermark_is_read(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 100)
    partition.high_watermark = 50
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 50)) == 50
        consumer.seek(T0, 70)  # between high watermark and log end: nothing, and no error
        assert await consumer.poll(50) == []
        assert await consumer.position(T0) == 70
        partition.high_watermark = 100
        cluster.changed()
        assert (await read(consumer, 1))[0].offset == 70


async def test_a_position_that_retention_removed_is_reset_as_configured(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 200)
    partition.log_start_offset = 100
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 3)
        assert (await read(consumer, 1))[0].offset == 100
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 3)
        with pytest.raises(OffsetOutOfRangeError, match="t-0: offset 3 is outside the log"):
            await consumer.poll(5000)


async def test_a_zombies_short_log_does_not_reset_a_consumer(cluster: ClusterDouble) -> None:
    """RULES 5.7. Broker 1 was deposed and does not know it: its log is short, its metadata name itself the leader."""
    topic = cluster.topics["t"]
    fill(topic.partitions[0], 0, 100)
    zombie = PartitionDouble(leader=1, leader_epoch=0)
    fill(zombie, 0, 50)
    cluster.brokers[1].leads_anyway["t", 0] = zombie

    def as_before(response: broker_pb2.MetadataResponse) -> None:
        for described in response.topics:
            described.partitions[0].leader, described.partitions[0].leader_epoch = 1, 0

    cluster.brokers[1].metadata_view = as_before
    cluster.move_leader("t", 0, 2)
    # It begins with nothing but the zombie's word.
    async with Consumer(bootstrap=[cluster.brokers[1].address], auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 80)
        assert (await read(consumer, 1))[0].offset == 80
        assert [request.partitions[0].leader_epoch for request in cluster.brokers[2].fetch_requests] == [1]
        # From now on nothing that the zombie says brings it back.
        for _ in range(4):
            await consumer._cluster.refresh()
        known = consumer._cluster.metadata.partition("t", 0)
        assert known is not None
        assert (known.leader, known.leader_epoch) == (2, 1)


async def test_a_new_leader_is_followed_at_the_same_position(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 100)
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        await read(consumer, 100)
        cluster.move_leader("t", 0, 2)
        fill(partition, 100, 10)
        assert [record.offset for record in await read(consumer, 10)] == list(range(100, 110))
        await cluster.brokers[2].stop()
        cluster.move_leader("t", 0, 1)
        fill(partition, 110, 10)
        assert [record.offset for record in await read(consumer, 10)] == list(range(110, 120))


async def test_a_fenced_or_unknown_epoch_is_retried(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 10)
    answers = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.LOG_STORAGE_ERROR]
    cluster.brokers[1].fetch_error = lambda partition: answers.pop() if answers else ErrorCode.NONE
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 10)) == 10
        assert not answers


async def test_a_damaged_batch_is_named_and_can_be_passed(cluster: ClusterDouble) -> None:
    partition = cluster.topics["t"].partitions[0]
    fill(partition, 0, 150)
    header, batch = partition.batches[1]
    partition.batches[1] = (header, batch[:-1] + bytes([batch[-1] ^ 1]))
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 50)) == 50
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="t-0 at offset 50: CRC-32C"):
                await consumer.poll()
        with pytest.raises(CorruptRecordError, match="t-0 at offset 50"):
            await consumer.poll_table()
        consumer.seek(T0, 100)
        assert (await read(consumer, 1))[0].offset == 100


async def test_what_is_fetched_ahead_is_bounded(cluster: ClusterDouble) -> None:
    for partition in cluster.topics["t"].partitions:
        fill(partition, 0, 20_000, batch=500)
    async with Consumer(
        "t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4000
    ) as consumer:
        await read(consumer, 1)
        buffers = list(consumer._fetcher.buffers.values())
        await cluster.until(lambda: all(buffer.buffered_bytes >= 4000 for buffer in buffers))
        largest = max(header.size_bytes for header, _ in partition.batches)
        assert all(buffer.buffered_bytes <= 2 * 4000 + 2 * largest for buffer in buffers)
        assert len(await read(consumer, 39_999)) == 39_999


async def test_a_waiting_fetch_does_not_hold_up_another_partition(cluster: ClusterDouble) -> None:
    cluster.create("one", 1)
    partition = cluster.topics["one"].partitions[0]
    cluster.create("two", 1)
    fill(cluster.topics["two"].partitions[0], 0, 10)
    async with Consumer(
        bootstrap=cluster.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20_000
    ) as consumer:
        consumer.assign([("one", 0)])
        await cluster.until(lambda: len(cluster.brokers[partition.leader].fetch_requests) == 1)
        consumer.assign([("one", 0), ("two", 0)])
        assert len(await read(consumer, 10)) == 10
        fill(partition, 0, 10)
        cluster.changed()
        assert len(await read(consumer, 10)) == 10


async def test_a_leader_that_falls_silent_is_left_once_its_successor_is_known(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.SILENT_AFTER_S", 0.2)
    monkeypatch.setattr("highwater.client.cluster.offset_lookup._ATTEMPT_S", 0.2)
    monkeypatch.setattr("highwater.client.cluster.cluster.METADATA_TIMEOUT_S", 0.2)
    fill(cluster.topics["t"].partitions[0], 0, 50)
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100) as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 50)) == 50
        cluster.brokers[1].awake.clear()
        asked = len(cluster.brokers[1].fetch_requests)
        await cluster.until(lambda: len(cluster.brokers[1].fetch_requests) > asked)
        fill(cluster.topics["t"].partitions[0], 50, 50)
        cluster.move_leader("t", 0, 2)
        async with asyncio.timeout(5):
            assert [record.offset for record in await read(consumer, 50)] == list(range(50, 100))
            assert (await consumer.end_offsets([T0])) == {T0: 100}
        cluster.brokers[1].awake.set()


async def test_a_slow_broker_is_waited_for_at_the_start(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.METADATA_TIMEOUT_S", 0.1)
    slow = cluster.brokers[1]
    slow.awake.clear()
    starting = asyncio.create_task(Consumer(bootstrap=[slow.address]).start())
    await cluster.until(lambda: slow.metadata_requests == 3)
    slow.awake.set()
    await (await starting).stop()
    slow.awake.clear()
    with pytest.raises(RequestTimedOutError, match=slow.address):
        await Consumer(bootstrap=[slow.address], request_timeout_ms=300, max_block_ms=300).start()
    slow.awake.set()


async def test_a_topic_not_asked_for_before_does_not_wait_between_refreshes(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.client.cluster.refresh_pace.MIN_REFRESH_INTERVAL_S", 3600.0)
    async with Consumer(bootstrap=cluster.bootstrap) as consumer:
        async with asyncio.timeout(30):
            assert await consumer.end_offsets([("t", 0)]) == {TopicPartition("t", 0): 0}


async def test_paused_partitions_rest(cluster: ClusterDouble) -> None:
    for partition in cluster.topics["t"].partitions:
        fill(partition, 0, 10)
    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.pause(T0)
        assert {record.partition for record in await read(consumer, 10)} == {1}
        assert await consumer.poll(30) == []
        consumer.resume(T0)
        assert {record.partition for record in await read(consumer, 10)} == {0}
        with pytest.raises(InvalidRequestError, match="t-5 is not assigned"):
            consumer.seek(("t", 5), 0)


async def test_refusals_reach_the_caller(cluster: ClusterDouble) -> None:
    with pytest.raises(UnknownTopicError, match="'nope' does not exist"):
        await Consumer("nope", bootstrap=cluster.bootstrap).start()
    with pytest.raises(InvalidRequestError, match="auto_offset_reset"):
        Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="newest")  # type: ignore[arg-type]
    cluster.brokers[1].fetch_error = lambda partition: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    consumer = await Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest").start()
    consumer.assign([T0])
    with pytest.raises(
        HighwaterError, match="t-0 at offset 0: a batch has columns where rows are wanted: accept columns"
    ):
        await consumer.poll(5000)
    await consumer.stop()
    with pytest.raises(ClientClosedError, match="was stopped"):
        await consumer.poll()


@pytest.mark.parametrize("columnar", [False, True])
async def test_what_compaction_has_left_is_read_over_gaps(cluster: ClusterDouble, columnar: bool) -> None:
    partition = cluster.topics["t"].partitions[0]
    for keep in ([1, 3], [], [], [9], []):
        values = [b"%d" % number for number in range(10)]
        rows = [Record(0, 5, value, value, ()) for value in values]
        whole = encode_lists([5] * 10, values, values) if columnar else encode_rows(rows)
        left = retain(whole, 0, np.isin(np.arange(10), keep))
        assert partition.append(read_header(left), left)[0] is ErrorCode.NONE
    expected = [1, 3, 39]
    async with Consumer(bootstrap=cluster.bootstrap) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert [record.offset for record in await read(consumer, 3)] == expected
        async with asyncio.timeout(10):
            while await consumer.position(T0) < 50:  # the last batch has no record left
                assert not await consumer.poll(10)
        consumer.seek(T0, 4)
        async with asyncio.timeout(10):
            table = await consumer.poll_table(1000)
            while not table.num_rows:
                table = await consumer.poll_table(1000)
        assert table.column("offset").to_pylist() == [39]


async def test_seeks_that_are_awaited_know_their_positions(cluster: ClusterDouble) -> None:
    fill(cluster.topics["t"].partitions[0], 0, 100)
    async with Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.seek_to_end()
        fill(cluster.topics["t"].partitions[0], 100, 50)
        assert [record.offset for record in await read(consumer, 50)] == list(range(100, 150))
        await consumer.seek_to_beginning(T0)
        assert await consumer.position(T0) == 0
        seeking = consumer.seek_to_end(T0)
        consumer.seek(T0, 70)  # the last one counts
        await seeking
        assert await consumer.position(T0) == 70
        with pytest.raises(InvalidRequestError, match="t-9 is not assigned"):
            consumer.seek_to_beginning(("t", 9))


async def test_a_seek_without_a_leader_ends_when_it_is_awaited(cluster: ClusterDouble) -> None:
    async with Consumer("t", bootstrap=cluster.bootstrap, request_timeout_ms=300) as consumer:
        await consumer.position(T0)
        cluster.topics["t"].partitions[0].leader = -1
        cluster.topics["t"].partitions[0].leader_epoch += 1
        with pytest.raises(RequestTimedOutError, match="the position of t-0 could not be looked up in 0.3 s"):
            await consumer.seek_to_beginning(T0)


@pytest.mark.parametrize(
    ("topics", "sentence"),
    [
        (["127.0.0.1:9092"], "'127.0.0.1:9092' is no topic; brokers are named by bootstrap='127.0.0.1:9092'"),
        (["unix:/run/broker.sock"], "brokers are named by bootstrap="),
        (["a,b"], r"several are several arguments: Consumer\('a', 'b'\)"),
        ([["a", "b"]], r"a topic is a str, not list; several: Consumer\('a', 'b'\)"),
    ],
)
async def test_what_is_no_topic_is_refused_before_anything_is_asked(topics: list[Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        Consumer(*topics)
    consumer = Consumer()
    consumer._running = True
    with pytest.raises(InvalidRequestError, match=sentence):
        await consumer.subscribe(topics)
