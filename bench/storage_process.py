"""A log-storage in a process of its own, appended to as a broker does."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Self

from highwater.cli.child_process import ChildProcess
from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import AppendAnswer, NewLog
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import read_header
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.rpc.connections.channel import open_channel

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 30
CALL_TIMEOUT_S = 5


@contextlib.contextmanager
def log_storage_process(directory: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Its address; the logs are in `directory / "data"`."""
    address = f"unix:{directory / 'socket'}"
    given = {"broker.id": "1", "listen": address, "log.dirs": str(directory / "data"), **settings}
    arguments = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    process = ChildProcess(
        "log-storage", [sys.executable, "-m", "highwater.log_storage", *arguments], directory / "output"
    )
    process.start()
    try:
        yield address
    finally:
        process.terminate()
        if not process.wait(STOP_TIMEOUT_S):
            process.kill()


class Storage:
    """The two ways of a broker to its log-storage."""

    def __init__(self, address: str) -> None:
        self.calls = LogStorageClient(open_channel(address), timeout_s=CALL_TIMEOUT_S)
        self.appends = LeaderAppends(address, lambda incarnation: None)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Storage]:
    """Returns when it answers."""
    storage = Storage(address)
    storage.appends.start()
    try:
        await storage.appends.probe(START_TIMEOUT_S)
        yield storage
    finally:
        await storage.appends.stop()
        await storage.calls.close()


class Appender:
    """The leader of one log."""

    def __init__(self, pipeline: AppendPipeline, log_end_offset: int) -> None:
        self._pipeline = pipeline
        self.log_end_offset = log_end_offset

    @classmethod
    async def leading(
        cls, storage: Storage, key: PartitionKey, config: Mapping[str, str], *, leader_epoch: int = 0
    ) -> Self:
        """The log is made where there is none. A leader epoch leads once (RULES 3.2)."""
        (made,) = await storage.calls.create_logs([NewLog("bench", key, config)])
        if made.error.code is not ErrorCode.NONE:
            raise RuntimeError(f"{made.error.code.name}: {made.error.message}")
        (fenced,) = await storage.calls.fence(Role.LEADER, [(key, leader_epoch)], replica_manager_incarnation="bench")
        end = fenced.log.log_end_offset
        return cls(
            AppendPipeline(
                key,
                leader_epoch,
                end,
                send=storage.appends.send,
                log_ended=lambda answer: None,
                interrupted=_failed,
                log_failed=_failed,
            ),
            end,
        )

    async def append(self, records: bytes) -> None:
        """Returns when it is answered. Raises `RuntimeError` where that is an error."""
        offsets = read_header(records).last_offset_delta + 1
        answered: asyncio.Future[AppendAnswer] = asyncio.get_running_loop().create_future()
        self._pipeline.append(records, offsets, answered.set_result)
        answer = await answered
        if answer.error is not ErrorCode.NONE:
            raise RuntimeError(f"{answer.error.name}: {answer.message}")
        self.log_end_offset += offsets


def _failed() -> None:
    raise RuntimeError("the log takes no appends")
