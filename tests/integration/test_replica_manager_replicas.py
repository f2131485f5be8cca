"""Three brokers, real fetchers: acknowledgement, ISR changes in etcd, changes of leader, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from etcd_proxy import until
from replica_manager_cluster import TestCluster, Topic, eventually, fetch_request, rows

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.records import iter_batches
from highwater.v1 import broker_pb2

TWO_OF_THREE = {"min.insync.replicas": "2"}


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=3, with_fetchers=True) as running:
        yield running


async def isr_becomes(cluster: TestCluster, topic: Topic, isr: tuple[int, ...]) -> None:
    async def reached() -> bool:
        return (await cluster.state(topic)).state.isr == isr

    await eventually(reached, f"the ISR becomes {isr}")


async def test_acks_all_waits_for_every_in_sync_replica(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2), TWO_OF_THREE)
    for number in range(20):
        result = await cluster[0].produce(topic.key, rows(b"%d" % number))
        assert (result.error.code, result.base_offset) == (ErrorCode.NONE, number)
    for broker_id in (1, 2):
        copied = await cluster[broker_id].fetch(topic.key, 0, debug=True)
        leaders = await cluster[0].fetch(topic.key, 0, debug=True)
        assert copied.records == leaders.records  # byte for byte
        assert sum(1 for _ in iter_batches(copied.records)) == 20


async def test_the_isr_shrinks_in_etcd_when_a_session_closes_and_grows_when_it_is_back(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2), TWO_OF_THREE)
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE
    await cluster[2].stop_fetcher()
    assert (await cluster[0].produce(topic.key, rows(b"b"))).error.code == ErrorCode.NONE  # after the session's 500 ms
    await isr_becomes(cluster, topic, (0, 1))
    notes = await cluster.store.get_prefix(cluster.keys.isr_changes)
    assert notes.entries  # RULES 2.5
    await cluster[2].start_fetcher()
    await isr_becomes(cluster, topic, (0, 1, 2))


async def test_below_the_minimum_nothing_is_acknowledged_and_nothing_is_shown(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2), TWO_OF_THREE)
    await cluster[0].produce(topic.key, rows(b"a"))
    await cluster[1].stop_fetcher()
    await cluster[2].stop_fetcher()
    await isr_becomes(cluster, topic, (0,))
    assert (await cluster[0].produce(topic.key, rows(b"b"))).error.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await cluster[0].produce(topic.key, rows(b"b"), acks=1)).error.code == ErrorCode.NONE
    fetched = await cluster[0].fetch(topic.key, 1)
    assert (fetched.high_watermark, fetched.records) == (1, b"")
    await cluster[1].start_fetcher()

    async def shown() -> bool:
        return bool((await cluster[0].fetch(topic.key, 1)).records)

    await eventually(shown, "the high watermark moves on")


async def test_a_produce_that_is_not_replicated_in_time_times_out_and_is_kept(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2))
    await cluster[0].produce(topic.key, rows(b"a"))
    await cluster[2].stop_fetcher()
    late = await cluster[0].produce(topic.key, rows(b"b"), timeout_ms=50)
    assert late.error.code == ErrorCode.REQUEST_TIMED_OUT
    assert late.error.retriable
    await isr_becomes(cluster, topic, (0, 1))
    assert (await cluster[0].produce(topic.key, rows(b"c"))).base_offset == 2


async def test_a_waiting_produce_fails_when_its_leader_is_deposed(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2), TWO_OF_THREE)
    await cluster[0].produce(topic.key, rows(b"a"))
    await cluster[2].stop_fetcher()
    waiting = asyncio.create_task(cluster[0].produce(topic.key, rows(b"b"), timeout_ms=30_000))
    await eventually(lambda: _log_end(cluster, topic, 2), "the record is appended")
    await cluster.elect(topic, 1)
    async with asyncio.timeout(5):
        assert (await waiting).error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # RULES 5.4


async def test_the_next_leader_goes_on_where_the_old_one_was_and_the_old_one_follows(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2), TWO_OF_THREE)
    for number in range(5):
        await cluster[0].produce(topic.key, rows(b"%d" % number))
    topic = await cluster.elect(topic, 1)
    refused = await cluster[0].produce(topic.key, rows(b"x"))
    assert (refused.error.code, refused.leader, refused.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 1)
    assert "it last heard of broker 1, under leader epoch 1: ask for Metadata" in refused.error.message
    result = await cluster[1].produce(topic.key, rows(b"5"))
    assert (result.error.code, result.base_offset) == (ErrorCode.NONE, 5)
    for broker_id in (0, 2):
        copied = await cluster[broker_id].fetch(topic.key, 5, debug=True)
        assert next(iter_batches(copied.records))[1].partition_leader_epoch == 1


async def test_what_only_the_deposed_leader_had_is_cut_away(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1), TWO_OF_THREE)
    await cluster[0].produce(topic.key, rows(b"a"))
    await cluster[1].stop_fetcher()
    await cluster[0].produce(topic.key, rows(b"only here"), acks=1)
    topic = await cluster.elect(topic, 1)
    await cluster[1].start_fetcher()
    assert (await cluster[1].produce(topic.key, rows(b"b"))).base_offset == 1
    old = await cluster[0].fetch(topic.key, 0, debug=True)
    new = await cluster[1].fetch(topic.key, 0, debug=True)
    assert old.records == new.records


async def test_fetches_under_another_leader_epoch_acknowledge_nothing(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1), TWO_OF_THREE)
    topic = await cluster.elect(topic, 0)
    stream = cluster[0].stub.FetchStream()
    for leader_epoch, expected in ((0, ErrorCode.FENCED_LEADER_EPOCH), (9, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        request = fetch_request(topic.key, 0, leader_epoch=leader_epoch)
        request.partitions[0].last_epoch = -1
        request.replica.broker_id, request.replica.fetcher_id = 1, 5
        request.replica.broker_epoch = cluster[1].broker_epoch
        await stream.write(request)
        assert (await stream.read()).results[0].error.code == expected
    stream.cancel()


async def test_the_newest_stream_of_a_session_is_the_one_that_counts(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1))
    request = fetch_request(topic.key, 0, leader_epoch=0)
    request.partitions[0].last_epoch = -1
    request.replica.broker_id, request.replica.fetcher_id = 1, 5
    request.replica.broker_epoch = cluster[1].broker_epoch
    older, newer = cluster[0].stub.FetchStream(), cluster[0].stub.FetchStream()
    await older.write(request)
    assert (await older.read()).results[0].error.code == ErrorCode.NONE
    await newer.write(request)
    assert (await newer.read()).results[0].error.code == ErrorCode.NONE
    await older.write(request)
    assert (await older.read()).error.code == ErrorCode.FETCH_SESSION_STALE
    older.cancel()
    newer.cancel()


async def test_a_follower_that_hears_of_a_leader_first_waits_for_it(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1), instruct=False)
    stream = cluster[0].stub.FetchStream()
    request = fetch_request(topic.key, 0, max_wait_ms=10_000, leader_epoch=0)
    request.partitions[0].last_epoch = -1
    request.replica.broker_id, request.replica.fetcher_id = 1, 5
    request.replica.broker_epoch = cluster[1].broker_epoch
    await stream.write(request)
    manager = cluster[0].replica_manager
    assert manager is not None
    await until(lambda: manager.replica_manager.leadership_waits)
    await cluster.instruct(0, topic)
    async with asyncio.timeout(5):
        assert (await stream.read()).results[0].error.code == ErrorCode.NONE
    # Where the leader never hears of it, the follower is told in the end.
    request.partitions[0].leader_epoch = 7
    request.max_wait_ms = 50
    await stream.write(request)
    async with asyncio.timeout(5):
        assert (await stream.read()).results[0].error.code == ErrorCode.UNKNOWN_LEADER_EPOCH
    stream.cancel()


async def test_a_follower_whose_log_storage_restarts_is_fetched_for_again(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1), TWO_OF_THREE)
    await cluster[0].produce(topic.key, rows(b"a"))
    before = cluster[1].broker_epoch
    await cluster[1].stop_log_storage()
    await cluster[1].start_log_storage()
    await cluster[1].registered(above=before)

    async def acknowledged() -> bool:
        return (await cluster[0].produce(topic.key, rows(b"b"))).error.code == ErrorCode.NONE

    await eventually(acknowledged, "the follower is in sync again")


async def test_consumers_see_nothing_above_the_high_watermark(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1))
    await cluster[0].produce(topic.key, rows(b"a"))
    await cluster[1].stop_fetcher()
    await cluster[0].produce(topic.key, rows(b"b"), acks=1)
    fetched = await cluster[0].fetch(topic.key, 0)
    assert [header.base_offset for _, header in iter_batches(fetched.records)] == [0]
    between = await cluster[0].fetch(topic.key, 1)
    assert (between.error.code, between.records) == (ErrorCode.NONE, b"")
    whole = await cluster[0].fetch(topic.key, 0, debug=True)
    assert [header.base_offset for _, header in iter_batches(whole.records)] == [0, 1]


async def test_records_are_deleted_on_every_replica(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", (0, 1, 2), TWO_OF_THREE)
    for number in range(4):
        await cluster[0].produce(topic.key, rows(b"%d" % number))
    async with asyncio.timeout(10):
        response = await cluster[0].stub.DeleteRecords(
            broker_pb2.DeleteRecordsRequest(
                timeout_ms=8000,
                partitions=[
                    broker_pb2.DeleteRecordsPartition(
                        partition=fetch_request(topic.key, 0).partitions[0].partition, offset=3
                    )
                ],
            )
        )
    assert response.results[0].low_watermark == 3
    for broker_id in range(3):
        assert (await cluster[broker_id].fetch(topic.key, 0, debug=True)).error.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def _log_end(cluster: TestCluster, topic: Topic, log_end_offset: int) -> bool:
    fetched = await cluster[0].fetch(topic.key, 0, debug=True)
    return bool(fetched.log_end_offset == log_end_offset)
