"""A log directory that fails under a running cluster: its logs, and no others, are led by other brokers (RULES 7.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from replica_manager_cluster import eventually
from running_cluster import Deployment, deployment, traffic

from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client import TopicPartition

PARTITIONS = 6
SETTINGS = {"broker.session.timeout.ms": "3000", "controller.session.timeout.ms": "1000"}


class TwoDirectories(LocalCluster):
    """Every broker has its logs in two directories."""

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        if package == "log_storage":
            directory = settings["log.dirs"]
            settings = {**settings, "log.dirs": f"{directory}/a,{directory}/b"}
        super()._add_service(name, package, settings)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = LocalClusterSettings(tmp_path_factory.mktemp("directories"), port=0, settings=SETTINGS)
    running = TwoDirectories(settings)
    running.start()
    yield running
    running.kill()


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(cluster) as found:
        yield found


def logs_in(directory: Path, topic: str) -> set[int]:
    return {int(each.name.rpartition("-")[2]) for each in directory.glob(f"{topic}-*") if each.is_dir()}


async def placed(data: Path, topic: str, partitions: int) -> set[int]:
    """Which of the topic's logs stand in `a`, once all do in `a` or `b`: a topic is made before its followers are."""

    async def all_made() -> bool:
        return len(logs_in(data / "a", topic) | logs_in(data / "b", topic)) == partitions

    await eventually(all_made, f"the logs of {topic} are made")
    return logs_in(data / "a", topic)


async def test_its_logs_alone_are_led_by_others_until_it_is_mended(deployed: Deployment) -> None:
    topic = "directories"
    await deployed.create_topic(topic, [[1, 2, 3]] * PARTITIONS)
    data = deployed.cluster.settings.data / "broker-1"
    broken = data / "a"
    lost = await placed(data, topic, PARTITIONS)
    kept = set(range(PARTITIONS)) - lost
    assert lost
    assert kept
    followed = TopicPartition("followed", 0)
    await deployed.create_topic(followed.topic, [[2, 1, 3]] * 4)
    followed_lost = await placed(data, followed.topic, 4)
    assert followed_lost

    async with traffic(deployed.cluster.bootstrap, topic, PARTITIONS) as written:
        await written.until_acked(100)
        away = broken.rename(broken.with_name("away"))  # as a volume that is unmounted

        async def moved() -> bool:
            states = await deployed.states(topic, PARTITIONS)
            return all(states[number].leader != 1 and 1 not in states[number].isr for number in lost)

        await eventually(moved, "others lead what was in the directory", 30)
        states = await deployed.states(topic, PARTITIONS)
        assert {(states[number].leader, states[number].leader_epoch) for number in kept} == {(1, 0)}
        await deployed.left_isr(1, followed.topic, sorted(followed_lost))
        assert {state.leader_epoch for state in await deployed.states(followed.topic, 4)} == {0}
        await written.until_acked(100)

        async def reported() -> bool:
            found = await deployed.admin.describe_topics([topic])
            return all((1 in part.offline_replicas) == (part.partition in lost) for part in found[0].partitions)

        await eventually(reported, "describe_topics says which replicas are offline")
        for number in kept:
            assert (await deployed.states(topic, PARTITIONS))[number].isr == (1, 2, 3)

        away.rename(broken)
        storage = deployed.cluster.processes["log-storage-1"]
        storage.terminate()
        assert storage.wait(20)
        storage.start()
        await deployed.healed(topic, PARTITIONS)
        await deployed.healed(followed.topic, 4)
        await written.until_acked(100)
    (found,) = await deployed.admin.describe_topics([topic])
    assert all(not part.offline_replicas for part in found.partitions)


async def test_a_directory_that_cannot_be_opened_at_the_start(deployed: Deployment) -> None:
    """What is in it stays offline, and is not begun anew elsewhere; topics made meanwhile are hosted in the other."""
    topic = "unopened"
    await deployed.create_topic(topic, [[1, 2, 3]] * PARTITIONS)
    data = deployed.cluster.settings.data / "broker-1"
    lost = await placed(data, topic, PARTITIONS)
    assert lost
    assert lost < set(range(PARTITIONS))
    storage = deployed.cluster.processes["log-storage-1"]
    async with traffic(deployed.cluster.bootstrap, topic, PARTITIONS) as written:
        await written.until_acked(100)
        storage.terminate()
        assert storage.wait(20)
        away = (data / "a").rename(data / "away")
        (data / "a").write_text("no directory")
        storage.start()

        async def others_lead() -> bool:
            states = await deployed.states(topic, PARTITIONS)
            return all(
                (states[number].leader != 1 and 1 not in states[number].isr)
                if number in lost
                else 1 in states[number].isr
                for number in range(PARTITIONS)
            )

        await eventually(others_lead, "the logs in the other directory are in the ISRs, and no others", 30)
        await deployed.create_topic("meanwhile", [[1, 2, 3]] * 3)
        await deployed.healed("meanwhile", 3)
        assert {state.leader for state in await deployed.states("meanwhile", 3)} == {1}
        async with traffic(deployed.cluster.bootstrap, "meanwhile", 3) as new:
            await new.until_acked(50)
        assert logs_in(data / "b", "meanwhile") == {0, 1, 2}
        assert not logs_in(data / "b", topic) & lost
        storage.terminate()
        assert storage.wait(20)
        (data / "a").unlink()
        away.rename(data / "a")
        storage.start()
        await deployed.healed(topic, PARTITIONS)
        await deployed.healed("meanwhile", 3)
        await written.until_acked(100)
