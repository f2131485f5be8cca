"""A topic's configuration, changed while it is used: it reaches the logs of all replicas, and outlives restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_manager_cluster import eventually
from running_cluster import Deployment

from highwater.client import InvalidRequestError, Producer
from highwater.log_storage.files import partition_metadata

VALUE = b"x" * 600
ENOUGH = 20  # records of their own batches, of more than one segment's bytes together


def segments(deployed: Deployment, topic: str, broker: int) -> int:
    directory: Path = deployed.cluster.settings.data / f"broker-{broker}" / partition_metadata.directory_name(topic, 0)
    return len(list(directory.glob("*.log")))


async def produce(deployed: Deployment, topic: str) -> None:
    async with Producer(deployed.cluster.bootstrap, compression="none") as producer:
        for _ in range(ENOUGH):
            await producer.send_and_wait(topic, VALUE)


async def test_it_reaches_every_log_and_outlives_restarts(deployed: Deployment) -> None:
    topic = "reconfigured"
    await deployed.create_topic(topic, [[1, 2, 3]])
    await produce(deployed, topic)
    assert [segments(deployed, topic, broker) for broker in (1, 2, 3)] == [1, 1, 1]

    await deployed.admin.alter_topic_config(topic, {"segment.bytes": "1024"})
    (described,) = await deployed.admin.describe_topics([topic])
    assert described.config == {"min.insync.replicas": "2", "segment.bytes": "1024"}
    await produce(deployed, topic)

    async def rolled(least: int) -> bool:
        return all(segments(deployed, topic, broker) > least for broker in (1, 2, 3))

    await eventually(lambda: rolled(5), "all replicas roll by the new limit")

    # A log-storage that starts anew is told it again, and a controller that starts anew lists it.
    for name in ("log-storage-1", "controller"):
        deployed.cluster.processes[name].kill()
        deployed.cluster.processes[name].start()
    await deployed.healed(topic)
    most = max(segments(deployed, topic, broker) for broker in (1, 2, 3))
    await produce(deployed, topic)
    await eventually(lambda: rolled(most), "they still roll by it")

    await deployed.admin.alter_topic_config(topic, {"flush.ms": "1000"}, ["segment.bytes"])
    found = await deployed.admin.describe_topic_config(topic)
    assert (found["flush.ms"].value, found["flush.ms"].source) == ("1000", "topic")
    assert (found["segment.bytes"].value, found["segment.bytes"].is_default) == (None, True)

    async def rests() -> bool:
        """A broker that is slow to take the change does not hold up the answer."""
        before = [segments(deployed, topic, broker) for broker in (1, 2, 3)]
        await produce(deployed, topic)
        return before == [segments(deployed, topic, broker) for broker in (1, 2, 3)]

    await eventually(rests, "nothing rolls by the limit that is no more")
    with pytest.raises(InvalidRequestError, match=r"segment\.bytes"):
        await deployed.admin.alter_topic_config(topic, {"segment.bytes": "7"})
    await deployed.admin.delete_topic(topic)
