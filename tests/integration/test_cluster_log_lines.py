"""A cluster in trouble does not fill the disk with its log: of a thousand partitions there are a few lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from replica_manager_cluster import eventually
from running_cluster import paused, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Admin, HighwaterError, NewTopic

PARTITIONS = 1_000
HEALED_S = 90.0
TROUBLE_S = 4.0  # of etcd that does not answer: as long as leases last
MOST_LINES = 150  # of one process, through all of it


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("lines"), brokers=3) as running:
        yield running


def lines_of(cluster: LocalCluster) -> dict[str, list[str]]:
    logs = cluster.settings.data / "logs"
    return {name: (logs / f"{name}.log").read_text().splitlines() for name in cluster.metrics_addresses}


async def healed(admin: Admin) -> None:
    async def whole() -> bool:
        try:
            (topic,) = await admin.describe_topics(["many"])
        except HighwaterError:  # nobody answers yet
            return False
        return len(topic.partitions) == PARTITIONS and all(len(each.isr) == 3 for each in topic.partitions)

    await eventually(whole, "all replicas are in sync", HEALED_S)


@pytest.mark.timeout(400)
async def test_lines_do_not_grow_with_partitions_and_retries(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        assignment = [[number % 3 + 1, (number + 1) % 3 + 1, (number + 2) % 3 + 1] for number in range(PARTITIONS)]
        (made,) = await admin.create_topics([NewTopic("many", assignment=assignment)])
        assert made.error is None
        await healed(admin)
        # A log-storage that is killed, a broker that is killed, one that stands still beyond its lease, and etcd too.
        cluster.processes["log-storage-1"].kill()
        await asyncio.sleep(TROUBLE_S)  # the trouble itself, not a wait for its end
        cluster.processes["log-storage-1"].start()
        await healed(admin)
        cluster.kill_broker(2)
        cluster.start_broker(2)
        await healed(admin)
        with paused(cluster.processes["log-storage-3"].pid), paused(cluster.processes["fetcher-1"].pid):
            await asyncio.sleep(TROUBLE_S)
        with paused(cluster.processes["etcd"].pid):
            await asyncio.sleep(TROUBLE_S)
        await healed(admin)
    told = {name: len(lines) for name, lines in lines_of(cluster).items()}
    worst = max(told, key=lambda name: told[name])
    alike = Counter(line.split(": ", 1)[-1][:60] for line in lines_of(cluster)[worst]).most_common(5)
    assert told[worst] < MOST_LINES, (told, alike)
    sizes = {name: sum(map(len, lines)) for name, lines in lines_of(cluster).items()}
    assert max(sizes.values()) < 50_000, sizes


async def test_the_lines_say_how_many_and_why(cluster: LocalCluster) -> None:
    text = "\n".join(line for lines in lines_of(cluster).values() for line in lines)
    assert "leading count=" in text
    assert "ISR change count=" in text
