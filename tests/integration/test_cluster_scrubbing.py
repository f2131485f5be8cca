"""A flipped bit in a sealed segment: found by scrubbing, and copied anew from the leader (RULES 7.6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from replica_manager_cluster import eventually
from running_cluster import Deployment, deployment, running_cluster, traffic

from highwater.cli.local_cluster import LocalCluster
from highwater.client import NewTopic, PartitionVerification
from highwater.log_storage.files import partition_metadata

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "log.scrub.interval.ms": "300",
    "log.scrub.bytes.per.second": "100000000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("scrubbed"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(cluster) as found:
        yield found


def segments_of(deployed: Deployment, topic: str, broker: int) -> list[Path]:
    directory = deployed.cluster.settings.data / f"broker-{broker}" / partition_metadata.directory_name(topic, 0)
    return sorted(directory.glob("*.log"))


def flip_last_bit(path: Path) -> bytes:
    """Of the last batch's last record. Returns what stood there before."""
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(len(content) - 1)
        file.write(bytes([content[-1] ^ 1]))
    return content


async def sound(deployed: Deployment, topic: str) -> PartitionVerification | None:
    """What all replicas have, once they have the same and nothing is damaged."""
    found = await deployed.admin.verify_replicas(topic, 0, check_crcs=True)
    complete = all(replica.behind == 0 and replica.in_sync for replica in found.replicas)
    return found if found.ok and complete else None


@pytest.mark.parametrize("place", ["on a follower", "on the leader"])
@pytest.mark.parametrize("minimum", [2, 3])
async def test_a_damaged_segment_is_copied_anew(deployed: Deployment, place: str, minimum: int) -> None:
    """With a minimum of all three it cannot be kept meanwhile: produces wait for it."""
    broker = 1 if place == "on the leader" else 2
    topic = f"scrubbed-{broker}-{minimum}"
    config = {"segment.bytes": "5000", "min.insync.replicas": str(minimum)}
    (made,) = await deployed.admin.create_topics([NewTopic(topic, config=config, assignment=[[1, 2, 3]])])
    assert made.error is None
    async with traffic(deployed.cluster.bootstrap, topic) as written:

        async def rolled() -> bool:
            return len(segments_of(deployed, topic, broker)) > 4

        await eventually(rolled, "there are sealed segments", 30)
        damaged = segments_of(deployed, topic, broker)[1]
        before = flip_last_bit(damaged)

        async def mended() -> bool:
            return damaged.exists() and damaged.read_bytes()[: len(before)] == before

        await eventually(mended, "the damaged segment is copied anew", 60)
        await written.until_acked(50)
        await deployed.healed(topic)
    found = await eventually(lambda: sound(deployed, topic), "all replicas hold the same", 60)
    assert found.high_watermark >= 250
    (state,) = await deployed.states(topic)
    if broker == 1:
        assert state.leader != 1 or state.leader_epoch > 1, "leadership moved first"
    assert not state.elr
    assert state.unclean_epoch < 0
    await deployed.admin.delete_topic(topic)


async def test_the_only_replica_is_kept_as_it_is(deployed: Deployment) -> None:
    topic = "scrubbed-alone"
    config = {"segment.bytes": "5000"}
    (made,) = await deployed.admin.create_topics([NewTopic(topic, config=config, assignment=[[3]])])
    assert made.error is None
    async with traffic(deployed.cluster.bootstrap, topic):

        async def rolled() -> bool:
            return len(segments_of(deployed, topic, 3)) > 2

        await eventually(rolled, "there are sealed segments", 30)
    flip_last_bit(segments_of(deployed, topic, 3)[0])

    async def told() -> bool:
        found = await deployed.admin.verify_replicas(topic, 0)
        return bool(found.replicas[0].damaged)

    await eventually(told, "what scrubbing found is shown without reading it again", 30)
    (state,) = await deployed.states(topic)
    assert (state.leader, state.isr) == (3, (3,))
    await deployed.admin.delete_topic(topic)


async def test_a_leader_that_cannot_be_spared_gives_way_to_a_sound_replica(deployed: Deployment) -> None:
    """The third replica lacks what the leader cannot read, and could never copy it from there: so the ISR would stay as
    it is, and the leader never be spared."""
    topic = "scrubbed-behind"
    config = {"segment.bytes": "5000", "min.insync.replicas": "2"}
    (made,) = await deployed.admin.create_topics([NewTopic(topic, config=config, assignment=[[1, 2, 3]])])
    assert made.error is None
    await deployed.healed(topic)
    deployed.cluster.kill_broker(3)
    try:
        async with traffic(deployed.cluster.bootstrap, topic) as written:

            async def rolled() -> bool:
                (state,) = await deployed.states(topic)
                return state.isr == (1, 2) and len(segments_of(deployed, topic, 1)) > 4

            await eventually(rolled, "there are segments that the third replica lacks", 60)
            damaged = segments_of(deployed, topic, 1)[2]
            before = flip_last_bit(damaged)

            async def gave_way() -> bool:
                (state,) = await deployed.states(topic)
                return state.leader == 2 and 1 in state.isr

            await eventually(gave_way, "the sound replica leads", 30)
            deployed.cluster.start_broker(3)
            await written.until_acked(50)
            await deployed.healed(topic)
    finally:
        if not all(process.running for process in deployed.cluster.broker_processes(3)):
            deployed.cluster.start_broker(3)

    async def mended() -> bool:
        return damaged.exists() and damaged.read_bytes()[: len(before)] == before

    await eventually(mended, "the damaged segment is copied anew", 60)
    await eventually(lambda: sound(deployed, topic), "all replicas hold the same", 60)
    await deployed.admin.delete_topic(topic)
