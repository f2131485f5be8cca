"""A replica-manager over real log-storage and etcd, one replica: produce, fetch, instructions, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from etcd_proxy import EtcdProxy, until
from replica_manager_cluster import TestCluster, Topic, eventually, fetch_request, rows, to_key

from highwater.errors import ErrorCode, UserError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.records import decode
from highwater.v1 import broker_pb2, replica_control_pb2


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as running:
        yield running


async def test_what_is_produced_can_be_fetched_with_its_offsets(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    first = await cluster[0].produce(topic.key, rows(b"a", b"b"))
    second = await cluster[0].produce(topic.key, rows(b"c"))
    assert (first.error.code, first.base_offset, first.last_offset) == (0, 0, 1)
    assert (second.base_offset, second.last_offset) == (2, 2)

    fetched = await cluster[0].fetch(topic.key, 0)
    assert fetched.high_watermark == 3
    batch = decode(fetched.records)
    assert [(r.offset, r.value) for r in batch.records()] == [(0, b"a"), (1, b"b")]
    assert batch.header.partition_leader_epoch == 0
    assert decode((await cluster[0].fetch(topic.key, 2)).records).records()[0].value == b"c"


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_each_kind_of_acks_appends(cluster: TestCluster, acks: int) -> None:
    topic = await cluster.create_topic("orders")
    result = await cluster[0].produce(topic.key, rows(b"a"), acks=acks)
    assert result.error.code == ErrorCode.NONE
    assert result.base_offset == (-1 if acks == 0 else 0)
    fetched = await cluster[0].fetch(topic.key, 0, max_wait_ms=5000)
    assert decode(fetched.records).records()[0].value == b"a"


async def test_other_acks_are_refused(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    result = await cluster[0].produce(topic.key, rows(b"a"), acks=2)
    assert result.error.code == ErrorCode.INVALID_REQUIRED_ACKS
    assert not result.error.retriable


async def test_a_fetch_waits_for_data_and_is_answered_as_soon_as_it_is_committed(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    waiting = asyncio.create_task(cluster[0].fetch(topic.key, 0, max_wait_ms=10_000))

    async def registered() -> bool:
        manager = cluster[0].replica_manager
        assert manager is not None
        return manager.replica_manager.purgatory.consumers.waits_for(topic.key)

    await eventually(registered, "the fetch waits")
    await cluster[0].produce(topic.key, rows(b"a"))
    async with asyncio.timeout(5):
        assert decode((await waiting).records).records()[0].value == b"a"


async def test_a_newer_request_of_a_stream_ends_the_wait_of_the_one_before(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    stream = cluster[0].stub.FetchStream()
    for number in (1, 2):
        request = fetch_request(topic.key, 0, max_wait_ms=30_000 if number == 1 else 0)
        request.correlation_id = number
        request.consumer.SetInParent()
        await stream.write(request)
    async with asyncio.timeout(5):
        assert [(await stream.read()).correlation_id for _ in range(2)] == [1, 2]
    stream.cancel()


async def test_a_consumer_is_told_again_only_what_changed(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    stream = cluster[0].stub.FetchStream()
    request = fetch_request(topic.key, 0)
    request.consumer.SetInParent()
    await stream.write(request)
    assert len((await stream.read()).results) == 1
    await stream.write(request)
    assert len((await stream.read()).results) == 0
    await cluster[0].produce(topic.key, rows(b"a"))
    await stream.write(request)
    assert (await stream.read()).results[0].high_watermark == 1
    stream.cancel()


async def test_a_produce_stream_appends_in_the_order_of_its_requests(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    stream = cluster[0].stub.ProduceStream()
    for number in range(50):
        part = broker_pb2.ProducePartition(partition=to_key(topic.key), records=rows(b"%d" % number))
        await stream.write(
            broker_pb2.ProduceRequest(correlation_id=number, acks=-1, timeout_ms=5000, partitions=[part])
        )
    await stream.done_writing()
    answers = {response.correlation_id: response.results[0].base_offset async for response in stream}
    assert answers == {number: number for number in range(50)}


async def test_duplicates_get_their_old_offsets_and_what_is_behind_them_is_appended(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    batches = [rows(b"%d" % n, producer=(7, 0, n)) for n in range(5)]
    stream = cluster[0].stub.ProduceStream()
    for number, index in enumerate([0, 1, 0, 1, 2, 3, 4]):  # the first two are sent again before they are answered
        part = broker_pb2.ProducePartition(partition=to_key(topic.key), records=batches[index])
        await stream.write(
            broker_pb2.ProduceRequest(correlation_id=number, acks=-1, timeout_ms=5000, partitions=[part])
        )
    await stream.done_writing()
    answers = {response.correlation_id: response.results[0] async for response in stream}
    assert [answers[n].error.code for n in range(7)] == [0] * 7
    assert [answers[n].base_offset for n in range(7)] == [0, 1, 0, 1, 2, 3, 4]


async def test_sequences_out_of_order_are_refused_and_the_rest_goes_on(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    assert (await cluster[0].produce(topic.key, rows(b"a", producer=(7, 0, 0)))).error.code == ErrorCode.NONE
    refused = await cluster[0].produce(topic.key, rows(b"c", producer=(7, 0, 2)))
    assert refused.error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await cluster[0].produce(topic.key, rows(b"b", producer=(7, 0, 1)))).base_offset == 1


async def test_bytes_that_are_no_batch_are_refused(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    assert (await cluster[0].produce(topic.key, b"x" * 100)).error.code == ErrorCode.CORRUPT_MESSAGE
    assert (await cluster[0].produce(topic.key, b"")).error.code == ErrorCode.INVALID_REQUEST
    corrupt = bytearray(rows(b"a"))
    corrupt[-1] ^= 1
    assert (await cluster[0].produce(topic.key, bytes(corrupt))).error.code == ErrorCode.CORRUPT_MESSAGE


async def test_a_compacted_topic_takes_no_record_without_a_key(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", config={"cleanup.policy": "compact"})
    assert (await cluster[0].produce(topic.key, rows(b"a", key=None))).error.code == ErrorCode.INVALID_RECORD
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_an_unknown_partition_is_said_to_be_unknown(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", instruct=False)
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await cluster[0].fetch(topic.key)).error.code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_too_few_in_sync_replicas_refuse_acks_all_only(cluster: TestCluster) -> None:
    # Two are assigned, one of them nobody has ever seen.
    topic = await cluster.create_topic("orders", config={"min.insync.replicas": "2"}, instruct=False)
    topic = type(topic)(topic.name, topic.key, (0, 1), topic.config, topic.version)
    await cluster.instruct(0, topic)
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await cluster[0].produce(topic.key, rows(b"a"), acks=1)).error.code == ErrorCode.NONE
    fetched = await cluster[0].fetch(topic.key)
    assert (fetched.high_watermark, fetched.records) == (0, b"")  # RULES 5.2, 5.7: it is held, and no error


async def test_fetches_out_of_range_and_of_other_epochs_are_refused(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    topic = await cluster.elect(topic, 0)
    assert (await cluster[0].fetch(topic.key, 5)).error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    older = await cluster[0].fetch(topic.key, 0, leader_epoch=0)
    assert (older.error.code, older.leader, older.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 0, 1)
    assert (await cluster[0].fetch(topic.key, 0, leader_epoch=2)).error.code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_instructions_of_deposed_controllers_and_for_earlier_registrations_are_refused(
    cluster: TestCluster,
) -> None:
    topic = await cluster.create_topic("orders")
    await cluster.instruct(0, topic, controller_epoch=5)
    response = await cluster.instruct(0, topic, controller_epoch=4)
    assert response.error.code == ErrorCode.STALE_CONTROLLER_EPOCH
    response = await cluster.instruct(0, topic, controller_epoch=5, broker_epoch=cluster[0].broker_epoch - 1)
    assert response.error.code == ErrorCode.STALE_BROKER_EPOCH


async def test_older_states_are_refused_and_equal_ones_change_nothing(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    newer = await cluster.elect(topic, 0)
    await cluster[0].produce(topic.key, rows(b"a"))
    again = await cluster.instruct(0, newer)
    assert again.results[0].error.code == ErrorCode.NONE
    assert (await cluster.instruct(0, topic)).results[0].error.code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await cluster[0].produce(topic.key, rows(b"b"))).base_offset == 1


async def test_log_storage_restarted_alone_costs_an_election_and_loses_nothing(cluster: TestCluster) -> None:
    trio = cluster[0]
    topic = await cluster.create_topic("orders")
    await trio.produce(topic.key, rows(b"a"))
    before = trio.broker_epoch
    await trio.stop_log_storage()
    refused = await trio.produce(topic.key, rows(b"b"))
    assert refused.error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LOG_STORAGE_ERROR)
    await trio.start_log_storage()
    assert await trio.registered(above=before) > before  # RULES 1.4

    # RULES 3.5: not under the old epoch.
    assert (await cluster.instruct(0, topic)).results[0].error.code != ErrorCode.NONE
    assert (await trio.produce(topic.key, rows(b"b"))).error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.elect(topic, 0)
    assert (await trio.produce(topic.key, rows(b"b"))).base_offset == 1
    assert decode((await trio.fetch(topic.key, 0)).records).records()[0].value == b"a"


async def test_a_broken_append_stream_is_settled_under_the_same_epoch(cluster: TestCluster) -> None:
    trio = cluster[0]
    assert trio.log_storage is not None
    await trio.stop_replica_manager()
    async with EtcdProxy(trio.log_storage.addresses[1]) as proxy:
        trio.log_storage_address = proxy.address
        await trio.start_replica_manager()
        topic = await cluster.create_topic("orders")
        await trio.produce(topic.key, rows(b"a", producer=(7, 0, 0)))
        epoch = trio.broker_epoch
        async with proxy.swallowing_answers():
            unknown = asyncio.create_task(trio.produce(topic.key, rows(b"b", producer=(7, 0, 1))))
            await until(lambda: proxy.swallowed_bytes > 0)
        async with asyncio.timeout(5):
            assert (await unknown).error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # RULES 5.4

        async def again() -> broker_pb2.ProduceResult | None:
            result = await trio.produce(topic.key, rows(b"b", producer=(7, 0, 1)))
            return result if result.error.code == ErrorCode.NONE else None

        result = await eventually(again, "the leader goes on")
        assert result.base_offset == 1  # RULES 3.4, 6.1: it had been written, and is written once
        assert (await trio.produce(topic.key, rows(b"c", producer=(7, 0, 2)))).base_offset == 2
        assert trio.broker_epoch == epoch  # no election was needed
        await trio.stop_replica_manager()


async def test_a_broker_with_the_logs_of_another_cluster_does_not_start(cluster: TestCluster) -> None:
    trio = cluster[0]
    await trio.stop_replica_manager()
    await cluster.store.put(cluster.keys.cluster_id, b"another")
    with pytest.raises(AssertionError):
        async with asyncio.timeout(5):
            await trio.start_replica_manager(registered_within_s=0.5)
    assert trio.replica_manager is not None
    with pytest.raises(UserError, match="belong to cluster"):
        trio.replica_manager.failed.result()


async def test_the_replica_manager_restarted_alone_registers_anew_and_reads_its_log_back(cluster: TestCluster) -> None:
    trio = cluster[0]
    topic = await cluster.create_topic("orders")
    await trio.produce(topic.key, rows(b"a"))
    before = trio.broker_epoch
    await trio.stop_replica_manager()
    await trio.start_replica_manager()
    assert trio.broker_epoch > before
    assert (await cluster.instruct(0, topic)).results[0].error.code != ErrorCode.NONE  # RULES 3.5
    await cluster.elect(topic, 0)
    assert decode((await trio.fetch(topic.key, 0)).records).records()[0].value == b"a"


async def test_a_broker_that_cannot_confirm_its_lease_takes_acks_all_only(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await cluster.create_topic("orders")
    manager = cluster[0].replica_manager
    assert manager is not None
    monkeypatch.setattr(manager.replica_manager, "lease_confirmed", lambda: False)
    for acks in (0, 1):
        result = await cluster[0].produce(topic.key, rows(b"a"), acks=acks)
        assert result.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_a_registration_that_vanishes_ends_leadership_and_is_made_again(cluster: TestCluster) -> None:
    trio = cluster[0]
    topic = await cluster.create_topic("orders")
    before = trio.broker_epoch
    await cluster.store.txn((), [_delete(cluster.keys.broker(0))])
    assert await trio.registered(above=before) > before
    assert (await trio.produce(topic.key, rows(b"a"))).error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.elect(topic, 0)
    assert (await trio.produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_a_topic_is_deleted_only_when_it_is_gone_and_can_be_made_again_under_its_name(
    cluster: TestCluster,
) -> None:
    topic = await cluster.create_topic("orders")
    await cluster[0].produce(topic.key, rows(b"old"))
    kept = await cluster.stop_replica(0, topic)
    assert kept.results[0].error.code == ErrorCode.INVALID_REQUEST  # RULES 9.3: etcd says that it is wanted
    await cluster.delete_topic(topic)
    deleted = await cluster.stop_replica(0, topic)
    assert deleted.results[0].error.code == ErrorCode.NONE

    again = await cluster.create_topic("orders")
    assert (await cluster[0].produce(again.key, rows(b"new"))).base_offset == 0
    assert (await cluster[0].produce(topic.key, rows(b"lost"))).error.code != ErrorCode.NONE  # RULES 1.1


async def test_a_topic_made_again_while_the_broker_was_away_takes_the_place_of_the_old_one(
    cluster: TestCluster,
) -> None:
    trio = cluster[0]
    topic = await cluster.create_topic("orders")
    await trio.produce(topic.key, rows(b"old"))
    await trio.stop_replica_manager()
    await cluster.delete_topic(topic)
    await trio.start_replica_manager()
    again = await cluster.create_topic("orders")
    assert (await trio.produce(again.key, rows(b"new"))).base_offset == 0
    assert decode((await trio.fetch(again.key, 0)).records).records()[0].value == b"new"


async def test_offsets_are_listed_and_epochs_ended(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    await cluster[0].produce(topic.key, rows(b"a", b"b"))
    topic = await cluster.elect(topic, 0)
    await cluster[0].produce(topic.key, rows(b"c"))

    async def listed(timestamp: int) -> int:
        response = await cluster[0].stub.ListOffsets(
            broker_pb2.ListOffsetsRequest(
                replica_id=-1,
                partitions=[
                    broker_pb2.ListOffsetsPartition(partition=to_key(topic.key), leader_epoch=-1, timestamp=timestamp)
                ],
            )
        )
        assert response.results[0].error.code == ErrorCode.NONE
        return int(response.results[0].offset)

    assert await listed(-1) == 3
    assert await listed(-2) == 0
    assert await listed(1_700_000_000_001) == 1
    response = await cluster[0].stub.OffsetForLeaderEpoch(
        broker_pb2.OffsetForLeaderEpochRequest(
            partitions=[broker_pb2.EpochPartition(partition=to_key(topic.key), current_leader_epoch=1, leader_epoch=0)]
        )
    )
    assert (response.results[0].leader_epoch, response.results[0].end_offset) == (0, 2)


async def test_records_are_deleted_up_to_the_high_watermark(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    await cluster[0].produce(topic.key, rows(b"a", b"b"))
    await cluster[0].produce(topic.key, rows(b"c"))

    async def delete(offset: int) -> broker_pb2.DeleteRecordsResult:
        response = await cluster[0].stub.DeleteRecords(
            broker_pb2.DeleteRecordsRequest(
                timeout_ms=5000,
                partitions=[broker_pb2.DeleteRecordsPartition(partition=to_key(topic.key), offset=offset)],
            )
        )
        result: broker_pb2.DeleteRecordsResult = response.results[0]
        return result

    assert (await delete(4)).error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await delete(2)).low_watermark == 2
    assert (await cluster[0].fetch(topic.key, 0)).error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert decode((await cluster[0].fetch(topic.key, 2)).records).records()[0].value == b"c"


async def test_metadata_names_topics_leaders_and_brokers(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders")
    await told_of_everything(cluster, topic)
    response = await cluster[0].stub.Metadata(broker_pb2.MetadataRequest(topics=["orders", "none"]))
    assert [broker.broker_id for broker in response.brokers] == [0]
    found, missing = response.topics
    assert found.topic_id == topic.key.topic_id
    assert (found.partitions[0].leader, list(found.partitions[0].isr)) == (0, [0])
    assert missing.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_that_has_not_heard_of_all_topics_answers_of_none(cluster: TestCluster) -> None:
    """RULES 9.4. Nor of the one that it hosts, of which it may have been told some of the partitions."""
    topic = await cluster.create_topic("orders")

    async def asked(**what: Any) -> list[int]:
        response = await cluster[0].stub.Metadata(broker_pb2.MetadataRequest(**what))
        return [found.error.code for found in response.topics]

    assert await asked() == []
    of_topics: list[dict[str, Any]] = [
        {"all_topics": True},
        {"topics": ["orders", "none"]},
        {"topic_ids": [b"n" * 16]},
        {"topics": ["orders"], "topic_ids": [topic.key.topic_id]},
    ]
    for what in of_topics:
        with pytest.raises(grpc.aio.AioRpcError, match="has not told this broker of all topics yet") as caught:
            await asked(**what)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await told_of_everything(cluster, topic)
    assert [await asked(**what) for what in of_topics] == [
        [0],
        [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_ID],
        [0, 0],
    ]


async def test_producer_ids_are_given_once(cluster: TestCluster) -> None:
    given = [(await cluster[0].stub.InitProducerId(broker_pb2.InitProducerIdRequest())).producer_id for _ in range(3)]
    assert len(set(given)) == 3


async def told_of_everything(cluster: TestCluster, topic: Topic) -> None:
    """As a controller does first of all. `topic` is all there is."""
    told = await cluster[0].control.UpdateMetadata(
        replica_control_pb2.UpdateMetadataRequest(
            controller_id=9,
            controller_epoch=cluster.controller_epoch,
            full=True,
            topics=[replica_control_pb2.TopicState(topic=topic.name, topic_id=topic.key.topic_id)],
        )
    )
    assert told.error.code == ErrorCode.NONE


def _delete(key: str) -> object:
    from highwater.metadata.store.transactions import Delete

    return Delete(key)
