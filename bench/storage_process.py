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
from highwater.log_storage_client.append_stream import AppendAnswer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import read_header
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.replica_manager.storage.log_storage import LogStorage

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 30


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


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[LogStorage]:
    """Returns when it answers."""
    storage = LogStorage(address, lambda incarnation: None)
    storage.start()
    try:
        await storage.probe(START_TIMEOUT_S)
        yield storage
    finally:
        await storage.stop()


class Appender:
    """The leader of one log."""

    def __init__(self, pipeline: AppendPipeline, log_end_offset: int) -> None:
        self._pipeline = pipeline
        self.log_end_offset = log_end_offset

    @classmethod
    async def leading(
        cls, storage: LogStorage, key: PartitionKey, config: Mapping[str, str], *, leader_epoch: int = 0
    ) -> Self:
        """The log is made where there is none. A leader epoch leads once (RULES 3.2)."""
        made = await storage.create_log("bench", key, config, "")
        if made.error.code is not ErrorCode.NONE:
            raise RuntimeError(f"{made.error.code.name}: {made.error.message}")
        (fenced,) = await storage.fence(Role.LEADER, "bench", [(key, leader_epoch)])
        end = fenced.log_end_offset
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
