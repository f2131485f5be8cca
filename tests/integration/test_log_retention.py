"""Retention under a leader that nobody writes to: it learns from a read, or from who asks for the earliest offset, that
its log starts later now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, eventually, rows, to_key

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.v1 import broker_pb2

EARLIEST = -2


@pytest.fixture
def tail_cache_bytes() -> str:
    """None: else reads of what was just written do not come from log-storage."""
    return "0"


@pytest.fixture
async def cluster(
    etcd: LocalEtcd,
    store: Store,
    keys: Keys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tail_cache_bytes: str,
) -> AsyncIterator[TestCluster]:
    monkeypatch.setenv("HIGHWATER_LOG_RETENTION_CHECK_INTERVAL_MS", "50")
    settings = {"tail.cache.bytes": tail_cache_bytes, "replica.high.watermark.checkpoint.interval.ms": "100"}
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1, settings=settings) as running:
        yield running


async def earliest(cluster: TestCluster, key: PartitionKey) -> int:
    asked = broker_pb2.ListOffsetsPartition(partition=to_key(key), leader_epoch=-1, timestamp=EARLIEST)
    response = await cluster[0].stub.ListOffsets(broker_pb2.ListOffsetsRequest(partitions=[asked]))
    assert not response.results[0].error.code
    return response.results[0].offset


async def test_an_idle_leader_learns_of_it(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", config={"retention.ms": "0"})
    await cluster[0].produce(topic.key, rows(b"a", b"b"))

    async def gone() -> bool:
        result = await cluster[0].fetch(topic.key, 0)
        return bool(result.error.code == ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset == 2)

    await eventually(gone, "the records are deleted, and the leader says so")
    assert await earliest(cluster, topic.key) == 2
    produced = await cluster[0].produce(topic.key, rows(b"c"))
    assert produced.base_offset == 2


@pytest.mark.parametrize("tail_cache_bytes", ["1000000"])
async def test_who_asks_for_the_earliest_offset_learns_of_it(cluster: TestCluster) -> None:
    """And the leader with it: all that was written is in its tail cache."""
    topic = await cluster.create_topic("orders", config={"retention.ms": "0"})
    await cluster[0].produce(topic.key, rows(b"a", b"b"))

    async def gone() -> bool:
        return await earliest(cluster, topic.key) == 2

    await eventually(gone, "the log starts behind what retention has deleted")
    result = await cluster[0].fetch(topic.key, 0)
    assert (result.error.code, result.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
