"""DeleteRecords waits for replicas (RULES 5.8), and not without limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, Topic, eventually, to_key

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.replica_manager.requests import delete_records
from highwater.replica_manager.requests.delete_records import DeletedRecords, DeleteRecordsHandler
from highwater.security.caller import current_caller
from highwater.v1 import broker_pb2


@pytest.fixture
async def cluster(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[TestCluster]:
    """The second broker is registered and fetches nothing."""
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=2) as running:
        yield running


async def deleted(cluster: TestCluster, topic: Topic, timeout_ms: int) -> broker_pb2.DeleteRecordsResult:
    response = await cluster[0].stub.DeleteRecords(
        broker_pb2.DeleteRecordsRequest(
            timeout_ms=timeout_ms,
            partitions=[broker_pb2.DeleteRecordsPartition(partition=to_key(topic.key), offset=0)],
        )
    )
    (result,) = response.results
    return result


async def test_more_than_may_wait_are_told_so_at_once(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records, "MAX_WAITING", 2)
    topic = await cluster.create_topic("orders", replicas=(0, 1))
    waiting = [asyncio.create_task(deleted(cluster, topic, 60_000)) for _ in range(2)]
    manager = cluster[0].replica_manager
    assert manager is not None
    hosted = manager.replica_manager.hosted[topic.key]

    async def both_wait() -> bool:
        assert not any(each.done() for each in waiting), [each.result() for each in waiting if each.done()]
        return len(hosted.log_start_waits) == 2

    await eventually(both_wait, "both wait")
    async with asyncio.timeout(5):
        assert (await deleted(cluster, topic, 60_000)).error.code == ErrorCode.OVERLOADED
    await cluster.elect(topic, 1)
    assert [each.error.code for each in await asyncio.gather(*waiting)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert not hosted.log_start_waits


async def test_one_caller_leaves_room_to_others(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records, "MAX_WAITING", 3)
    monkeypatch.setattr(delete_records, "MAX_OF_ONE", 2)
    topic = await cluster.create_topic("orders", replicas=(0, 1))
    manager = cluster[0].replica_manager
    assert manager is not None
    hosted = manager.replica_manager.hosted[topic.key]
    handler = DeleteRecordsHandler(manager.replica_manager)

    async def asked_by(caller: str) -> DeletedRecords:
        current_caller.set(caller)
        return await handler.delete(topic.key, 0, 60_000)

    async def wait_in_all(count: int) -> None:
        async def so_many() -> bool:
            return len(hosted.log_start_waits) == count

        await eventually(so_many, f"{count} wait")

    waiting = [asyncio.create_task(asked_by("User:mallory")) for _ in range(2)]
    await wait_in_all(2)
    async with asyncio.timeout(5):
        assert (await asyncio.create_task(asked_by("User:mallory"))).error is ErrorCode.OVERLOADED
    waiting.append(asyncio.create_task(asked_by("User:alice")))
    await wait_in_all(3)
    async with asyncio.timeout(5):
        assert (await asyncio.create_task(asked_by("User:bob"))).error is ErrorCode.OVERLOADED
    waiting.pop(0).cancel()
    await wait_in_all(2)
    waiting.append(asyncio.create_task(asked_by("User:mallory")))
    await wait_in_all(3)
    await cluster.elect(topic, 1)
    assert {each.error for each in await asyncio.gather(*waiting)} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_one_that_gave_up_leaves_its_place(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records, "MAX_WAITING", 1)
    topic = await cluster.create_topic("orders", replicas=(0, 1))
    for _ in range(3):
        assert (await deleted(cluster, topic, 10)).error.code == ErrorCode.REQUEST_TIMED_OUT
