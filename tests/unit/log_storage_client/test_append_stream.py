"""The append stream, as a leader and as a follower have it: what becomes of what is in flight when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from append_server import TRANSPORTS, AppendServer

from highwater.fetcher.follower import actions as act
from highwater.fetcher.log_storage import LogStorage
from highwater.log_storage_client.values import Append, StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.v1 import common_pb2, log_storage_pb2

Request = log_storage_pb2.AppendRequest
Response = log_storage_pb2.AppendResponse


def good(request: Request) -> Response:
    response = Response(correlation_id=request.correlation_id, incarnation="one")
    for partition in request.partitions:
        end = partition.expected_offset + 1
        response.results.add(base_offset=partition.expected_offset, log=log_storage_pb2.LogState(log_end_offset=end))
    return response


class FakeLogStorage:
    """`answer` is asked for the answer to each message that has appends; None ends the stream."""

    def __init__(self, address: str, transport: str) -> None:
        self.address = address
        self.answer: Callable[[Request], Response | None] = good
        self.silent = False
        self.received: list[list[int]] = []  # of each message with appends, their expected offsets
        self.server = AppendServer(address, transport, self.append)
        self.start, self.stop = self.server.start, self.server.stop

    async def append(self, request_iterator: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            if not request.partitions:
                await context.write(good(request))
                continue
            self.received.append([partition.expected_offset for partition in request.partitions])
            if self.silent:
                continue
            response = self.answer(request)
            if response is None:
                return
            await context.write(response)


KEY = PartitionKey(b"t" * 16, 0)


class Leader:
    def __init__(self, address: str) -> None:
        self._appends = LeaderAppends(address, lambda incarnation: None)
        self.start, self.stop = self._appends.start, self._appends.stop

    async def connected(self) -> None:
        await self._appends.probe(10)

    def append(self, key: PartitionKey, offset: int) -> asyncio.Future[Any]:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._appends.send(Append(key, 1, offset, b"records"), answered.set_result)
        return answered


class Follower:
    def __init__(self, address: str) -> None:
        self.lost = 0
        self.reasons: list[str] = []
        self._storage = LogStorage(address, self._count_lost)
        self.start, self.stop = self._storage.start, self._storage.stop

    def _count_lost(self) -> None:
        self.lost += 1

    async def connected(self) -> None:
        """As soon as its channel is; here, once its stream is, too."""
        await self._storage.reachable.wait()
        while await self.append(KEY, 100) is None:
            await self._storage.reachable.wait()

    def append(self, key: PartitionKey, offset: int) -> asyncio.Future[Any]:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(answers: Any, reason: str) -> None:
            if reason:
                self.reasons.append(reason)
            answered.set_result(None if answers is None else answers[0])

        self._storage.append([(key, act.Append(7, 1, offset, b"records", 0, 0))], take)
        return answered


@pytest.fixture(params=TRANSPORTS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeLogStorage]:
    storage = FakeLogStorage(f"unix:{tmp_path}/log-storage", request.param)
    await storage.start()
    yield storage
    await storage.stop()


@pytest.fixture(params=[Leader, Follower])
async def client(request: pytest.FixtureRequest, storage: FakeLogStorage) -> AsyncIterator[Leader | Follower]:
    client: Leader | Follower = request.param(storage.address)
    client.start()
    async with asyncio.timeout(30):
        await client.connected()
        yield client
        await client.stop()


@pytest.mark.parametrize("how", ["dies", "ends the stream", "answers another message", "answers too few"])
async def test_what_is_in_flight_when_the_stream_breaks_is_of_unknown_outcome_and_not_sent_again(
    how: str, storage: FakeLogStorage, client: Leader | Follower
) -> None:
    """RULES 3.4."""
    asked = asyncio.Event()

    def spoil(request: Request) -> Response | None:
        asked.set()
        if how in ("ends the stream", "dies"):
            return None
        response = good(request)
        if how == "answers another message":
            response.correlation_id += 1
        else:
            del response.results[:]
        return response

    storage.answer = spoil
    first = client.append(KEY, 0)
    await asked.wait()
    second = client.append(KEY, 1)  # handed over, and perhaps sent
    if how == "dies":
        await storage.stop()
    assert [await first, await second] == [None, None]
    storage.answer = good
    if how == "dies":
        await storage.start()
    await client.connected()
    assert (await client.append(KEY, 5)).log.log_end_offset == 6
    assert sum(0 in offsets for offsets in storage.received) == 1
    if isinstance(client, Follower):
        assert client.lost == 1
        assert client.reasons[0].startswith(f"the append stream to log-storage at {storage.address} broke: ")


async def test_what_is_handed_over_while_nothing_is_connected(
    storage: FakeLogStorage, client: Leader | Follower
) -> None:
    """A leader's append is of unknown outcome at once: its leadership ends. A follower's waits."""
    storage.silent = True
    broken = client.append(KEY, 0)
    await storage.stop()
    assert await broken is None
    storage.silent = False
    later = client.append(KEY, 3)
    if isinstance(client, Leader):
        assert await later is None
    await storage.start()
    await client.connected()
    if isinstance(client, Follower):
        assert (await later).log.log_end_offset == 4
    assert (await client.append(KEY, 4)).log.log_end_offset == 5


async def test_a_refusal_is_a_definite_answer_and_the_stream_goes_on(
    storage: FakeLogStorage, client: Leader | Follower
) -> None:
    def refuse(request: Request) -> Response:
        response = good(request)
        for result in response.results:
            result.error.CopyFrom(common_pb2.Error(code=common_pb2.ERROR_CODE_STALE_FENCE, message="fenced"))
        return response

    storage.answer = refuse
    answer = await client.append(KEY, 0)
    assert (answer.error.name, answer.message) == ("STALE_FENCE", "fenced")
    storage.answer = good
    assert (await client.append(KEY, 1)).error.name == "NONE"
    if isinstance(client, Follower):
        assert client.lost == 0


async def test_what_is_in_flight_when_its_owner_stops_is_settled(
    storage: FakeLogStorage, client: Leader | Follower, caplog: pytest.LogCaptureFixture
) -> None:
    storage.silent = True
    sent, waiting = client.append(KEY, 0), client.append(KEY, 1)
    while [0] not in storage.received and [0, 1] not in storage.received:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await client.stop()
    assert [await sent, await waiting] == [None, None]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_incarnation_is_seen_before_what_it_answers(storage: FakeLogStorage) -> None:
    """What a restart ends must not be taken for a sound answer (RULES 1.4)."""
    order: list[Any] = []
    appends = LeaderAppends(storage.address, order.append)
    appends.start()
    async with asyncio.timeout(30):
        await appends.probe(10)

        def restarted(request: Request) -> Response:
            response = good(request)
            response.incarnation = "two"
            return response

        storage.answer = restarted
        order.clear()
        answered = asyncio.Event()

        def take(answer: Any) -> None:
            order.append(answer.incarnation + " answers")
            answered.set()

        appends.send(Append(KEY, 1, 0, b"records"), take)
        await answered.wait()
        assert order == ["two", "two answers"]
        await appends.stop()


async def test_what_was_not_sent_when_its_owner_stops_is_settled(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nobody"
    appends, follower = LeaderAppends(address, lambda incarnation: None), Follower(address)
    appends.start()
    follower.start()
    probing = asyncio.create_task(appends.probe(30))
    waiting = follower.append(KEY, 0)
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await appends.stop()
        await follower.stop()
        with pytest.raises(StorageUnavailableError, match="broke"):
            await probing
        assert await waiting is None
