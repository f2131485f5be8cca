"""What must hold in the end: whatever was acknowledged is there, once and in order, and all replicas are the same.

The promise (RULES 7.5) excuses nothing that a soak does: it kills as many processes as it likes, but never loses more
than one disk or machine at a time (`min.insync.replicas` is 2), and the next one only when all are in sync again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from running_cluster import Deployment

from highwater.client import Admin, Consumer, TopicPartition
from soak.exits import read_exits
from soak.state import (
    COMPACTED,
    COMPACTED_REPLICAS,
    EXITS,
    EXITS_PARTITIONS,
    NUMBERED,
    NUMBERED_REPLICAS,
    SETTLE_S,
    Soak,
)


async def check(soak: Soak, deployed: Deployment) -> None:
    await deployed.healed(NUMBERED, len(NUMBERED_REPLICAS))
    await deployed.healed(COMPACTED, len(COMPACTED_REPLICAS))
    await deployed.healed(EXITS, EXITS_PARTITIONS)
    numbered = [TopicPartition(NUMBERED, number) for number in range(len(NUMBERED_REPLICAS))]
    compacted = [TopicPartition(COMPACTED, number) for number in range(len(COMPACTED_REPLICAS))]
    async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="earliest") as consumer:
        for partition, end in (await consumer.end_offsets(numbered)).items():
            if end != soak.acked[partition.partition]:
                soak.problem(f"{partition} ends at {end}, acknowledged were {soak.acked[partition.partition]}")
        found = await _last_values(consumer, compacted)
        await read_exits(soak, consumer)
    for key, value in soak.values.items():
        if found.get(key) != value:
            soak.problem(f"{COMPACTED}: {key!r} does not have the value that was acknowledged last")
    exits = [TopicPartition(EXITS, number) for number in range(EXITS_PARTITIONS)]
    # By the internal listener: where compaction has changed a batch its records are compared.
    async with Admin(deployed.cluster.internal_bootstrap) as admin:
        for topic, number in numbered + compacted + exits:
            verified = await admin.verify_replicas(topic, number, check_crcs=True)
            if not verified.ok:
                soak.problem(f"the replicas of {topic}-{number} differ: {verified}")


async def _last_values(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[bytes | None, bytes | None]:
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    found: dict[bytes | None, bytes | None] = {}
    async with asyncio.timeout(SETTLE_S):
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for record in await consumer.poll(500):
                found[record.key] = record.value
    return found
