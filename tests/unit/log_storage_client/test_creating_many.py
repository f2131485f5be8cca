"""Many logs are made by few calls; a log-storage of before is asked for one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LOGS_AT_ONCE, LogStorageClient
from highwater.log_storage_client.values import CreateAnswer, NewLog
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import to_proto
from highwater.v1 import log_storage_pb2, log_storage_pb2_grpc

LOGS = [NewLog("t", PartitionKey(b"t" * 16, number), {"retention.ms": "1"}, "of before") for number in range(150)]
REFUSED = 7  # a partition


class Older(log_storage_pb2_grpc.LogStorageServicer):
    """Does not know CreateLogs."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.asked: list[NewLog] = []

    async def CreateLog(self, request: Any, context: Any) -> Any:
        self.calls["CreateLog"] += 1
        return log_storage_pb2.CreateLogResponse(incarnation="ls", error=self._made(request).error)

    def _made(self, request: log_storage_pb2.CreateLogRequest) -> log_storage_pb2.CreateLogResult:
        key = PartitionKey(request.partition.topic_id, request.partition.partition)
        self.asked.append(NewLog(request.topic, key, dict(request.config), request.newer_than_incarnation))
        error = ErrorCode.INVALID_TOPIC if key.partition == REFUSED else ErrorCode.NONE
        return log_storage_pb2.CreateLogResult(error=to_proto(error, "a sentence"))


class Present(Older):
    async def CreateLogs(self, request: Any, context: Any) -> Any:
        self.calls["CreateLogs"] += 1
        return log_storage_pb2.CreateLogsResponse(incarnation="ls", results=map(self._made, request.logs))


class Silent(Present):
    async def CreateLogs(self, request: Any, context: Any) -> Any:
        self.calls["CreateLogs"] += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")


@asynccontextmanager
async def client(servicer: Older, directory: Path, seen: list[str]) -> AsyncIterator[LogStorageClient]:
    server = grpc.aio.server()
    log_storage_pb2_grpc.add_LogStorageServicer_to_server(servicer, server)
    address = f"unix:{directory}/ls"
    server.add_insecure_port(address)
    await server.start()
    made = LogStorageClient(open_channel(address), timeout_s=5, seen=seen.append)
    yield made
    await made.close()
    await server.stop(None)


@pytest.mark.parametrize(
    ("servicer", "calls"), [(Present(), {"CreateLogs": 3}), (Older(), {"CreateLog": len(LOGS)})], ids=["now", "before"]
)
async def test_the_answers_come_in_the_order_of_the_logs(
    servicer: Older, calls: dict[str, int], tmp_path: Path
) -> None:
    assert -(-len(LOGS) // LOGS_AT_ONCE) == 3
    seen: list[str] = []
    async with client(servicer, tmp_path, seen) as storage:
        answers = await storage.create_logs(LOGS)
    assert servicer.calls == calls
    assert sorted(servicer.asked, key=lambda log: log.key.partition) == LOGS
    assert [number for number, answer in enumerate(answers) if answer.error.code is not ErrorCode.NONE] == [REFUSED]
    assert answers[REFUSED].error.message == "a sentence"
    assert {answer.incarnation for answer in answers} == set(seen) == {"ls"}


async def test_logs_behind_a_call_that_is_not_answered_are_not_waited_for(tmp_path: Path) -> None:
    servicer, seen = Silent(), list[str]()
    async with client(servicer, tmp_path, seen) as storage:
        answers: list[CreateAnswer] = await storage.create_logs(LOGS)
        assert await storage.create_logs([]) == []
    assert servicer.calls == {"CreateLogs": 1}
    assert len(answers) == len(LOGS)
    assert {(answer.error.code, answer.incarnation) for answer in answers} == {(ErrorCode.LOG_STORAGE_ERROR, "")}
    assert "not now" in answers[-1].error.message
    assert not seen
