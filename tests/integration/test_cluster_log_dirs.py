"""Brokers with two log directories: a replica moves from one to the other while records flow, and a directory that
fails takes only its own replicas along."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import Result, Run, runner
from replica_manager_cluster import eventually
from running_cluster import Deployment, deployment, running_cluster, traffic
from small_volume import may_mount, mounted

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Admin, DeliveryTimeoutError, InvalidRequestError, LogDirReplica, Producer, TopicPartition

ASSIGNMENT = [[1, 2, 3], [2, 3, 1]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {
        "log.segment.bytes": "65536",
        "log.flush.offset.checkpoint.interval.ms": "500",
        "replica.lag.time.max.ms": "3000",
    }
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings=settings, log_dirs=2) as running:
        yield running


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(cluster) as found:
        yield found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, tmp_path: Path) -> Run:
    monkeypatch.setenv("HIGHWATER_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setenv("COLUMNS", "250")
    return runner(monkeypatch, tmp_path)


async def places(deployed: Deployment, topic: str, partition: int, broker: int) -> dict[str, LogDirReplica]:
    """Where the broker has the replica, or a copy that is to take its place."""
    return {
        log_dir.path: replica
        for log_dir in await deployed.admin.describe_log_dirs([broker])
        for replica in log_dir.replicas
        if (replica.topic, replica.partition) == (topic, partition)
    }


async def other_dir(deployed: Deployment, topic: str, partition: int, broker: int) -> str:
    [present] = await places(deployed, topic, partition, broker)
    [other] = {str(path) for path in deployed.cluster.log_dirs(broker)} - {present}
    return other


async def moved(deployed: Deployment, topic: str, partition: int, broker: int, to: str) -> None:
    async def there() -> bool:
        try:
            found = await places(deployed, topic, partition, broker)
        except InvalidRequestError:  # the broker registers again after its log-storage has been killed
            return False
        return list(found) == [to] and not found[to].is_future

    await eventually(there, f"{topic}-{partition} of broker {broker} is in {to}", 30)


async def test_replicas_move_while_records_flow(deployed: Deployment) -> None:
    """The leader's, a follower's, and both back again: nothing lost, every offset as it was."""
    await deployed.create_topic("moving", ASSIGNMENT)
    partition = TopicPartition("moving", 0)
    async with traffic(deployed.cluster.bootstrap, "moving", 2) as flow:
        await flow.until_acked(500)
        for _ in range(2):
            targets = {broker: await other_dir(deployed, "moving", 0, broker) for broker in (1, 2)}
            outcomes = await deployed.admin.alter_replica_log_dirs(
                {(partition, broker): path for broker, path in targets.items()}
            )
            assert set(outcomes.values()) == {None}
            for broker, path in targets.items():
                await moved(deployed, "moving", 0, broker, path)
            await flow.until_acked(100)
        states = await deployed.states("moving", 2)
        assert [state.leader_epoch for state in states] == [0, 0]  # nobody noticed
        assert [len(state.isr) for state in states] == [3, 3]


async def test_a_move_outlives_kill_9(deployed: Deployment) -> None:
    await deployed.create_topic("killed", ASSIGNMENT)
    storage = deployed.cluster.processes["log-storage-1"]
    async with traffic(deployed.cluster.bootstrap, "killed", 2) as flow:
        await flow.until_acked(300)
        for partition in (0, 1):  # this broker leads one and follows the other
            to = await other_dir(deployed, "killed", partition, 1)
            outcomes = await deployed.admin.alter_replica_log_dirs({(("killed", partition), 1): to})
            assert set(outcomes.values()) == {None}
            storage.kill()
            storage.start()
            await deployed.registered()
            await moved(deployed, "killed", partition, 1, to)
            await deployed.healed("killed", 2)
        await flow.until_acked(100)


async def test_log_dirs_described_and_moved(deployed: Deployment, run: Run) -> None:
    await deployed.create_topic("commands", [[1, 2, 3]])
    to = await other_dir(deployed, "commands", 0, 1)
    arguments = ("log-dirs", "move", "commands", 0, "--broker", 1, "--to")
    result = await asyncio.to_thread(run, *arguments, to)
    assert result == Result(0, f"commands-0 of broker 1 is in {to}\n", "")
    rows = (await asyncio.to_thread(run, "log-dirs", "describe", "--broker", 1, "--topic", "commands", "--json")).rows
    assert {row["path"]: len(row["replicas"]) for row in rows}[to] == 1  # type: ignore[arg-type]
    assert {row["broker_id"] for row in rows} == {1}
    assert all(row["error"] is None and row["directory_id"] for row in rows)
    shown = (await asyncio.to_thread(run, "log-dirs", "describe", "--topic", "commands")).out
    assert sum(line.split()[1:2] == ["0"] and to in line for line in shown.splitlines()) == 1
    result = await asyncio.to_thread(run, *arguments, "/nowhere")
    result.is_one_sentence("/nowhere is none of this broker's log.dirs: choose among")
    result = await asyncio.to_thread(run, "log-dirs", "move", "commands", 0, "--broker", 9, "--to", to)
    result.is_one_sentence("there is no broker 9 now; there are 1, 2, 3")
    result = await asyncio.to_thread(run, "log-dirs", "move", "commands", 7, "--broker", 1, "--to", to)
    result.is_one_sentence("no log of partition")


async def test_a_directory_fails(deployed: Deployment, run: Run) -> None:
    """Another directory is found in its place. Its replicas are offline; those of the broker's other directory serve
    on, under the same leadership. Started again with the directory back, all of them catch up."""
    await deployed.create_topic("failing", [[1, 2, 3], [1, 2, 3]])
    [lost] = await places(deployed, "failing", 0, 1)
    sound = await other_dir(deployed, "failing", 0, 1)
    await deployed.admin.alter_replica_log_dirs({(("failing", 1), 1): sound})
    await moved(deployed, "failing", 1, 1, sound)
    async with traffic(deployed.cluster.bootstrap, "failing", 2) as flow:
        os.rename(lost, f"{lost}-away")

        async def noticed() -> bool:
            return (await places(deployed, "failing", 0, 1))[lost].error is not None

        await eventually(noticed, "the directory is offline", 30)
        await deployed.replaced(1, "failing", 1)
        await flow.until_acked(200)
        state = (await deployed.states("failing", 2))[1]
        assert (state.leader, state.leader_epoch) == (1, 0)
        assert (await places(deployed, "failing", 1, 1))[sound].error is None
        described = (await asyncio.to_thread(run, "log-dirs", "describe", "--broker", 1)).out
        assert "the directory is gone" in described
        storage = deployed.cluster.processes["log-storage-1"]
        storage.kill()
        os.rename(f"{lost}-away", lost)
        storage.start()
        await deployed.healed("failing", 2)


# A real one, where the machine allows it. tests/unit/log_storage/test_log_storage_full_disk.py has its injected twins.
@pytest.mark.parametrize("size_mb", [8] if may_mount() else [])
async def test_a_volume_is_full_and_has_space_again(tmp_path: Path, size_mb: int) -> None:
    """Producers wait; when a topic is deleted all that they were to deliver arrives, in its order."""
    volume = tmp_path / "cluster" / "broker-1"
    volume.mkdir(parents=True)
    with mounted(volume, size_mb << 20), running_cluster(tmp_path / "cluster", brokers=1) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            for topic in ("large", "small"):
                await admin.create_topic(topic, 1, 1)
            await fill(cluster.bootstrap, "large")
            assert (await admin.describe_log_dirs())[0].full
            async with Producer(cluster.bootstrap) as producer:
                pending = [await producer.send("small", b"%d" % number) for number in range(50)]
                producing = asyncio.ensure_future(producer.flush())
                await asyncio.wait({producing}, timeout=1)
                assert not producing.done()
                await admin.delete_topic("large")
                async with asyncio.timeout(60):
                    await producing
                assert [(await delivery).offset for delivery in pending] == list(range(50))
            assert not (await admin.describe_log_dirs())[0].full


async def fill(bootstrap: str, topic: str) -> None:
    """Records until they are not taken any more."""
    value = os.urandom(50_000)
    async with Producer(bootstrap, compression=None, delivery_timeout_ms=3_000, linger_ms=0) as producer:
        with suppress(DeliveryTimeoutError):
            while True:
                await (await producer.send(topic, value))
