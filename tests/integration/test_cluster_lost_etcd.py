"""etcd is lost altogether: what it held is made again from the brokers' volumes and, where there is one, from a backup
that is older than they are; with every record that was acknowledged, and the same producers and consumers."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from replica_manager_cluster import eventually
from running_cluster import KEYS, Deployment, deployment, running_cluster, traffic

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Consumer, NewTopic
from highwater.kube import backup, inventory, rebuild
from highwater.kube.lost_etcd.plan import UNKNOWN_CONFIG
from highwater.metadata.local import etcd_healthy
from highwater.metadata.state.producer_ids import allocate_block
from highwater.metadata.state.topic_configs import read_topic_config
from highwater.metadata.state.topics import read_topics
from highwater.metadata.store.store import Store

BROKERS = (1, 2, 3)
ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
OUTAGE_MS = 120_000
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "min.insync.replicas": "2",
    "log.retention.ms": "1000",  # whose configuration is not known loses everything at once, if nobody takes care
    "log.retention.check.interval.ms": "300",
    "log.roll.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "300",  # retention stops at it
    "file.delete.delay.ms": "0",
}
KEPT = {"retention.ms": "-1"}
RETENTION_S = 2.0  # it has looked at every log by then


@pytest.fixture
async def doomed(tmp_path: Path) -> AsyncIterator[Deployment]:
    with running_cluster(tmp_path / "data", settings=SETTINGS) as cluster:
        async with deployment(cluster) as found:
            yield found


def lose_etcd(cluster: LocalCluster) -> None:
    """kill -9 of everything, in any order; etcd comes back with nothing."""
    processes = list(cluster.processes.values())
    random.shuffle(processes)
    for process in processes:
        process.kill()
    shutil.rmtree(cluster.settings.data / "etcd")
    cluster.processes["etcd"].start()


def start(cluster: LocalCluster) -> None:
    for name, process in cluster.processes.items():
        if name != "etcd":
            process.start()


def take_inventories(cluster: LocalCluster, into: Path, brokers: Sequence[int] = BROKERS) -> list[Path]:
    """By the command, as a pod runs it: it recovers what the kill has left."""
    found = []
    for broker in brokers:
        command = [sys.executable, "-m", inventory.__name__, *map(str, cluster.log_dirs(broker))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        found.append(into / f"broker-{broker}.json")
        found[-1].write_text(done.stdout)
    return found


async def rebuilt(cluster: LocalCluster, inventories: Sequence[Path], *options: str) -> int:
    """The command's exit status."""
    await eventually(lambda: asyncio.to_thread(etcd_healthy, cluster.etcd), "etcd is healthy", 30)
    arguments = [f"--etcd={cluster.etcd}", "--brokers=1,2,3", *options, "--inventories", *map(str, inventories)]
    return await asyncio.to_thread(rebuild.main, arguments)


async def topic_ids(store: Store) -> dict[str, bytes]:
    return {each.assignment.topic: topic_id for topic_id, each in (await read_topics(store, KEYS)).topics.items()}


async def test_all_is_rebuilt_from_the_volumes_alone(doomed: Deployment, tmp_path: Path) -> None:
    cluster = doomed.cluster
    topics = [NewTopic("orders", config=KEPT, assignment=ASSIGNMENT), NewTopic("idle", assignment=[[2, 1]])]
    assert not any(made.error for made in await doomed.admin.create_topics(topics))
    async with (
        Consumer("orders", bootstrap=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
        traffic(cluster.bootstrap, "orders", 3, delivery_timeout_ms=OUTAGE_MS) as flow,
    ):
        seen = len(await consumer.poll(timeout_ms=5_000))
        assert seen
        cluster.processes["replica-manager-2"].kill()  # so that there were elections
        await flow.until_acked(100)
        cluster.processes["replica-manager-2"].start()
        await doomed.healed("orders", 3)
        before, ids, epochs = dict(flow.acked), await topic_ids(doomed.store), await doomed.states("orders", 3)
        await asyncio.sleep(random.uniform(0, 0.3))
        lose_etcd(cluster)
        assert await rebuilt(cluster, take_inventories(cluster, tmp_path)) == 0
        start(cluster)
        async with Store([cluster.etcd]) as store:
            again = Deployment(cluster, store, doomed.admin)
            await again.registered()
            await again.healed("orders", 3)
            assert await topic_ids(store) == ids
            after = await again.states("orders", 3)
            assert all(new.leader_epoch > old.leader_epoch for new, old in zip(after, epochs, strict=True))
            assert (await read_topic_config(store, KEYS, "orders")).config == UNKNOWN_CONFIG
            assert (await allocate_block(store, KEYS)).start > 1_000_000
        await asyncio.sleep(RETENTION_S)
        await flow.until_acked(100)
        assert all(flow.acked[partition] > before[partition] for partition in before)
        while seen < sum(before.values()):  # it goes on where it was
            seen += len(await consumer.poll(timeout_ms=5_000))


async def test_a_backup_older_than_some_topics_and_configurations(
    doomed: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, backups = doomed.cluster, tmp_path / "backups"
    await doomed.admin.create_topics(
        [
            NewTopic("early", config={**KEPT, "min.insync.replicas": "2"}, assignment=ASSIGNMENT),
            NewTopic("gone", config=KEPT, assignment=[[1, 2, 3]]),
        ]
    )
    options = [f"--etcd={cluster.etcd}", f"--out={backups}", "--keep=1"]
    for _ in range(2):
        assert await asyncio.to_thread(backup.main, options) == 0
    assert len(list(backups.iterdir())) == 1
    await doomed.admin.alter_topic_config("early", {"max.message.bytes": "2000000"})
    await doomed.admin.delete_topics(["gone"])
    await doomed.admin.create_topics([NewTopic("late", config=KEPT, assignment=ASSIGNMENT[:1])])
    async with (
        traffic(cluster.bootstrap, "early", 3, delivery_timeout_ms=OUTAGE_MS) as early,
        traffic(cluster.bootstrap, "late", delivery_timeout_ms=OUTAGE_MS) as late,
    ):
        ids = await topic_ids(doomed.store)
        lose_etcd(cluster)
        # Broker 3 does not come back: the topic that the backup knows can do without, of the other one nobody can tell.
        some = take_inventories(cluster, tmp_path, BROKERS[:2])
        options = [f"--backup={backups}", "--min-insync-replicas=2"]
        assert await rebuilt(cluster, some, *options, "--without-broker=3", "--dry-run") == rebuild.REFUSED
        said = capsys.readouterr().err
        assert "  late-0: " in said
        assert "early" not in said
        every = [*some, *take_inventories(cluster, tmp_path, BROKERS[2:])]
        assert await rebuilt(cluster, every, *options, "--dry-run") == 0
        for _ in range(2):  # a second run finds it done
            assert await rebuilt(cluster, every, *options) == 0
        start(cluster)
        async with Store([cluster.etcd]) as store:
            again = Deployment(cluster, store, doomed.admin)
            await again.registered()
            await again.healed("early", 3)
            await again.healed("late")
            found = await topic_ids(store)
            assert {name: found[name] for name in ids} == ids
            assert "gone" in found  # empty, as in the backup
            early_config = (await read_topic_config(store, KEYS, "early")).config
            assert early_config == {**KEPT, "min.insync.replicas": "2"}
            assert (await read_topic_config(store, KEYS, "late")).config == UNKNOWN_CONFIG
        await asyncio.sleep(RETENTION_S)
        await early.until_acked(50)
        await late.until_acked(50)
