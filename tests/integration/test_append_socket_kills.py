"""A log-storage that is killed, or stopped for a while, in the middle of appends, over each transport."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from append_server import APPEND_SOCKET, GRPC, TRANSPORTS
from replica_manager_cluster import rows

from highwater.cli.child_process import ChildProcess
from highwater.errors import ErrorCode
from highwater.log_storage_client import append_stream
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import Append, AppendAnswer, NewLog, StorageUnavailableError
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.rpc.connections.channel import open_channel

KEY = PartitionKey(b"t" * 16, 0)
DEADLINE_S = 30
IN_FLIGHT = 32
KILLS = 4


class Broker:
    """log-storage in a process, and the leader of one log here."""

    def __init__(self, directory: Path) -> None:
        address = f"unix:{directory}/s"
        given = {"broker.id": "1", "listen": address, "log.dirs": str(directory / "data")}
        command = [sys.executable, "-m", "highwater.log_storage", *(f"--set={k}={v}" for k, v in given.items())]
        self.process = ChildProcess("log-storage", command, directory / "log")
        self.calls = LogStorageClient(open_channel(address), timeout_s=DEADLINE_S)
        self.appends = LeaderAppends(address, lambda incarnation: None)
        self.epoch = 0
        self.end = 0

    async def connected(self) -> str:
        while True:
            try:
                return await self.appends.probe(DEADLINE_S)
            except StorageUnavailableError:
                await asyncio.sleep(0.02)

    async def lead(self) -> int:
        """Under the next epoch; the log end offset (RULES 3.2)."""
        await self.connected()
        (created,) = await self.calls.create_logs([NewLog("t", KEY, {})])
        assert created.error.code is ErrorCode.NONE
        self.epoch += 1
        (fenced,) = await self.calls.fence(Role.LEADER, [(KEY, self.epoch)], replica_manager_incarnation="rm")
        assert fenced.error.code is ErrorCode.NONE
        self.end = fenced.log.log_end_offset
        return self.end

    def append(self) -> asyncio.Future[AppendAnswer | None]:
        answered: asyncio.Future[AppendAnswer | None] = asyncio.get_running_loop().create_future()
        self.appends.send(Append(KEY, self.epoch, self.end, rows(b"%d" % self.end * 200)), answered.set_result)
        self.end += 1
        return answered


@pytest.fixture(params=TRANSPORTS)
async def broker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Broker]:
    if request.param == GRPC:
        monkeypatch.setattr(append_stream, "socket_path", lambda address, suffix: None)
    broker = Broker(tmp_path)
    broker.process.start()
    broker.appends.start()
    async with asyncio.timeout(4 * DEADLINE_S):
        assert await broker.connected()
        connection = broker.appends._stream._connection
        assert (connection is not None) is (request.param == APPEND_SOCKET)
        yield broker
    await broker.appends.stop()
    await broker.calls.close()
    broker.process.kill()


async def test_what_a_kill_leaves_unanswered_is_settled_by_the_next_fence(broker: Broker) -> None:
    """RULES 3.4, invariant 7: what was acknowledged is in the log, and of the rest a beginning, once."""
    acknowledged = 0
    for kill in range(KILLS):
        end = await broker.lead()
        assert acknowledged <= end
        sent = [broker.append() for _ in range(IN_FLIGHT)]
        assert (await sent[0]) is not None
        killing = asyncio.get_running_loop().run_in_executor(None, broker.process.kill)
        while not killing.done():
            sent.append(broker.append())
            await asyncio.sleep(0.001)
        answers = [await answered for answered in sent]
        known = [answer for answer in answers if answer is not None]
        assert answers[len(known) :] == [None] * (len(answers) - len(known))  # a beginning, in the order of the stream
        assert [answer.base_offset for answer in known] == list(range(end, end + len(known)))
        acknowledged = end + len(known)
        broker.process.start()
        assert kill or await broker.connected()
    assert await broker.lead() >= acknowledged
    answer = await broker.append()
    assert answer is not None
    assert answer.error is ErrorCode.NONE


async def test_a_log_storage_that_stands_still_is_one_that_does_not_answer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe has its own limit (RULES 8.2), an append that of the stream; both transports go on when it does."""
    await broker.lead()
    monkeypatch.setattr(append_stream, "LIMIT_S", 0.5)
    assert broker.process.pid is not None
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StorageUnavailableError, match=r"within 0\.1 s"):
            await broker.appends.probe(0.1)
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    await broker.lead()
    monkeypatch.setattr(append_stream, "LIMIT_S", 10.0)
    await broker.connected()
    await broker.lead()
    answer = await broker.append()
    assert answer is not None
    assert answer.error is ErrorCode.NONE
