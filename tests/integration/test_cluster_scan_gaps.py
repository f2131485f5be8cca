"""Scans of a running cluster whose logs lose records: by compaction, and by retention while they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replica_manager_cluster import eventually
from running_cluster import Deployment, deployment, running_cluster

from highwater.client import NewTopic, OffsetOutOfRangeError, Producer, Scan, TopicPartition

SETTINGS = {
    "file.delete.delay.ms": "0",
    "tail.cache.bytes": "0",  # it holds what was compacted since
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "200",
}


@pytest.fixture
async def deployed(tmp_path: Path) -> AsyncIterator[Deployment]:
    with running_cluster(tmp_path, settings=SETTINGS) as cluster:
        async with deployment(cluster) as found:
            yield found


async def fill(deployed: Deployment, topic: str, records: int, size: int) -> None:
    async with Producer(deployed.cluster.bootstrap, linger_ms=5, batch_size=4000) as producer:
        for number in range(records):
            key = b"once-%d" % number if number % 5 == 0 else b"again-%d" % (number % 7)
            await producer.send(topic, b"%d" % number * size, key=key, partition=0)


async def test_a_compacted_topic(deployed: Deployment) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": "20000"}
    (made,) = await deployed.admin.create_topics([NewTopic("compacted", config=config, assignment=[[1, 2]])])
    assert made.error is None
    await fill(deployed, "compacted", 3000, 5)
    bootstrap = deployed.cluster.bootstrap

    async def offsets(**options: object) -> list[int]:
        async with Scan("compacted", columns=["offset"], bootstrap=bootstrap, **options) as scan:  # type: ignore[arg-type]
            return [int(offset) for offset in (await scan.to_table())["offset"].to_pylist()]

    async def has_gaps() -> bool:
        return len(await offsets()) < 2000

    try:
        await eventually(has_gaps, "compaction has left gaps", 60)
        found = await offsets()
        assert found[-1] == 2999
        # Ranges that begin and end within what is gone.
        assert set(found) >= set(range(0, 3000, 5))
        middle = next(number for number in range(1000, 3000) if number not in set(found))
        assert set(await offsets(end=middle)) <= {number for number in found if number < middle}
        assert await offsets(start=middle, end=middle + 1) == []
        assert set(await offsets(start=middle, end=middle + 1000)) >= set(
            range(middle - middle % 5 + 5, middle + 1000, 5)
        )
    finally:
        await deployed.admin.delete_topic("compacted")


@pytest.mark.long
async def test_records_that_retention_deletes_meanwhile(deployed: Deployment) -> None:
    topic = "trimmed"
    await deployed.create_topic(topic, [[1, 2]])
    config = {"segment.bytes": "20000", "retention.bytes": "20000"}
    await fill(deployed, topic, 2000, 20)
    bootstrap = deployed.cluster.bootstrap
    async with Scan(topic, bootstrap=bootstrap) as scan:
        await deployed.admin.alter_topic_config(topic, config)
        await fill(deployed, topic, 2000, 20)
        first = TopicPartition(topic, 0)

        async def trimmed() -> bool:
            ends = await deployed.admin.list_offsets({first: -2})
            return ends[first].offset > 0

        await eventually(trimmed, "retention has deleted the first records", 60)
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0: offsets 0 to .* retention has deleted them"):
            await scan.to_table()
    async with Scan(topic, start=0, fail_on_data_loss=False, bootstrap=bootstrap) as scan:
        assert (await scan.to_table())["offset"].to_pylist()[-1] == 3999
