"""A node that is lost with all that runs on it: nothing refuses connections, nothing closes one, nobody says a word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import pytest
from running_cluster import deployment, paused, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Producer

ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
AT_MOST_S = 5.0  # from the loss to an acknowledgement of the last partition (RULES 8.9)
BUSY_S = 1.0  # more on a machine that has other work; without the rules it takes 7.5 s
SETTLE_S = 1.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With the session time-outs that it has where nothing else is set."""
    with running_cluster(tmp_path_factory.mktemp("lost")) as running:
        yield running


async def acknowledged(producer: Producer, topic: str, partition: int, after_s: float) -> float:
    """When a record that was sent after that time is acknowledged, one after the other being sent."""
    while True:
        sent_s = monotonic()
        await (await producer.send(topic, b"value", partition=partition))
        if sent_s > after_s:
            return monotonic()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_every_partition_is_acknowledged_again_soon(cluster: LocalCluster, lost: int) -> None:
    """One of them it led, of the others it was a follower in sync. All wait for it with acks=all."""
    topic = f"lost-{lost}"
    async with deployment(cluster) as deployed:
        await deployed.create_topic(topic, ASSIGNMENT)
        await deployed.healed(topic, len(ASSIGNMENT))
        await deployed.preferred_lead(topic, len(ASSIGNMENT))
        async with Producer(cluster.bootstrap, acks="all") as producer, asyncio.timeout(LIMIT_S):
            for partition in range(len(ASSIGNMENT)):
                await acknowledged(producer, topic, partition, monotonic())
            await asyncio.sleep(SETTLE_S)
            with ExitStack() as stack:
                for process in cluster.broker_processes(lost):
                    stack.enter_context(paused(process.pid))
                lost_s = monotonic()
                again = [acknowledged(producer, topic, each, lost_s) for each in range(len(ASSIGNMENT))]
                last_s = max(await asyncio.gather(*again))
    print(f"acknowledged again {last_s - lost_s:.2f} s after the loss, aim {AT_MOST_S} s")
    assert last_s - lost_s <= AT_MOST_S + BUSY_S
