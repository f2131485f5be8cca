"""However many appends are there, and however many batches in one: the event loop gets its turns between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from append_call import MESSAGE, AppendCall, frame
from log_storage_batches import batch
from log_storage_client import FOLLOWER, LEADER, Storage, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.log.log import Log
from highwater.log_storage.server.append_and_read import FOLLOWED_AT_ONCE
from highwater.log_storage.server.fences import MAX_PARTITIONS
from highwater.rpc.process.loop_turn import TURN_S, LoopTurn
from highwater.v1 import log_storage_pb2

STEP_S = TURN_S / 2
LOGS = 40
MESSAGES = 30


class Rounds:
    """Counts steps by rounds of the loop."""

    def __init__(self) -> None:
        self.steps = 0
        self.most = 0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                before = self.steps
                await asyncio.sleep(0)
                self.most = max(self.most, self.steps - before)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with running(tmp_path) as storage:
        yield storage


def slow(monkeypatch: pytest.MonkeyPatch, name: str) -> Rounds:
    """Makes each append of the log take `STEP_S` at least."""
    rounds, append = Rounds(), getattr(Log, name)

    def appended(*arguments: Any) -> Any:
        rounds.steps += 1
        time.sleep(STEP_S)
        return append(*arguments)

    monkeypatch.setattr(Log, name, appended)
    return rounds


async def test_appends_of_messages_that_wait_are_made_in_many_turns(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key(number) for number in range(LOGS)]
    for each in keys:
        await storage.create(each)
    await storage.fence(LEADER, 1, keys)
    rounds = slow(monkeypatch, "append_as_leader")
    call = AppendCall(storage.service.addresses[0])
    _, writer = await call.connect()
    requests = [
        log_storage_pb2.AppendRequest(
            correlation_id=number,
            role=LEADER,
            partitions=[
                log_storage_pb2.AppendPartition(partition=each, leader_epoch=1, expected_offset=number, records=batch())
                for each in keys
            ],
        ).SerializeToString()
        for number in range(MESSAGES)
    ]
    async with rounds.watched():
        writer.write(b"".join(frame(MESSAGE, request) for request in requests))
        call._unanswered = MESSAGES
        answers = [await call.read() for _ in range(MESSAGES)]
    assert [answer.correlation_id for answer in answers] == list(range(MESSAGES))
    assert all(result.base_offset == answer.correlation_id for answer in answers for result in answer.results)
    assert rounds.steps == LOGS * MESSAGES
    assert rounds.most <= 3
    call.cancel()


def replicated(count: int) -> list[bytes]:
    return [batch(base_offset=number, epoch=1) for number in range(count)]


async def follow(storage: Storage, records: bytes) -> log_storage_pb2.AppendResult:
    await storage.create(key())
    await storage.fence(FOLLOWER, 1, [key()])
    return await storage.append(
        FOLLOWER, partition=key(), leader_epoch=1, expected_offset=0, leader_high_watermark=7, records=records
    )


@pytest.mark.usefixtures("each_transport")
async def test_a_follower_s_thousands_of_batches_are_appended_in_many_turns(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, records = slow(monkeypatch, "append_as_follower"), b"".join(replicated(5_000))
    async with rounds.watched():
        result = await follow(storage, records)
    assert (result.error.code, result.base_offset, result.last_offset) == (0, 0, 4_999)
    assert (result.log.log_end_offset, result.log.high_watermark) == (5_000, 7)
    assert rounds.steps == 5_000 // FOLLOWED_AT_ONCE
    assert rounds.most <= 3
    assert (await storage.read(key(), 0)).records == records


async def test_work_on_many_logs_gives_way(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    given_way = 0

    async def give_way(turn: LoopTurn) -> None:
        nonlocal given_way
        given_way += 1

    monkeypatch.setattr(LoopTurn, "over", lambda turn: True)
    monkeypatch.setattr(LoopTurn, "give_way", give_way)
    marks = [log_storage_pb2.PartitionHighWatermark(partition=key(number), leader_epoch=1) for number in range(5)]
    request = log_storage_pb2.CheckpointHighWatermarksRequest(partitions=marks)
    assert len((await storage.stub.CheckpointHighWatermarks(request)).errors) == 5
    assert given_way == 5
    assert len(await storage.fence(FOLLOWER, 1, [key(number) for number in range(7)])) == 7
    assert given_way == 5 + 7
    flush = log_storage_pb2.FlushRequest(partitions=[key(number) for number in range(9)])
    assert len((await storage.stub.Flush(flush)).errors) == 9
    assert given_way == 5 + 7 + 9
    described = log_storage_pb2.DescribeLogsRequest(partitions=[key(number) for number in range(11)])
    assert len((await storage.stub.DescribeLogs(described)).logs) == 11
    assert given_way == 5 + 7 + 9 + 2 * 11  # those that there are come first


async def test_fences_of_too_many_at_once_are_refused(storage: Storage) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="fences of 2001 partitions: 2000 are the most, send several"):
        await storage.fence(FOLLOWER, 1, [key(number) for number in range(MAX_PARTITIONS + 1)])
    assert len(await storage.fence(FOLLOWER, 1, [key(number) for number in range(MAX_PARTITIONS)])) == MAX_PARTITIONS


async def test_a_damaged_batch_among_many_keeps_those_before_it(storage: Storage) -> None:
    """The answer says how far the log goes; a follower reads that, and goes on from there."""
    damaged = replicated(3 * FOLLOWED_AT_ONCE)
    at = 2 * FOLLOWED_AT_ONCE + 5
    damaged[at] = damaged[at][:-1] + b"?"
    result = await follow(storage, b"".join(damaged))
    assert result.error.code == ErrorCode.CORRUPT_MESSAGE
    assert result.log.log_end_offset == 2 * FOLLOWED_AT_ONCE


async def test_a_turn_ends_by_the_clock_and_begins_when_others_had_theirs() -> None:
    now_s = 0.0
    turn, rounds = LoopTurn(lambda: now_s), Rounds()
    async with rounds.watched():
        for _ in range(100):
            if turn.over():
                await turn.give_way()
            rounds.steps += 1
            now_s += TURN_S / 8
    assert rounds.most == 8


def test_who_has_waited_otherwise_does_not_give_way() -> None:
    now_s = 0.0
    turn = LoopTurn(lambda: now_s)
    for _ in range(5):
        assert not turn.over()
        now_s += 2 * TURN_S
        assert turn.over()
        turn.waits()
