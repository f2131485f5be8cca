"""A consumer whose calls meet something that goes wrong: nothing waits for ever, no record is passed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cluster_double import ClusterDouble

from highwater.client import ClientClosedError, Consumer, TopicPartition
from highwater.client.consumer import fetch_buffer
from highwater.errors import ErrorCode
from highwater.records import encode_lists, read_header

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    """Of a topic of two partitions with 30 records each, ten a batch."""
    async with ClusterDouble() as running:
        for partition in running.create("t", 2).partitions:
            for _ in range(3):
                encoded = encode_lists([0] * 10, [b"k"] * 10, [b"v"] * 10)
                assert partition.append(read_header(encoded), encoded)[0] is ErrorCode.NONE
        yield running


async def test_a_partition_that_stays_assigned_while_its_position_is_confirmed_goes_on(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.topics["t"].partitions[0].log_start_offset = 10
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        asked, go_on = asyncio.Event(), asyncio.Event()
        confirm = consumer._cluster.confirm

        async def confirm_later() -> None:
            asked.set()
            await go_on.wait()
            await confirm()

        monkeypatch.setattr(consumer._cluster, "confirm", confirm_later)
        consumer.assign([ZERO])
        consumer.seek(ZERO, 3)
        await asyncio.wait_for(asked.wait(), 10)
        consumer.assign([ZERO, ONE])
        consumer.pause(ONE)
        go_on.set()
        assert [record.offset for record in await consumer.poll(5_000, 1)] == [10]


async def test_a_stop_ends_the_wait_for_a_position(cluster: ClusterDouble) -> None:
    cluster.topics["t"].partitions[0].leader = -1
    consumer = await Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest").start()
    consumer.assign([ZERO])
    waiting = asyncio.create_task(consumer.position(ZERO))
    await asyncio.sleep(0)
    await consumer.stop()
    with pytest.raises(ClientClosedError, match="was stopped"):
        await asyncio.wait_for(waiting, 10)


async def test_what_paused_partitions_have_buffered_holds_up_no_other(cluster: ClusterDouble) -> None:
    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest", fetch_max_bytes=1) as consumer:
        consumer.assign([ZERO])
        await cluster.until(lambda: consumer._fetcher.buffers[ZERO].buffered_bytes > 0)
        consumer.pause(ZERO)
        consumer.assign([ZERO, ONE])
        assert {record.partition for record in await consumer.poll(5_000)} == {1}
        consumer.resume(ZERO)
        async with asyncio.timeout(10):
            while {record.partition for record in await consumer.poll(1_000)} != {0}:
                pass


async def test_a_position_may_be_asked_for_while_another_thread_hands_out_the_last_record(
    cluster: ClusterDouble,
) -> None:
    class Records(list[Any]):
        """Of which the last is handed out just when somebody counts them."""

        def __len__(self) -> int:
            buffer.handed_out(3)
            return 3

    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([ZERO])
        assert len(await consumer.poll(5_000, 2)) == 2
        buffer = consumer._fetcher.buffers[ZERO]
        records, _ = buffer.current()
        buffer._records = Records(records[:3])
        assert buffer.position == 2


@pytest.mark.parametrize("at", [1, 2, 4, 6])
@pytest.mark.parametrize("makes", ["consumer_records", "consumer_columns"])
async def test_a_batch_for_which_memory_was_short_is_handed_out_by_the_next_poll(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch, makes: str, at: int
) -> None:
    make, calls = getattr(fetch_buffer, makes), 0

    def fails_once(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise MemoryError
        return make(*arguments, **named)

    monkeypatch.setattr(fetch_buffer, makes, fails_once)
    found: dict[int, list[int]] = {0: [], 1: []}
    consumer = Consumer("t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest")
    async with asyncio.timeout(10), consumer:
        while sum(map(len, found.values())) < 60:
            try:
                if makes == "consumer_records":
                    rows = [(record.partition, record.offset) for record in await consumer.poll()]
                else:
                    table = await consumer.poll_table()
                    rows = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
            except MemoryError:
                continue
            for partition, offset in rows:
                found[partition].append(offset)
    assert calls > at
    assert found == {0: list(range(30)), 1: list(range(30))}


async def test_the_rest_of_a_batch_for_which_memory_was_short_is_handed_out_by_the_next_poll(
    cluster: ClusterDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    async with Consumer(bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([ZERO])
        assert len(await consumer.poll(5_000, 4)) == 4
        with monkeypatch.context() as patched:
            patched.setattr(fetch_buffer, "columns_of_records", fails)
            with pytest.raises(MemoryError):
                await consumer.poll_table()
        assert (await consumer.poll_table())["offset"].to_pylist()[0] == 4
