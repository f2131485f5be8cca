"""The producer against the cluster double: nothing twice, nothing out of order, and errors that say what to do."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from cluster_double import ClusterDouble, Fault

from highwater.client import (
    BufferExhaustedError,
    ClientClosedError,
    DeliveryTimeoutError,
    HighwaterError,
    InvalidRequestError,
    NetworkError,
    Producer,
    RecordTooLargeError,
    SequenceBrokenError,
    UnknownTopicError,
)
from highwater.client.producer.partitioner import partition_for_key
from highwater.errors import ErrorCode
from highwater.records import Codec
from highwater.rpc.errors import to_proto
from highwater.v1 import broker_pb2


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that nobody knows is not looked for as long as in earnest."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.3)


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


async def test_a_record_comes_back_with_its_place() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 3)
        async with Producer(cluster.bootstrap) as producer:
            metadata = await producer.send_and_wait(
                "t", b"v", b"k", headers=[("a", b"1"), ("b", None)], timestamp_ms=77
            )
            again = await producer.send_and_wait("t", None, b"k", timestamp_ms=78)
        assert (metadata.topic, metadata.offset, metadata.timestamp_ms) == ("t", 0, 77)
        assert (again.partition, again.offset) == (metadata.partition, 1)
        partition = cluster.topics["t"].partitions[metadata.partition]
        assert partition.values() == [b"v", None]
        header = partition.batches[0][0]
        assert header.producer_id >= 0
        assert (header.base_sequence, header.codec) == (0, Codec.LZ4)


async def test_nothing_is_lost_doubled_or_reordered_when_responses_are_lost_with_five_in_flight() -> None:
    chance = random.Random(7)
    faults = [None, None, None, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.REPEAT]
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t", 2)
        for broker in cluster.brokers.values():
            broker.fault = lambda request: chance.choice(faults)
        async with Producer(
            cluster.bootstrap, batch_size=300, compression="none", retry_backoff_ms=1, retry_backoff_max_ms=5
        ) as producer:
            values = numbered(3000)
            deliveries = []
            for index, value in enumerate(values):
                deliveries.append(await producer.send("t", value, partition=index % 2))
            places = [await delivery for delivery in deliveries]
        for partition in (0, 1):
            log = cluster.topics["t"].partitions[partition]
            assert log.values() == values[partition::2]
            assert [place.offset for place in places[partition::2]] == list(range(1500))
        sent = sum(len(broker.produce_requests) for broker in cluster.brokers.values())
        assert sent > len(log.batches)  # there were retries to survive


async def test_five_batches_are_in_flight_and_not_six() -> None:
    release = asyncio.Event()
    async with ClusterDouble() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        broker.before_answer = release.wait
        async with Producer(cluster.bootstrap, batch_size=100, compression="none") as producer:
            deliveries = [await producer.send("t", b"x" * 90) for _ in range(9)]
            await cluster.until(lambda: len(broker.produce_requests) == 5)
            await producer._cluster.refresh()  # a whole round trip later there is still no sixth
            assert len(broker.produce_requests) == 5
            release.set()
            for delivery in deliveries:
                await delivery
        assert len(cluster.topics["t"].partitions[0].values()) == 9


async def test_the_new_leader_is_found_after_not_leader() -> None:
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            cluster.move_leader("t", 0, 2)
            begun = time.monotonic()
            assert (await producer.send_and_wait("t", b"2")).offset == 1
            assert time.monotonic() - begun < 1
        assert len(cluster.brokers[2].produce_requests) == 1


async def test_the_new_leader_is_found_after_the_old_one_died() -> None:
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            await cluster.brokers[1].stop()
            delivery = await producer.send("t", b"2")
            cluster.move_leader("t", 0, 2)
            assert (await delivery).offset == 1


async def test_a_delivery_times_out_and_names_the_last_error() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        cluster.brokers[1].produce_error = lambda partition, header: ErrorCode.NOT_ENOUGH_REPLICAS
        producer = await Producer(cluster.bootstrap, delivery_timeout_ms=1500, retry_backoff_max_ms=50).start()
        delivery = await producer.send("t", b"v")
        with pytest.raises(DeliveryTimeoutError, match="within 1.5 s; the last error was NOT_ENOUGH_REPLICAS"):
            await delivery
        # A try that is on its way when it is given up is judged by the broker all the same.
        await cluster.until(lambda: producer._topics["t"].of(0).queue.in_flight == 0)
        cluster.brokers[1].produce_error = lambda partition, header: ErrorCode.NONE
        assert (await producer.send_and_wait("t", b"w")).offset == 0
        await producer.stop()


async def test_after_a_batch_was_given_up_the_partition_goes_on_under_a_higher_epoch() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        async with Producer(cluster.bootstrap, delivery_timeout_ms=1500, retry_backoff_max_ms=50) as producer:
            await producer.send_and_wait("t", b"1")
            broker.produce_error = lambda partition, header: ErrorCode.NOT_ENOUGH_REPLICAS
            with pytest.raises(DeliveryTimeoutError):
                await producer.send_and_wait("t", b"lost")
            # A try that is on its way when it is given up is judged by the broker all the same.
            await cluster.until(lambda: producer._topics["t"].of(0).queue.in_flight == 0)
            broker.produce_error = lambda partition, header: ErrorCode.NONE
            await producer.send_and_wait("t", b"2")
            await producer.send_and_wait("t", b"3")
        log = cluster.topics["t"].partitions[0]
        assert log.values() == [b"1", b"2", b"3"]
        assert [(header.producer_epoch, header.base_sequence) for header, _ in log.batches] == [(0, 0), (1, 0), (1, 1)]


async def test_a_batch_that_was_given_up_on_its_way_and_appended_after_all_stands_once_in_its_place() -> None:
    held = asyncio.Event()
    async with ClusterDouble() as cluster:
        cluster.create("t")
        broker = cluster.brokers[1]
        async with Producer(cluster.bootstrap, delivery_timeout_ms=1500, retry_backoff_ms=500) as producer:
            await producer.send_and_wait("t", b"1")
            broker.produce_error = lambda partition, header: ErrorCode.NOT_ENOUGH_REPLICAS
            late = await producer.send("t", b"late")
            queue = producer._topics["t"].of(0).queue
            await cluster.until(lambda: queue.retrying)
            broker.before_append = held.wait  # the next try is not judged before it is given up
            broker.produce_error = lambda partition, header: ErrorCode.NONE
            with pytest.raises(DeliveryTimeoutError):
                await late
            assert queue.in_flight == 1
            following = await producer.send("t", b"2")
            held.set()
            assert (await following).offset == 2
            await producer.send_and_wait("t", b"3")
        log = cluster.topics["t"].partitions[0]
        assert log.values() == [b"1", b"late", b"2", b"3"]
        assert [(header.producer_epoch, header.base_sequence) for header, _ in log.batches] == [
            (0, sequence) for sequence in range(4)
        ]


async def test_an_unknown_producer_id_starts_the_partition_anew() -> None:
    async with ClusterDouble() as cluster:
        topic = cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            topic.partitions[0].producers.rebuild([])  # expired
            await producer.send_and_wait("t", b"2")
        assert [header.producer_epoch for header, _ in topic.partitions[0].batches] == [0, 1]
        assert topic.partitions[0].values() == [b"1", b"2"]


async def test_records_lost_by_the_cluster_are_reported_not_papered_over() -> None:
    async with ClusterDouble() as cluster:
        topic = cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"1")
            await producer.send_and_wait("t", b"2")
            topic.partitions[0].truncate(1)  # an unclean election
            with pytest.raises(SequenceBrokenError, match="no longer has records that were acknowledged"):
                await producer.send_and_wait("t", b"3")
            await producer.send_and_wait("t", b"4")
        assert topic.partitions[0].values() == [b"1", b"4"]


async def test_a_full_buffer_holds_send_back_until_it_gives_up() -> None:
    release = asyncio.Event()
    async with ClusterDouble() as cluster:
        cluster.create("t")
        cluster.brokers[1].before_answer = release.wait
        async with Producer(
            cluster.bootstrap,
            buffer_memory=20_000,
            max_request_size=10_000,
            batch_size=2000,
            compression="none",
            max_block_ms=150,
        ) as producer:
            deliveries = []

            async def fill() -> None:
                for _ in range(100):
                    deliveries.append(await producer.send("t", b"x" * 1000))

            with pytest.raises(BufferExhaustedError, match="buffer_memory"):
                await fill()
            assert 15 <= len(deliveries) <= 20
            with pytest.raises(BufferExhaustedError):
                producer.send_nowait("t", b"x" * 1000)
            release.set()
            async with asyncio.timeout(5):
                deliveries += [await producer.send("t", b"x" * 1000) for _ in range(100)]
            for delivery in deliveries:
                await delivery
            assert producer._memory.used_bytes == 0


@pytest.mark.parametrize("acks", [0, 1])
async def test_without_acks_all_there_is_no_producer_id(acks: int) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap, acks=acks) as producer:  # type: ignore[arg-type]
            metadata = await producer.send_and_wait("t", b"v")
        assert metadata.offset == (-1 if acks == 0 else 0)
        assert cluster.brokers[1].produce_requests[0].acks == acks
        assert cluster.topics["t"].partitions[0].batches[0][0].producer_id == -1


async def test_a_lone_record_does_not_linger_and_followers_share_a_batch() -> None:
    release = asyncio.Event()
    async with ClusterDouble() as cluster:
        cluster.create("t")
        cluster.brokers[1].before_answer = release.wait
        async with Producer(cluster.bootstrap, linger_ms=10_000) as producer:
            first = await producer.send("t", b"first")
            await cluster.until(lambda: len(cluster.brokers[1].produce_requests) == 1)
            rest = [await producer.send("t", value) for value in numbered(50)]
            release.set()
            await first
            for delivery in rest:
                await delivery
        assert [header.record_count for header, _ in cluster.topics["t"].partitions[0].batches] == [1, 50]


async def test_few_records_are_rows_many_are_columns_and_a_rows_topic_gets_rows() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("any")
        cluster.create("rows", config={"payload.format": "rows"})
        async with Producer(cluster.bootstrap, linger_ms=1000) as producer:
            await producer.partitions_for("any")
            await producer.partitions_for("rows")
            for topic in ("any", "rows"):
                for value in numbered(100):
                    producer.send_nowait(topic, value)
            await producer.flush()
            await producer.send_and_wait("any", b"alone")
        kinds = [header.columnar for header, _ in cluster.topics["any"].partitions[0].batches]
        assert kinds == [True, False]
        assert not cluster.topics["rows"].partitions[0].batches[0][0].columnar


async def test_a_batch_too_large_for_the_topic_is_halved() -> None:
    async with ClusterDouble() as cluster:
        topic = cluster.create("t")
        topic.partitions[0].max_message_bytes = 2000
        async with Producer(cluster.bootstrap, compression="none", retry_backoff_ms=1) as producer:
            await producer.partitions_for("t")
            deliveries = [producer.send_nowait("t", value * 10) for value in numbered(200)]
            assert [(await delivery).offset for delivery in deliveries] == list(range(200))
            with pytest.raises(RecordTooLargeError):
                await producer.send_and_wait("t", b"x" * 3000)
            await producer.send_and_wait("t", b"after")
        assert topic.partitions[0].values() == [*[value * 10 for value in numbered(200)], b"after"]


async def test_a_batch_above_max_request_size_is_cut_before_it_is_sent() -> None:
    async with ClusterDouble() as cluster:
        topic = cluster.create("t")
        noise = random.Random(1)
        async with Producer(cluster.bootstrap, max_request_size=20_000, batch_size=20_000) as producer:
            values = [b"a" * 1000] * 300 + [noise.randbytes(1000) for _ in range(300)]
            deliveries = [await producer.send("t", value) for value in values]
            assert [(await delivery).offset for delivery in deliveries] == list(range(600))
        assert topic.partitions[0].values() == values
        assert max(header.size_bytes for header, _ in topic.partitions[0].batches) <= 20_000


async def test_flush_raises_what_nobody_awaited_and_only_that() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        cluster.brokers[1].produce_error = lambda partition, header: ErrorCode.INVALID_RECORD
        producer = await Producer(cluster.bootstrap).start()
        await producer.send("t", b"v")
        with pytest.raises(HighwaterError) as caught:
            await producer.flush()
        assert caught.value.code is ErrorCode.INVALID_RECORD
        delivery = await producer.send("t", b"v")
        with pytest.raises(HighwaterError):
            await delivery
        await producer.flush()
        await producer.stop()
        with pytest.raises(ClientClosedError):
            await producer.send("t", b"v", b"k" * 10)


async def test_wrong_input_is_refused_with_a_sentence() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 2)
        with pytest.raises(InvalidRequestError, match="acks"):
            Producer(cluster.bootstrap, acks=2)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="compression is 'lzma'"):
            Producer(cluster.bootstrap, compression="lzma")
        with pytest.raises(InvalidRequestError, match="neither host:port"):
            Producer("localhost")
        async with Producer(cluster.bootstrap, max_request_size=5000) as producer:
            with pytest.raises(InvalidRequestError, match=r"\.encode\(\)"):
                await producer.send("t", "text")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="partitions 0 to 1"):
                await producer.send("t", b"v", partition=2)
            with pytest.raises(RecordTooLargeError, match="max_request_size"):
                await producer.send("t", b"v" * 6000)
            with pytest.raises(UnknownTopicError, match="'nope' does not exist"):
                await producer.send("nope", b"v")


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"a": b"b"}, r"names may repeat; of a dict: list\(headers.items\(\)\)"),
        ([b"ab"], "name must be str, not int"),
        (["a"], r'pairs, such as \[\("source", b"docs"\)\]'),
        ([("a", b"b", b"c")], "pairs, such as"),
        (7, "pairs, such as"),
        ([("a", "b")], r"header must be bytes or None, not str; encode it"),
    ],
)
async def test_headers_that_are_none_are_refused(headers: Any, sentence: str) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t")
        async with Producer(cluster.bootstrap) as producer:
            with pytest.raises(InvalidRequestError, match=sentence):
                await producer.send("t", b"v", headers=headers)


async def test_a_topic_that_is_made_while_it_is_looked_for_is_found_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 30)
    async with ClusterDouble(brokers=2) as cluster, Producer(cluster.bootstrap) as producer, asyncio.timeout(10):
        cluster.acts = False
        first = asyncio.create_task(producer.send_and_wait("t", b"1"))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(producer.send_and_wait("t", b"2"))
        await asyncio.sleep(0.02)
        cluster.create("t")
        assert {(await first).offset, (await second).offset} == {0, 1}
        assert (await producer.send_and_wait("t", b"3")).offset == 2


async def test_a_refused_send_takes_the_topic_from_nobody_who_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.5)
    async with ClusterDouble(brokers=2) as cluster, Producer(cluster.bootstrap) as producer, asyncio.timeout(10):
        cluster.acts = False
        first = asyncio.create_task(producer.send("t", b"1"))
        await asyncio.sleep(0.3)
        second = asyncio.create_task(producer.send_and_wait("t", b"2"))
        with pytest.raises(UnknownTopicError):
            await first
        cluster.create("t")
        assert (await second).offset == 0
        cluster.move_leader("t", 0, 2)
        assert (await producer.send_and_wait("t", b"3")).offset == 1


@pytest.mark.parametrize("knows", [1, 2, 3])
async def test_a_topic_that_one_broker_knows_is_waited_for(knows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just been created: the others have not heard of it yet."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 30)
    async with ClusterDouble(brokers=3) as cluster:
        cluster.create("t")
        lagging = {1, 2, 3} - {knows}

        def as_before(broker_id: int) -> Callable[[broker_pb2.MetadataResponse], None]:
            def view(response: broker_pb2.MetadataResponse) -> None:
                if broker_id in lagging:
                    for topic in response.topics:
                        topic.CopyFrom(
                            broker_pb2.TopicMetadata(
                                topic=topic.topic, error=to_proto(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                            )
                        )

            return view

        for broker_id in lagging:
            cluster.brokers[broker_id].metadata_view = as_before(broker_id)
        async with Producer(cluster.bootstrap) as producer, asyncio.timeout(25):
            assert (await producer.send_and_wait("t", b"v")).offset == 0


async def test_a_topic_is_not_unknown_where_a_broker_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 1.5)
    monkeypatch.setattr("highwater.client.cluster.cluster.METADATA_TIMEOUT_S", 0.5)
    async with ClusterDouble(brokers=2) as cluster, Producer(cluster.bootstrap) as producer:
        cluster.acts = False
        cluster.brokers[2].awake.clear()
        began = time.monotonic()
        with pytest.raises(UnknownTopicError, match="'nope' does not exist"):
            await producer.send("nope", b"v")
        assert time.monotonic() - began >= 1.5
        cluster.brokers[2].awake.set()


async def test_no_broker_is_one_clear_error() -> None:
    with pytest.raises(NetworkError, match=r"no broker could be reached \(tried 127.0.0.1:1\)"):
        await Producer("127.0.0.1:1", max_block_ms=0).start()


async def test_keys_of_a_table_go_where_the_same_keys_go_one_by_one() -> None:
    keys = [b"key-%d" % (number * 7919 % 500) for number in range(5000)]
    values = numbered(5000)
    async with ClusterDouble(brokers=2) as cluster:
        cluster.create("single", 6)
        cluster.create("table", 6)
        async with Producer(cluster.bootstrap) as producer:
            for key, value in zip(keys, values, strict=True):
                await producer.send("single", value, key)
            await producer.flush()
            table = pa.table({"key": pa.array(keys).cast(pa.string()), "value": pa.array(values)})
            metadata = await (await producer.send_table("table", table))
        assert metadata.records == 5000
        assert sum(batch.records for batch in metadata.batches) == 5000
        for partition in range(6):
            expected = cluster.topics["single"].partitions[partition].values()
            assert cluster.topics["table"].partitions[partition].values() == expected


async def test_partitions_that_are_added_get_their_keys() -> None:
    keys = [b"key-%d" % number for number in range(100)]
    async with ClusterDouble() as cluster:
        cluster.create("t", 2)
        async with Producer(cluster.bootstrap, metadata_max_age_ms=50) as producer:
            await producer.send_and_wait("t", b"", b"k")
            cluster.grow("t", 5)
            broker = cluster.brokers[1]
            asked = broker.metadata_requests
            await cluster.until(lambda: broker.metadata_requests > asked + 1)  # the one before it is merged
            assert await producer.partitions_for("t") == 5
            for key in keys:
                assert (await producer.send("t", b"", key)).partition == partition_for_key(key, 5)
            await producer.flush()
        assert all(partition.batches for partition in cluster.topics["t"].partitions)


async def test_a_partition_that_is_named_is_looked_for_once_more() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 1)
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("t", b"")
            cluster.grow("t", 3)
            assert (await producer.send_and_wait("t", b"", partition=1)).partition == 1
            cluster.grow("t", 4)
            await (await producer.send_table("t", pa.table({"value": [b"x"]}), partition=3))
            with pytest.raises(InvalidRequestError, match="partitions 0 to 3"):
                await producer.send("t", b"", partition=4)


async def test_a_table_larger_than_the_buffer_passes_through_it_in_order() -> None:
    count = 20_000
    noise = random.Random(3)
    values = [noise.randbytes(100) for _ in range(count)]
    async with ClusterDouble() as cluster:
        topic = cluster.create("t", 2)
        async with Producer(
            cluster.bootstrap, buffer_memory=300_000, max_request_size=100_000, batch_size=50_000
        ) as producer:
            await producer.send("t", b"before", partition=0)
            table = pa.table({"value": values, "at": pa.array(range(count), pa.timestamp("s"))})
            delivery = await producer.send_table("t", table, timestamp_column="at", partition=0)
            await producer.send("t", b"after", partition=0)
            assert sum(batch.records for batch in (await delivery).batches) == count
        log = topic.partitions[0]
        assert log.values() == [b"before", *values, b"after"]
        assert log.batches[-2][0].max_timestamp == (count - 1) * 1000
        assert max(header.size_bytes for header, _ in log.batches) <= 100_000


async def test_tables_without_keys_spread_and_rows_topics_get_rows() -> None:
    async with ClusterDouble() as cluster:
        topic = cluster.create("t", 3, {"payload.format": "rows"})
        async with Producer(cluster.bootstrap, batch_size=1000) as producer:
            table = pa.table({"value": numbered(3000), "headers": [[{"key": "h", "value": b"1"}]] * 3000})
            await (await producer.send_table("t", table, headers_column="headers"))
            with pytest.raises(InvalidRequestError, match="no column 'data'; it has value, headers"):
                await producer.send_table("t", table, value_column="data")
            with pytest.raises(InvalidRequestError, match="int64"):
                await producer.send_table("t", pa.table({"value": [1]}))
            empty = await (await producer.send_table("t", table.slice(0, 0)))
        assert empty.records == 0
        assert sorted(value or b"" for log in topic.partitions for value in log.values()) == numbered(3000)
        assert all(log.batches and not log.batches[0][0].columnar for log in topic.partitions)
