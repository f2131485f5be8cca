"""Peers that are gone without a word, as after a link that flapped: nobody waits for them without a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from append_server import TRANSPORTS, AppendServer
from fake_leader import FakeLeader, LeaderLog
from flapping_link import FlappingLink
from test_fetcher import FLIGHTS, LEADER, Broker, bytes_of

from highwater.fetcher import log_storage as fetchers_storage
from highwater.log_storage_client import append_stream
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.v1 import log_storage_pb2

pytestmark = pytest.mark.alone

KEY = PartitionKey(b"t" * 16, 0)
LIMIT_S = 0.2


@pytest.fixture
async def leader() -> AsyncIterator[FakeLeader]:
    leader = FakeLeader()
    yield leader
    await leader.stop()


@pytest.mark.parametrize("outage_s", [0.0, 3.0])
async def test_a_follower_fetches_again_soon_after_its_link_is_back(
    tmp_path: Path, leader: FakeLeader, outage_s: float
) -> None:
    """The leader's end of the stream is gone, and the follower is not told: it would wait for an answer that nobody
    owes it."""
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(3)
    broker = Broker(tmp_path)
    await broker.start()
    try:
        async with FlappingLink(await leader.start()) as link:
            await broker.follow(FLIGHTS, LEADER, link.address, 5)
            await leader.until_acked(FLIGHTS, 3)
            await link.down()
            await asyncio.sleep(outage_s)
            await leader.write(FLIGHTS)
            link.heal()
            healed = time.monotonic()
            await leader.until_acked(FLIGHTS, 4)
            # replica.fetch.wait.max.ms, the limit, and a new connection, from when it last asked.
            assert time.monotonic() - healed < 3.5
            assert await broker.read() == bytes_of(log)
    finally:
        await broker.stop()


async def test_a_leader_that_answers_late_is_waited_for_longer_each_time(tmp_path: Path, leader: FakeLeader) -> None:
    """Else a slow one would be asked for the same again and again, and never be done with it."""
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(3)
    leader.answering.clear()
    broker = Broker(tmp_path)
    await broker.start(replica_fetch_wait_max_ms=10, replica_socket_timeout_ms=3_000)
    try:
        began = time.monotonic()
        await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)
        async with asyncio.timeout(10):
            while len(leader.sessions) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert time.monotonic() - began > 1.5 + 3.0
        leader.answering.set()
        await leader.until_acked(FLIGHTS, 3)
    finally:
        await broker.stop()


class Mute:
    """log-storage that answers the message which opens a stream, and no append on the first stream."""

    def __init__(self) -> None:
        self.streams = 0

    async def append(self, request_iterator: Any, context: Any) -> None:
        self.streams += 1
        first = self.streams == 1
        while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            if first and request.partitions:
                await asyncio.Event().wait()
            response = log_storage_pb2.AppendResponse(correlation_id=request.correlation_id, incarnation="one")
            for partition in request.partitions:
                response.results.add(partition=partition.partition)
            await context.write(response)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_leader_s_append_that_is_not_answered_is_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(append_stream, "LIMIT_S", LIMIT_S)
    mute = Mute()
    server = AppendServer(f"unix:{tmp_path}/s", transport, mute.append)
    await server.start()
    async with asyncio.timeout(10):
        stream = LeaderAppends(f"unix:{tmp_path}/s", lambda incarnation: None)
        stream.start()
        for expected in (True, False):
            await stream.probe(5)
            answered: asyncio.Future[AppendAnswer | None] = asyncio.get_running_loop().create_future()
            stream.send(Append(KEY, 1, 0, b"records"), answered.set_result)
            assert (await answered is None) is expected
        await stream.stop()
    await server.stop()
    assert mute.streams == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_follower_s_append_that_is_not_answered_is_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(append_stream, "LIMIT_S", LIMIT_S)
    mute = Mute()
    server = AppendServer(f"unix:{tmp_path}/s", transport, mute.append)
    await server.start()
    lost = asyncio.Event()
    storage = fetchers_storage.LogStorage(f"unix:{tmp_path}/s", lost.set)
    storage.start()
    async with asyncio.timeout(10):
        for unknown in (True, False):
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            append = fetchers_storage.act.Append(0, 1, 0, b"records", 0, 0)
            storage.append([(KEY, append)], lambda answers, reason, to=answered: to.set_result(answers))
            assert (await answered is None) is unknown
            assert lost.is_set()
        await storage.stop()
    await server.stop()
