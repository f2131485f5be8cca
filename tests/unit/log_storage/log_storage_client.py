"""A log-storage service over a Unix socket, and its client with the calls that the tests need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from append_call import AppendCall
from append_server import APPEND_SOCKET, GRPC
from log_storage_batches import produced

from highwater.errors import ErrorCode
from highwater.log_storage.log.log import Log
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.settings import load
from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc

LEADER, FOLLOWER = log_storage_pb2.ROLE_LEADER, log_storage_pb2.ROLE_FOLLOWER
Code = ErrorCode

DEADLINE_S = 20
appends_over = GRPC  # or the append socket (`each_transport` in conftest.py)


class Storage:
    """A client of one log-storage, with the calls that the tests need."""

    def __init__(self, service: LogStorageService, stub: log_storage_pb2_grpc.LogStorageAsyncStub) -> None:
        self.service = service
        self.stub = stub

    async def create(self, partition: common_pb2.PartitionKey, topic: str = "t", **config: str) -> Any:
        keys = {key.replace("_", "."): value for key, value in config.items()}
        return await self.stub.CreateLog(
            log_storage_pb2.CreateLogRequest(topic=topic, partition=partition, config=keys)
        )

    async def fence(
        self, role: int, epoch: int, partitions: Iterable[common_pb2.PartitionKey], replica_manager: str = "rm"
    ) -> list[log_storage_pb2.FenceResult]:
        answer = await self.stub.FenceEpoch(
            log_storage_pb2.FenceEpochRequest(
                role=role,  # type: ignore[arg-type]
                replica_manager_incarnation=replica_manager,
                partitions=[
                    log_storage_pb2.FencePartition(partition=partition, leader_epoch=epoch) for partition in partitions
                ],
            )
        )
        assert answer.incarnation == self.service.incarnation
        return list(answer.results)

    def append_call(self) -> Any:
        return AppendCall(self.service.addresses[0]) if appends_over == APPEND_SOCKET else self.stub.Append()

    async def append(self, role: int, **fields: Any) -> log_storage_pb2.AppendResult:
        """One request through a stream of its own."""
        call = self.append_call()
        await call.write(appending(role, **fields))
        answer = await call.read()
        await call.done_writing()
        return answer.results[0]

    async def read(self, partition: common_pb2.PartitionKey, offset: int, max_bytes: int = 1 << 20) -> Any:
        return await self.stub.Read(
            log_storage_pb2.ReadRequest(partition=partition, offset=offset, max_offset=-1, max_bytes=max_bytes)
        )


def appending(role: int, correlation_id: int = 0, **fields: Any) -> log_storage_pb2.AppendRequest:
    return log_storage_pb2.AppendRequest(
        correlation_id=correlation_id,
        role=role,  # type: ignore[arg-type]
        partitions=[log_storage_pb2.AppendPartition(**fields)],
    )


def key(partition: int = 0, topic: bytes = b"t") -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=topic * 16, partition=partition)


@asynccontextmanager
async def running(directory: Path, **settings: str) -> AsyncIterator[Storage]:
    values = {
        "broker.id": "1",
        "log.dirs": str(directory / "data"),
        "listen": f"unix:{directory}/s",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    service = LogStorageService(load(LogStorageSettings, values))
    await service.start()
    try:
        async with open_channel(service.addresses[0]) as channel, asyncio.timeout(DEADLINE_S):
            yield Storage(service, log_storage_pb2_grpc.LogStorageStub(channel))
    finally:
        await service.stop()


async def filled(storage: Storage, batches: int) -> Log:
    """A served log of several segments and a producer."""
    await storage.create(key(), segment_bytes="1024")
    await storage.fence(LEADER, 1, [key()])
    for number in range(batches):
        await storage.append(
            LEADER, partition=key(), leader_epoch=1, expected_offset=number, records=produced(1, sequence=number)
        )
    manager = storage.service._manager
    return manager.logs.get(PartitionKey(b"t" * 16, 0)).online()
