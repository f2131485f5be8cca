"""A topic that is deleted and made again under its name while a broker is down: when the broker returns, it knows it by
its id for another one (RULES 1.1, 9.2, 9.3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_manager_cluster import eventually
from running_cluster import Deployment, traffic

from highwater.client import NewTopic
from highwater.log_storage.files import partition_metadata


@pytest.mark.parametrize("replicas", [[1, 2], [1, 2, 3]], ids=["elsewhere", "here-too"])
async def test_a_topic_made_again_while_a_broker_is_down(deployed: Deployment, replicas: list[int]) -> None:
    """`here-too`: the new topic gets a replica on the broker as soon as it is back, whether or not the old log is gone
    by then; both want the same directory."""
    topic = f"again-on-{len(replicas)}"
    old_log = log_of(deployed, topic, 3)
    await deployed.create_topic(topic, [[1, 2, 3]])
    async with traffic(deployed.cluster.bootstrap, topic):
        await deployed.healed(topic)
    old_id = partition_metadata.read(old_log)
    assert old_id is not None
    deployed.cluster.kill_broker(3)
    await deployed.left_isr(3, topic, [0])
    await deployed.admin.delete_topic(topic)
    assert partition_metadata.read(old_log) == old_id

    if 3 in replicas:
        deployed.cluster.start_broker(3)
    await eventually(lambda: created(deployed, topic, replicas), "the topic is made again", 20)
    async with traffic(deployed.cluster.bootstrap, topic):
        if 3 not in replicas:
            deployed.cluster.start_broker(3)

        async def purged() -> bool:
            return partition_metadata.read(old_log) != old_id

        await eventually(purged, "the log of the topic that is gone is deleted", 20)
        await deployed.healed(topic, replicas=len(replicas))
    new_id = (await deployed.admin.describe_topics([topic]))[0].topic_id
    assert partition_metadata.read(old_log) == (new_id if 3 in replicas else None)

    async def equal() -> bool:
        return len({bytes_of(log_of(deployed, topic, broker)) for broker in replicas}) == 1

    await eventually(equal, "all replicas hold the same bytes")


async def created(deployed: Deployment, topic: str, replicas: list[int]) -> bool:
    """False while one of the replicas is not registered."""
    (result,) = await deployed.admin.create_topics([NewTopic(topic, assignment=[replicas])])
    return result.error is None


def log_of(deployed: Deployment, topic: str, broker: int) -> Path:
    return deployed.cluster.settings.data / f"broker-{broker}" / partition_metadata.directory_name(topic, 0)


def bytes_of(log: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.glob("*.log")))
