"""Consumers of groups that are polled in the background, and all that they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

from running_cluster import HEAL_S, Deployment

from highwater.client import (
    Consumer,
    HighwaterError,
    Producer,
)

PARTITIONS = 4
ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]
SESSION_TIMEOUT_S = 4.0


class Reading:
    """A consumer that is polled in the background, and all that it was given."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.seen: list[tuple[int, int]] = []  # partition, offset
        self.told: list[tuple[str, frozenset[int]]] = []
        self.errors: list[HighwaterError] = []
        self._polling: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(partition for _, partition in self.consumer.assignment())

    def resume(self) -> None:
        self._polling = asyncio.create_task(self._poll())

    async def suspend(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            self._polling = None

    async def _poll(self) -> None:
        while True:
            try:
                records = await self.consumer.poll(200)
            except HighwaterError as error:
                self.errors.append(error)
                records = []
            self.seen += [(record.partition, record.offset) for record in records]
            self._changed.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = monotonic() + HEAL_S
        while not condition():
            assert monotonic() < deadline, (what, self.owned, len(self.seen), self.errors, self.told)
            self._changed.clear()
            try:
                async with asyncio.timeout(1):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def owns(self, count: int) -> None:
        await self.until(lambda: len(self.owned) == count, f"{count} partitions")

    async def has_seen(self, count: int) -> None:
        await self.until(lambda: len(self.seen) >= count, f"{count} records")


class Readers:
    """The consumers of one test."""

    def __init__(self, deployed: Deployment, stack: AsyncExitStack) -> None:
        self._deployed = deployed
        self._stack = stack

    async def join(self, topic: str, group: str, **options: Any) -> Reading:
        callbacks: dict[str, Any] = {}
        told: list[tuple[str, frozenset[int]]] = []
        for name in ("assigned", "revoked", "lost"):
            callbacks[f"on_{name}"] = lambda partitions, name=name: told.append(
                (name, frozenset(partition for _, partition in partitions))
            )
        options = {"auto_offset_reset": "earliest", **callbacks, **options}
        starts = options.pop("start", True)
        consumer = Consumer(topic, bootstrap=self._deployed.cluster.bootstrap, group=group, **options)
        reading = Reading(consumer)
        reading.told = told
        await consumer.start()
        self._stack.push_async_callback(consumer.stop)
        self._stack.push_async_callback(reading.suspend)
        if starts:
            reading.resume()
        return reading


async def send(deployed: Deployment, topic: str, records: int, partition: int | None = None) -> None:
    """So many to each partition, or to this one."""
    async with Producer(deployed.cluster.bootstrap) as producer:
        for number in range(records):
            for each in range(PARTITIONS) if partition is None else [partition]:
                await producer.send(topic, b"%d" % number, partition=each)


def whole(records: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(records)]
