"""A round of an idle follower and its leader costs the same, however many partitions they share (RULES 4.10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.actions import FenceAnswer as FollowerFenceAnswer
from highwater.fetcher.follower.actions import Followed
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.replica_fetcher import ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FenceAnswer, Instruction, LiveBrokers, PartitionSettings
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.fetch import FetchHandler
from highwater.replica_manager.server.fetch_stream import FetchStream
from highwater.rpc.listeners import Listener
from highwater.rpc.settings import load
from highwater.telemetry.metrics import Metrics
from highwater.v1 import broker_pb2

EPOCH = 5
ROUNDS = 20
ROUND_MS = 500
LAG_MS = 3_000


@dataclass
class Cost:
    """Of all rounds."""

    request_bytes: int = 0
    response_bytes: int = 0
    leader_looks: int = 0  # at a partition
    follower_looks: int = 0


@contextmanager
def counted(cost: Cost) -> Iterator[None]:
    fetched, tick, position = Partition.fetched, Partition.tick, Follower.position

    def count_fetched(self: Partition, *arguments: Any) -> Any:
        cost.leader_looks += 1
        return fetched(self, *arguments)

    def count_tick(self: Partition, now_ms: int) -> Any:
        cost.leader_looks += 1
        return tick(self, now_ms)

    def count_position(self: Follower) -> Any:
        cost.follower_looks += 1
        return position(self)

    with (
        patch.object(Partition, "fetched", count_fetched),
        patch.object(Partition, "tick", count_tick),
        patch.object(Follower, "position", count_position),
    ):
        yield


class Pair:
    """A follower's fetcher and its leader, with the stream between them in memory."""

    def __init__(self, partitions: int) -> None:
        self.now_ms = 0
        nothing: Any = SimpleNamespace(committed=None, send=None, submit=lambda *_: None)
        self.replica_manager = ReplicaManager(
            1,
            PartitionSettings(replica_lag_time_max_ms=LAG_MS),
            nothing,
            nothing,
            nothing,
            nothing,
            incarnation="rm",
            tail_cache_bytes=0,
            purgatory=Purgatory(max_produces=1, max_fetches=1),
            message_max_bytes=1 << 20,
            lease_confirmed=lambda: True,
            register_anew=lambda: None,
            report_offline_logs=lambda: None,
            now_ms=lambda: self.now_ms,
        )
        self.replica_manager._publish_soon = lambda: None  # type: ignore[method-assign]
        settings = load(
            FetcherSettings,
            {"broker.id": "2", "listen": "unix:/f", "replica.manager": "unix:/rm", "log.storage": "unix:/ls"},
        )
        self.fetcher = ReplicaFetcher(
            FetcherId(1, 0),
            LeaderEndpoint("127.0.0.1:1", 101),
            settings,
            nothing,
            FetcherMetrics(Metrics("fetcher")),
            lambda: self.now_ms,
        )
        for number in range(partitions):
            self._share(PartitionKey(bytes(16), number))
        handler = FetchHandler(self.replica_manager, ReplicaManagerMetrics(Metrics("test")), max_bytes=1 << 20)
        self.stream = FetchStream(self.replica_manager, handler, Listener("INTERNAL", "INTERNAL"))
        self._requests: asyncio.Queue[broker_pb2.FetchRequest] = asyncio.Queue()
        self._reading = asyncio.create_task(self.stream.read(self._sent()))
        self._responses = self.stream.responses()

    def _share(self, key: PartitionKey) -> None:
        hosted = self.replica_manager.host(key, "t", {})
        hosted.partition.brokers_changed(LiveBrokers({1: 101, 2: 102}), 0)
        hosted.partition.instruct(Instruction(VersionedState(PartitionState(1, EPOCH, 101, (1, 2)), 10), (1, 2)), 0)
        answer = FenceAnswer(Role.LEADER, EPOCH, incarnation="ls")
        self.replica_manager.perform(hosted, hosted.partition.fenced(answer, 0))
        follower = Follower(key, "t", 1_000)
        follower.follow(Followed(1, EPOCH, -1, "ls"), 0)
        follower.fenced(FollowerFenceAnswer(follower.generation, "ls", LogState(0, -1, 0, 0)), 0)
        self.fetcher.add(follower)

    async def _sent(self) -> AsyncIterator[broker_pb2.FetchRequest]:
        while True:
            yield await self._requests.get()

    async def round(self, cost: Cost) -> None:
        """A request, the time that it waits, and its answer."""
        request = self.fetcher._next_request(102)
        assert request is not None
        cost.request_bytes += request.ByteSize()
        self._requests.put_nowait(request)
        response = asyncio.ensure_future(anext(self._responses))
        for _ in range(20):
            await asyncio.sleep(0)
        for _ in range(ROUND_MS // 100):
            self.now_ms += 100
            self.replica_manager.tick()
        if self.stream._answering is not None:
            self.stream._answering.wait.wake()  # its time is up
        answered = await asyncio.wait_for(response, 10)
        cost.response_bytes += len(answered)
        self.fetcher._received(broker_pb2.FetchResponse.FromString(answered))

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.stream.close()
        await self.fetcher.stop()


@pytest.fixture(params=[1_000, 3_000])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    made = Pair(request.param)
    yield made
    await made.close()


async def test_an_idle_round_costs_a_few_bytes_and_looks_at_no_partition(pair: Pair) -> None:
    first, idle = Cost(), Cost()
    await pair.round(first)
    assert first.request_bytes > 20_000  # which names them all
    for _ in range(LAG_MS // ROUND_MS + 1):
        await pair.round(first)  # by now each is known to keep up
    with counted(idle):
        for _ in range(ROUNDS):
            await pair.round(idle)
    assert idle.leader_looks == idle.follower_looks == 0
    assert idle.request_bytes <= 80 * ROUNDS
    assert idle.response_bytes <= 16 * ROUNDS
    replicas = [hosted.partition.followers[2] for hosted in pair.replica_manager.hosted.values()]
    assert all(replica.in_sync and replica.keeps_up(0) for replica in replicas)
