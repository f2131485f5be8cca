"""One run: topics, users, faults, and the checks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from running_cluster import Deployment, deployment

from highwater.client import NewTopic
from soak import exits, faults, workload
from soak.checks import check
from soak.cluster import SoakCluster
from soak.episodes import Episodes
from soak.faults import Faults
from soak.flush_modes import FlushModes
from soak.state import (
    COMPACTED,
    COMPACTED_REPLICAS,
    DELIVERY_TIMEOUT_S,
    EXITS,
    EXITS_PARTITIONS,
    NUMBERED,
    NUMBERED_REPLICAS,
    SETTLE_S,
    Soak,
)


async def run(soak: Soak, cluster: SoakCluster, flushing: FlushModes, seconds: float, kinds: Sequence[str]) -> None:
    """`kinds`: of faults and of client processes."""
    of_faults = [kind for kind in kinds if kind in faults.KINDS]
    of_clients = [kind for kind in kinds if kind in exits.KINDS]
    async with deployment(cluster) as deployed:
        await make_topics(deployed, flushing)
        written = asyncio.Event()
        following = asyncio.create_task(workload.read_numbers(soak, written))
        work = [
            workload.write_numbers(soak),
            workload.write_keys(soak),
            workload.churn_topics(soak),
            workload.move_replicas(soak),
            *([exits.run_clients(soak, of_clients)] if of_clients else []),
        ]
        try:
            async with under_way(soak, *work):
                if of_faults:
                    await Episodes(soak, deployed, Faults(soak, cluster, deployed), of_faults).run(seconds)
                else:
                    await soak.pause(seconds)
            soak.episode = ()
            written.set()
            async with asyncio.timeout(SETTLE_S):
                await following
            await check(soak, deployed)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def make_topics(deployed: Deployment, flushing: FlushModes) -> None:
    common = {"min.insync.replicas": "2"}
    compacted = {"cleanup.policy": "compact", "segment.bytes": "200000"}
    topics = [
        NewTopic(NUMBERED, config={**common, **flushing.topics[NUMBERED]}, assignment=NUMBERED_REPLICAS),
        NewTopic(
            COMPACTED, config={**common, **compacted, **flushing.topics[COMPACTED]}, assignment=COMPACTED_REPLICAS
        ),
        NewTopic(EXITS, config={**common, **flushing.topics[EXITS]}, assignment=NUMBERED_REPLICAS[:EXITS_PARTITIONS]),
    ]
    for made in await deployed.admin.create_topics(topics):
        assert made.error is None, made.error


@asynccontextmanager
async def under_way(soak: Soak, *work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While the body runs, and then until it ends by itself."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        soak.stopped.set()
        async with asyncio.timeout(DELIVERY_TIMEOUT_S + SETTLE_S):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
