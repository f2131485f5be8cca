"""Logs that nobody wants any more (RULES 9.2, 9.3): of topics that were deleted while a broker was cut off, its process
alive, and of deletions that failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, Topic, eventually, rows

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import StorageError, StorageUnavailableError
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.purge import Purge
from highwater.replica_manager.requests.instructions import Sender


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1) as running:
        yield running


def log_directory(cluster: TestCluster, topic: Topic) -> Path:
    return cluster[0].directory / "logs" / f"{topic.name}-0"


def hosted(cluster: TestCluster, topic: Topic) -> bool:
    manager = cluster[0].replica_manager
    assert manager is not None
    return topic.key in manager.replica_manager.hosted


async def test_a_topic_deleted_while_its_broker_was_cut_off_is_cleaned_up_there(cluster: TestCluster) -> None:
    topic, kept = await cluster.create_topic("doomed"), await cluster.create_topic("orders")
    await cluster.delete_topic(topic)  # nobody tells the broker
    assert hosted(cluster, topic)
    manager, before = cluster[0].replica_manager, cluster[0].broker_epoch
    assert manager is not None
    manager.liveness.register_anew()
    await cluster[0].registered(above=before)

    async def gone() -> bool:
        return not hosted(cluster, topic) and not log_directory(cluster, topic).exists()

    await eventually(gone, "the replica has ended and its log is deleted")
    assert hosted(cluster, kept)
    assert log_directory(cluster, kept).exists()


async def test_a_topic_deleted_out_of_the_controllers_reach_is_cleaned_up_when_a_new_one_tells_what_there_is(
    cluster: TestCluster,
) -> None:
    """Registered all the time; the controller that elected meanwhile finds nothing of the topic left to stop."""
    topic, kept = await cluster.create_topic("doomed"), await cluster.create_topic("orders")
    await cluster.delete_topic(topic)
    manager = cluster[0].replica_manager
    assert manager is not None
    before = cluster[0].broker_epoch
    there = manager.replica_manager.metadata.by_id(kept.key.topic_id)
    assert there is not None
    await manager.control.update_metadata(
        Sender(7, cluster.controller_epoch + 1), "", [], [there], full=True, deleted=[]
    )

    async def gone() -> bool:
        return not hosted(cluster, topic) and not log_directory(cluster, topic).exists()

    await eventually(gone, "the replica has ended and its log is deleted")
    assert cluster[0].broker_epoch == before
    assert hosted(cluster, kept)


async def test_what_a_controller_said_before_is_not_taken_late(cluster: TestCluster) -> None:
    """RULES 8.10."""
    topic = await cluster.create_topic("orders")
    manager = cluster[0].replica_manager
    assert manager is not None
    metadata = manager.replica_manager.metadata
    there = metadata.by_id(topic.key.topic_id)
    assert there is not None
    sender = Sender(7, cluster.controller_epoch + 1)
    update = manager.control.update_metadata
    taken = await update(sender, "", [], [there], full=True, deleted=[], sequence=2)
    late = await update(sender, "", [], [], full=True, deleted=[], sequence=1)
    assert (taken.error, late.error) == (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
    assert metadata.by_id(topic.key.topic_id) == there


async def test_a_deletion_that_failed_is_tried_again_although_the_topic_is_gone(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_log = LogStorageClient.delete_log
    tried = 0

    async def failing(storage: LogStorageClient, key: PartitionKey, leader_epoch: int) -> StorageError:
        nonlocal tried
        tried += 1
        if tried == 1:
            return StorageError(ErrorCode.LOG_STORAGE_ERROR, "made up")
        if tried == 2:
            raise StorageUnavailableError("made up")
        return await delete_log(storage, key, leader_epoch)

    topic = await cluster.create_topic("doomed")
    await cluster.delete_topic(topic)
    monkeypatch.setattr(LogStorageClient, "delete_log", failing)
    stopped = await cluster.stop_replica(0, topic)
    assert stopped.results[0].error.code == ErrorCode.LOG_STORAGE_ERROR

    async def gone() -> bool:
        return not log_directory(cluster, topic).exists()

    await eventually(gone, "the log is deleted at last")
    assert tried == 3


@pytest.mark.parametrize("partition", [-1, -(2**31), 7])
async def test_to_stop_a_partition_that_its_topic_does_not_have_is_answered(
    cluster: TestCluster, partition: int
) -> None:
    """A negative number counted from the topic's end: an exception, or another partition's replicas."""
    topic = await cluster.create_topic("orders")
    absent = replace(topic, key=PartitionKey(topic.key.topic_id, partition))
    stopped = await cluster.stop_replica(0, absent)
    assert [each.error.code for each in stopped.results] == [ErrorCode.INVALID_REQUEST]
    assert hosted(cluster, topic)


async def test_the_log_of_an_earlier_topic_that_is_deleted_slowly_holds_up_nobody_else(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RULES 7.7: instructions must be answered within 5 s, those of the same batch and those behind it."""
    going_on = asyncio.Event()
    delete = Purge.delete

    async def slowly(purge: Purge, wanted: Iterable[PartitionKey]) -> dict[PartitionKey, StorageError]:
        await going_on.wait()
        return await delete(purge, wanted)

    other = await cluster.create_topic("other")
    earlier = await cluster.create_topic("orders")
    await cluster.delete_topic(earlier)
    monkeypatch.setattr(Purge, "delete", slowly)
    again = await cluster.create_topic("orders", instruct=False)
    async with asyncio.timeout(3):
        answer = (await cluster.instruct(0, again)).results[0].error
        assert answer.code == ErrorCode.LOG_STORAGE_ERROR  # comes again
        await cluster.elect(other, 0)
        assert (await cluster[0].produce(other.key, rows(b"a"))).error.code == ErrorCode.NONE
    going_on.set()

    async def taken_up() -> bool:
        return (await cluster.instruct(0, again)).results[0].error.code == ErrorCode.NONE

    await eventually(taken_up, "the topic that was made again is taken up")
    assert (await cluster[0].produce(again.key, rows(b"a"))).error.code == ErrorCode.NONE
