"""Instructions that cross other events: a registration that is lost, a log that is gone, a topic made again, deletions
that take long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, eventually, rows, to_key

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import CreateAnswer, NewLog, StorageError, StorageUnavailableError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.purge import Purge
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import log_storage_pb2, log_storage_pb2_grpc, replica_control_pb2


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    by_the_test = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1, settings=by_the_test) as running:
        yield running


async def test_an_instruction_for_a_registration_that_is_lost_meanwhile_makes_no_leader(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RULES 1.4: not registered under that broker epoch any more, so it must not begin to lead under it."""
    creating, registered_anew = asyncio.Event(), asyncio.Event()
    create_logs = LogStorageClient.create_logs

    async def slowly(storage: LogStorageClient, logs: Sequence[NewLog]) -> list[CreateAnswer]:
        creating.set()
        await registered_anew.wait()
        return await create_logs(storage, logs)

    topic = await cluster.create_topic("orders", instruct=False)
    before = cluster[0].broker_epoch
    monkeypatch.setattr(LogStorageClient, "create_logs", slowly)
    instructed = asyncio.create_task(cluster.instruct(0, topic))
    await creating.wait()
    await cluster.store.txn((), (Delete(cluster.keys.broker(0)),))
    await cluster[0].registered(above=before)
    registered_anew.set()
    assert (await instructed).error.code == ErrorCode.STALE_BROKER_EPOCH
    produced = await cluster[0].produce(topic.key, rows(b"a"), acks=1)
    assert produced.error.code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("name", ["", "no/topic", "x" * 250], ids=["none", "with a slash", "too long"])
async def test_what_no_topic_is_called_is_not_hosted(cluster: TestCluster, name: str) -> None:
    """Its ISR could be written nowhere, again and again."""
    topic = await cluster.create_topic("orders", instruct=False)
    misnamed = type(topic)(name, topic.key, topic.replicas, topic.config, topic.version)
    refused = await cluster.instruct(0, misnamed)
    assert refused.error.code == ErrorCode.INVALID_TOPIC
    told = replica_control_pb2.UpdateMetadataRequest(
        controller_id=9,
        controller_epoch=cluster.controller_epoch,
        topics=[replica_control_pb2.TopicState(topic=name, topic_id=topic.key.topic_id)],
    )
    assert (await cluster[0].control.UpdateMetadata(told)).error.code == ErrorCode.INVALID_TOPIC
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.UNKNOWN_TOPIC_ID
    await cluster.instruct_all(topic)
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


@pytest.mark.parametrize("config", [{}, {"retention.ms": "1000"}], ids=["same config", "new config"])
async def test_a_log_that_is_gone_is_made_again_when_its_replica_is_instructed_again(
    cluster: TestCluster, config: dict[str, str]
) -> None:
    """Level-triggered: whoever lost it (a replaced volume, a deletion that crossed an assignment), sending the
    instruction again brings the replica to where it should be."""
    topic = await cluster.create_topic("orders")
    async with open_channel(cluster[0]._socket("ls")) as channel:
        request = log_storage_pb2.DeleteLogRequest(partition=to_key(topic.key), leader_epoch=-1)
        assert not (await log_storage_pb2_grpc.LogStorageStub(channel).DeleteLog(request)).error.code
    present = await cluster.state(topic)
    state = present.state.with_(leader_epoch=1)
    revision = await cluster.store.put(cluster.keys.state("orders", 0), state.to_json())
    again = type(topic)(topic.name, topic.key, topic.replicas, config, type(present)(state, revision))

    async def instructed() -> bool:
        return (await cluster.instruct(0, again)).results[0].error.code == ErrorCode.NONE

    await eventually(instructed, "the replica is taken up again", deadline_s=5)
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_a_late_instruction_for_a_deleted_topic_does_not_touch_the_topic_made_again(
    cluster: TestCluster,
) -> None:
    deleted = await cluster.create_topic("orders")
    await cluster.delete_topic(deleted)
    topic = await cluster.create_topic("orders")
    late = await cluster.instruct(0, deleted)
    assert late.results[0].error.code != ErrorCode.NONE
    assert (await cluster[0].produce(topic.key, rows(b"a"))).error.code == ErrorCode.NONE


async def test_a_deletion_that_takes_long_does_not_hold_up_an_election(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RULES 7.7: a replica that does not answer LeaderAndIsr for 5 s counts as not live."""
    going_on = asyncio.Event()
    delete = Purge.delete

    async def slowly(purge: Purge, wanted: Iterable[PartitionKey]) -> dict[PartitionKey, StorageError]:
        await going_on.wait()
        return await delete(purge, wanted)

    doomed, topic = await cluster.create_topic("doomed"), await cluster.create_topic("orders")
    await cluster.delete_topic(doomed)
    monkeypatch.setattr(Purge, "delete", slowly)
    stopped = asyncio.create_task(cluster.stop_replica(0, doomed))
    async with asyncio.timeout(5):
        await cluster.elect(topic, 0)
    assert not stopped.done()
    going_on.set()
    assert (await stopped).results[0].error.code == ErrorCode.NONE


async def test_a_checkpoint_names_the_partitions_whose_high_watermark_has_moved(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are led; and what log-storage did not take is sent again (RULES 4.6)."""
    sent: list[dict[PartitionKey, int]] = []
    failing = False

    async def recorded(storage: LogStorageClient, marks: Sequence[tuple[PartitionKey, int, int]]) -> None:
        sent.append({key: high_watermark for key, _, high_watermark in marks})
        if failing:
            raise StorageUnavailableError("not now")

    monkeypatch.setattr(LogStorageClient, "checkpoint_high_watermarks", recorded)
    service = cluster[0].replica_manager
    assert service is not None
    idle, busy = await cluster.create_topic("idle"), await cluster.create_topic("busy")
    await service.replica_manager.checkpoint_high_watermarks()
    sent.clear()
    await service.replica_manager.checkpoint_high_watermarks()
    assert sent == []
    await cluster[0].produce(busy.key, rows(b"a"))
    await service.replica_manager.checkpoint_high_watermarks()
    assert sent == [{busy.key: 1}]
    failing = True
    await cluster[0].produce(busy.key, rows(b"b"))
    with pytest.raises(StorageUnavailableError):
        await service.replica_manager.checkpoint_high_watermarks()
    failing = False
    await cluster[0].produce(idle.key, rows(b"a"))
    await service.replica_manager.checkpoint_high_watermarks()
    assert sent[1:] == [{busy.key: 2}, {busy.key: 2, idle.key: 1}]
