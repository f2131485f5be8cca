"""Many producers and as many consumers at a steady pace, in a process for each core of this machine."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from bench.events import EVENT_BYTES
from highwater.client import Consumer, HighwaterError, Producer, TopicPartition

CONNECT_TIMEOUT_S = 180.0
WARM_UP_S = 5.0
DRAIN_TIMEOUT_S = 20.0
"""After the last record was due: what is not acknowledged or read by then is missing from the figures."""
_BEGIN_IN_S = 1.0
_CONNECTING_AT_ONCE = 16
_DUE = struct.Struct(f"<d{EVENT_BYTES - 8}x")  # a record's value: when it was due


@dataclass(frozen=True)
class ClientLoad:
    bootstrap: str
    partitions: Sequence[TopicPartition]
    """One for each producer, and for the consumer that reads what it sends."""
    window_s: float
    rate: float = 20.0
    """Records a second of each producer."""
    first: int = 0
    """Of these clients among all: their records are due between those of the others."""
    of: int = 1
    """All of them."""

    @property
    def due(self) -> int:
        """Records of the window, the warm-up aside."""
        return len(self.partitions) * round(self.rate * self.window_s)


@dataclass
class ClientsFound:
    """Milliseconds from the moment at which a record of the window was due."""

    acknowledged: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, other: ClientsFound) -> None:
        self.acknowledged += other.acknowledged
        self.read += other.read
        self.failures += other.failures


def divided(load: ClientLoad, processes: int) -> list[ClientLoad]:
    """The share of each process; none is empty."""
    count = len(load.partitions)
    bounds = [count * number // processes for number in range(processes + 1)]
    return [
        replace(load, partitions=load.partitions[low:high], first=low, of=count)
        for low, high in pairwise(bounds)
        if low < high
    ]


def work_of_many(load: ClientLoad) -> ClientsFound:
    """Runs all of it. Raises `TimeoutError` where the clients do not connect or do not end in time."""
    context = multiprocessing.get_context("spawn")
    working = []
    try:
        for share in divided(load, os.cpu_count() or 1):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(share, there), daemon=True)
            process.start()
            there.close()
            working.append((process, here))
        _awaited([pipe for _, pipe in working], CONNECT_TIMEOUT_S, "connect")
        begin = monotonic() + _BEGIN_IN_S
        for _, pipe in working:
            pipe.send(begin)
        found = ClientsFound()
        work_s = _BEGIN_IN_S + WARM_UP_S + load.window_s + 3 * DRAIN_TIMEOUT_S
        for part in _awaited([pipe for _, pipe in working], work_s, "end their work"):
            found.add(part)
        return found
    finally:
        for process, _ in working:
            process.kill()
            process.join()


def _awaited(pipes: Sequence[Connection], timeout_s: float, what: str) -> list[Any]:
    """What each process says next."""
    deadline = monotonic() + timeout_s
    said = []
    for number, pipe in enumerate(pipes, 1):
        if not pipe.poll(max(0.0, deadline - monotonic())):
            raise TimeoutError(f"the clients of process {number} of {len(pipes)} did not {what} within {timeout_s:g} s")
        try:
            said.append(pipe.recv())
        except EOFError:
            raise RuntimeError(f"process {number} of {len(pipes)} of clients ended before they did {what}") from None
    return said


def _work(load: ClientLoad, pipe: Connection) -> None:
    """Says when it is ready, waits for the time to begin, and says what it found."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            slots = asyncio.Semaphore(_CONNECTING_AT_ONCE)
            pairs = await asyncio.gather(*(_connected(load, one, stack, slots) for one in load.partitions))
            pipe.send(None)
            begin: float = await asyncio.to_thread(pipe.recv)
            pipe.send(await _measured(load, pairs, begin))

    asyncio.run(main())


async def _connected(
    load: ClientLoad, partition: TopicPartition, stack: AsyncExitStack, slots: asyncio.Semaphore
) -> tuple[Producer, Consumer]:
    async with slots:
        producer = Producer(load.bootstrap, linger_ms=0, delivery_timeout_ms=1000 * DRAIN_TIMEOUT_S)
        consumer = Consumer(bootstrap=load.bootstrap, auto_offset_reset="latest")
        await stack.enter_async_context(producer)
        await stack.enter_async_context(consumer)
        # One record makes what the first one makes: a connection to the leader, a producer id.
        await producer.send_and_wait(partition.topic, _DUE.pack(0.0), partition=partition.partition)
        consumer.assign([partition])
        await consumer.poll(timeout_ms=0)
        return producer, consumer


async def _measured(load: ClientLoad, pairs: Sequence[tuple[Producer, Consumer]], begin: float) -> ClientsFound:
    found = ClientsFound()
    counted_from = begin + WARM_UP_S
    end = counted_from + load.window_s

    async def acknowledged(sent: asyncio.Future[object] | object, due: float) -> None:
        try:
            await sent  # type: ignore[misc]
        except HighwaterError as error:
            found.failures[type(error).__name__] += 1
        else:
            if due >= counted_from:
                found.acknowledged.append(1000 * (monotonic() - due))

    async def produce(producer: Producer, partition: TopicPartition, number: int) -> None:
        waiting = set()
        due = begin + (load.first + number) / (load.of * load.rate)
        while due < end:
            await asyncio.sleep(due - monotonic())
            try:
                sent = await producer.send(partition.topic, _DUE.pack(due), partition=partition.partition)
            except HighwaterError as error:
                found.failures[type(error).__name__] += 1
            else:
                task = asyncio.create_task(acknowledged(sent, due))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            due += 1 / load.rate
        await asyncio.gather(*waiting)

    async def consume(consumer: Consumer) -> None:
        while True:
            for record in await consumer.poll(timeout_ms=500):
                assert record.value is not None
                (due,) = _DUE.unpack(record.value)
                if due >= counted_from:
                    found.read.append(1000 * (monotonic() - due))

    consuming = [asyncio.create_task(consume(consumer)) for _, consumer in pairs]
    producing = [
        asyncio.create_task(produce(producer, partition, number))
        for number, ((producer, _), partition) in enumerate(zip(pairs, load.partitions, strict=True))
    ]
    try:
        await asyncio.wait(producing, timeout=end - monotonic() + DRAIN_TIMEOUT_S)
        drained = monotonic() + DRAIN_TIMEOUT_S
        while len(found.read) < len(found.acknowledged) and monotonic() < drained:  # noqa: ASYNC110  (once)
            await asyncio.sleep(0.1)
    finally:
        for task in (*producing, *consuming):
            task.cancel()
    ended = await asyncio.gather(*producing, *consuming, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            found.failures[type(error).__name__] += 1
    return found
