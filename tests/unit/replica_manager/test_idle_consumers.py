"""A round of a consumer and its leader costs what has traffic, however many partitions it reads (RULES 4.13)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

from leading_broker import EPOCH, Leader

from highwater.client import Consumer, TopicPartition
from highwater.client.cluster.metadata import PartitionInfo
from highwater.client.cluster.throttle import Throttle
from highwater.client.consumer.fetcher import Fetcher
from highwater.records import Codec, encode_lists, read_header, stamp
from highwater.replica_manager.server.fetch_stream import FetchStream
from highwater.rpc.listeners import Listener
from highwater.v1 import broker_pb2

ROUNDS = 5
ACTIVE = 7  # the partition with traffic
RECORD = encode_lists([0], [None], [b"v"], codec=Codec.NONE)


@dataclass
class Cost:
    """Of all rounds, at both ends."""

    request_bytes: int = 0
    response_bytes: int = 0
    instructions: int = 0  # of Python

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if "/highwater/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        self.instructions += event == "opcode"
        return self.trace


class Link:
    """A FetchStream in memory: the client's end, and the broker's."""

    def __init__(self, leader: Leader) -> None:
        self.broken = None
        self.cost = Cost()
        self.server = FetchStream(leader.replica_manager, leader.handler, Listener("CLIENT", "CLIENT"))
        self._requests: asyncio.Queue[broker_pb2.FetchRequest] = asyncio.Queue()
        self._waiting: list[Callable[[broker_pb2.FetchResponse], None]] = []
        self._tasks = [asyncio.create_task(self.server.read(self._sent())), asyncio.create_task(self._answer())]

    def send(self, request: broker_pb2.FetchRequest, on_answer: Any, partitions: Any) -> None:
        self.cost.request_bytes += request.ByteSize()
        self._waiting.append(on_answer)
        self._requests.put_nowait(request)

    async def _sent(self) -> AsyncIterator[broker_pb2.FetchRequest]:
        while True:
            yield await self._requests.get()

    async def _answer(self) -> None:
        async for answer in self.server.responses():
            self.cost.response_bytes += len(answer)
            self._waiting.pop(0)(broker_pb2.FetchResponse.FromString(answer))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.server.close()


class OneLeader:
    """A cluster as a consumer sees it, without gRPC: a broker that leads everything, and is its own connection."""

    def __init__(self, link: Link) -> None:
        self.metadata = SimpleNamespace(topic=lambda name: SimpleNamespace(topic_id=bytes(16)))
        self._link = link
        self.tracer = None
        self.fetch_throttle = Throttle()

    def leader(self, topic: str, partition: int) -> tuple[OneLeader, PartitionInfo]:
        return self, PartitionInfo(partition, 1, EPOCH)

    def fetch_stream(self) -> Link:
        return self._link

    def track(self, topics: Any) -> None:
        """It knows them."""

    def check_process(self) -> None:
        """It was not forked."""

    def fail_overdue(self, timeout_s: float) -> None:
        """Nothing is."""

    def leave_silent_leaders(self, expected_wait_s: float) -> None:
        """It is not silent."""


async def cost_of(partitions: int, *, traffic: bool) -> Cost:
    leader = Leader(partitions)
    leader.max_bytes = 1 << 20
    link = Link(leader)
    cluster: Any = OneLeader(link)
    consumer = Consumer(bootstrap="127.0.0.1:1", auto_offset_reset="earliest", fetch_max_wait_ms=20)
    consumer._cluster = cluster
    consumer._fetcher = consumer._reader._fetcher = Fetcher(cluster, consumer._fetcher._settings, consumer._changed.set)
    consumer._running = True
    consumer.assign(TopicPartition("t", number) for number in range(partitions))
    for number in range(partitions):
        consumer.seek(("t", number), 0)
    consumer._fetcher.start()
    answered = link.cost

    async def idle_round() -> None:
        before = answered.response_bytes
        async with asyncio.timeout(10):
            while answered.response_bytes == before:
                assert await consumer.poll(timeout_ms=1) == []

    async def round_with_traffic(offset: int) -> None:
        leader.storage.records = stamp(read_header(RECORD), offset, EPOCH) + RECORD[16:]
        leader.grow(ACTIVE, offset + 1)
        (record,) = await consumer.poll(timeout_ms=10_000)
        assert (record.partition, record.offset) == (ACTIVE, offset)

    for offset in range(3):
        await round_with_traffic(offset)
    for _ in range(2):
        await idle_round()
    first = answered.request_bytes
    assert first > 20 * partitions  # the first request has named all
    link.cost.request_bytes = link.cost.response_bytes = 0
    if traffic:
        sys.settrace(link.cost.trace)
        try:
            for offset in range(3, 3 + ROUNDS):
                await round_with_traffic(offset)
        finally:
            sys.settrace(None)
    else:
        for _ in range(ROUNDS):
            await idle_round()
    await consumer._fetcher.close()
    await link.close()
    return link.cost


async def test_a_round_of_one_partition_costs_the_same_beside_1000_and_3000_idle_ones() -> None:
    small, large = await cost_of(1_000, traffic=True), await cost_of(3_000, traffic=True)
    assert small.instructions > 1_000  # something was counted
    assert large.instructions <= 1.2 * small.instructions
    assert large.request_bytes <= 1.2 * small.request_bytes
    assert large.response_bytes <= 1.2 * small.response_bytes
    assert large.instructions <= 20_000 * ROUNDS


async def test_an_idle_round_says_a_few_bytes() -> None:
    for partitions in (1_000, 3_000):
        cost = await cost_of(partitions, traffic=False)
        assert 0 < cost.request_bytes <= 60 * (ROUNDS + 2)
        assert 0 < cost.response_bytes <= 16 * (ROUNDS + 2)
