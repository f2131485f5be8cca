"""Members that are consumers of Highwater, in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from time import monotonic
from typing import Any, TypeVar

from bench.groups.members import Plan
from bench.groups.reads import Read
from bench.groups.sizes import SETTLE_TIMEOUT_S
from highwater.client import Consumer

Found = TypeVar("Found")

MEMBERS_OF_GROUP = 20  # of idle ones
_CONNECTING_AT_ONCE = 16


class HighwaterMembers:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._consumers: dict[int, Consumer] = {}
        self._reading: list[asyncio.Task[None]] = []
        self._reads: list[Read] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def join(self) -> None:
        self._run(self._join())

    def leave(self) -> float:
        return self._run(self._leave())

    def owned(self) -> dict[int, frozenset[int]]:
        return self._run(self._owned())

    def take_reads(self) -> list[Read]:
        return self._run(self._take_reads())

    def _run(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SETTLE_TIMEOUT_S)

    async def _join(self) -> None:
        plan = self._plan
        for number in plan.numbers:
            consumer = Consumer(plan.topic, bootstrap=plan.bootstrap, group=plan.group, auto_offset_reset="earliest")
            self._consumers[number] = await consumer.start()
            self._reading.append(asyncio.create_task(self._read(number, consumer)))

    async def _read(self, number: int, consumer: Consumer) -> None:
        while True:
            records = await consumer.poll(timeout_ms=1000)
            at_s = monotonic()
            self._reads += [Read(at_s, number, partition) for partition in {record.partition for record in records}]

    async def _leave(self) -> float:
        began_s = monotonic()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await asyncio.gather(*(consumer.stop() for consumer in self._consumers.values()))
        self._reading, self._consumers = [], {}
        return began_s

    async def _owned(self) -> dict[int, frozenset[int]]:
        for task in self._reading:
            if task.done():
                task.result()  # raises what ended it
        return {
            number: frozenset(partition for _, partition in consumer.assignment())
            for number, consumer in self._consumers.items()
        }

    async def _take_reads(self) -> list[Read]:
        taken, self._reads = self._reads, []
        return taken


class IdleMembers(HighwaterMembers):
    """Members of many groups, 20 of each, that never poll: signs of life are all they send."""

    async def _join(self) -> None:
        waiting = iter(self._plan.numbers)

        async def some() -> None:
            for number in waiting:
                group = f"{self._plan.group}-{number // MEMBERS_OF_GROUP:04d}"
                consumer = Consumer(self._plan.topic, bootstrap=self._plan.bootstrap, group=group)
                self._consumers[number] = await consumer.start()

        await asyncio.gather(*(some() for _ in range(_CONNECTING_AT_ONCE)))
