"""Retention under a leader that nobody writes to: it learns from a read that its log starts later now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_manager_cluster import TestCluster, eventually, rows, to_key

from highwater.errors import ErrorCode
from highwater.metadata.keys import Keys
from highwater.metadata.local import LocalEtcd
from highwater.metadata.store import Store
from highwater.v1 import broker_pb2

EARLIEST = -2


@pytest.fixture
async def cluster(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TestCluster]:
    monkeypatch.setenv("HIGHWATER_LOG_RETENTION_CHECK_INTERVAL_MS", "50")
    # Else reads of what was just written do not come from log-storage.
    settings = {"tail.cache.bytes": "0", "replica.high.watermark.checkpoint.interval.ms": "100"}
    async with TestCluster(store, keys, etcd.address, tmp_path, brokers=1, settings=settings) as running:
        yield running


async def test_an_idle_leader_learns_of_it(cluster: TestCluster) -> None:
    topic = await cluster.create_topic("orders", config={"retention.ms": "0"})
    await cluster[0].produce(topic.key, rows(b"a", b"b"))

    async def gone() -> bool:
        result = await cluster[0].fetch(topic.key, 0)
        return bool(result.error.code == ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset == 2)

    await eventually(gone, "the records are deleted, and the leader says so")
    response = await cluster[0].stub.ListOffsets(
        broker_pb2.ListOffsetsRequest(
            partitions=[
                broker_pb2.ListOffsetsPartition(partition=to_key(topic.key), leader_epoch=-1, timestamp=EARLIEST)
            ]
        )
    )
    assert response.results[0].offset == 2
    produced = await cluster[0].produce(topic.key, rows(b"c"))
    assert produced.base_offset == 2
