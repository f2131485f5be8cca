"""A cluster of many partitions whose brokers are not run for longer than their leases live, or hardly: it gets up again
by itself when they are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from time import monotonic

import pytest
from replica_manager_cluster import eventually
from running_cluster import KEYS, Deployment, deployment, paused, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import NewTopic, Producer, TopicPartition
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.state.cluster_watch import watch_cluster

BROKERS = 3
TOPICS, TOPIC_PARTITIONS = 6, 100
STOPPED_S = 10.0
STARVED_S = 15.0
WHOLE_S = 60.0
MADE_S = 120.0


@pytest.fixture(scope="module")
def many_partitions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With the leases that brokers and controllers have by default."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), brokers=BROKERS, controllers=2) as cluster:
        yield cluster


@pytest.fixture
async def deployed(many_partitions: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(many_partitions) as found:
        present = {topic.topic for topic in await found.admin.describe_topics()}
        for topic in (f"many-{number}" for number in range(TOPICS)):
            if topic not in present:
                new = NewTopic(topic, TOPIC_PARTITIONS, BROKERS, {"min.insync.replicas": "2"})
                (result,) = await found.admin.create_topics([new])
                assert result.error is None, result.error
        await whole(found, MADE_S)
        yield found


async def listed(deployed: Deployment) -> ClusterSnapshot:
    async with aclosing(watch_cluster(deployed.store, KEYS)) as updates:
        async for update in updates:
            assert isinstance(update, ClusterSnapshot)
            return update
    raise AssertionError("nothing was listed")


def is_led_and_in_sync(snapshot: ClusterSnapshot) -> bool:
    """Every partition by a broker that is registered as it was when it was elected, with all its replicas."""
    epochs = {broker_id: broker.broker_epoch for broker_id, broker in snapshot.brokers.items()}
    states = [versioned.state for versioned in snapshot.states.values()]
    return len(states) == TOPICS * TOPIC_PARTITIONS and all(
        epochs.get(state.leader) == state.leader_broker_epoch and len(state.isr) == BROKERS for state in states
    )


async def whole(deployed: Deployment, deadline_s: float) -> None:
    """Waits until etcd says so, and then until each partition has acknowledged a record to all of its replicas."""
    until_s = monotonic() + deadline_s

    async def as_etcd_says() -> bool:
        await asyncio.sleep(0.5)  # the listing is work, too
        return is_led_and_in_sync(await listed(deployed))

    await eventually(as_etcd_says, "every partition is led, and every ISR is full", deadline_s)
    partitions = [
        TopicPartition(f"many-{topic}", partition) for topic in range(TOPICS) for partition in range(TOPIC_PARTITIONS)
    ]
    left_ms = max(1_000, int(1000 * (until_s - monotonic())))
    async with Producer(deployed.cluster.bootstrap, acks="all", delivery_timeout_ms=left_ms) as producer:
        await asyncio.gather(*(producer.send_and_wait(topic, b"", partition=number) for topic, number in partitions))


@contextmanager
def cores_taken() -> Iterator[None]:
    """A busy loop for each core, and one more."""
    taking = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        yield
    finally:
        for process in taking:
            process.kill()
            process.wait()


async def test_it_gets_up_after_all_brokers_have_lost_their_leases(deployed: Deployment) -> None:
    with ExitStack() as stopped:
        for broker in range(1, BROKERS + 1):
            for process in deployed.cluster.broker_processes(broker):
                stopped.enter_context(paused(process.pid))
        await asyncio.sleep(STOPPED_S)
        assert not await read_brokers(deployed.store, KEYS), "their leases live longer than they were stopped"
    await whole(deployed, WHOLE_S)


async def test_it_gets_up_after_other_work_had_the_cores(deployed: Deployment) -> None:
    with cores_taken():
        await asyncio.sleep(STARVED_S)
    await whole(deployed, WHOLE_S)
