"""A leader's replica-manager as a fetcher sees it: the Broker service over logs that a test writes by hand, and the
WatchFollowing stream of the follower's own replica-manager. Test doubles at the gRPC edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.records import Record, encode_rows
from highwater.rpc.errors import to_proto
from highwater.rpc.server import RpcServer
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2, replica_control_pb2, replica_control_pb2_grpc


@dataclass(frozen=True)
class Batch:
    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes


@dataclass
class LeaderLog:
    leader_epoch: int
    batches: list[Batch] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 0
    acked_offset: int = -1  # of the one follower
    error: ErrorCode = ErrorCode.NONE  # what every fetch is answered with

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.log_start_offset

    def write(self, records: int = 1, *, leader_epoch: int | None = None, value: bytes = b"value") -> Batch:
        epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        base = self.log_end_offset
        rows = [Record(base + i, 1_000, None, value, ()) for i in range(records)]
        batch = Batch(base, base + records, epoch, encode_rows(rows, base_offset=base, leader_epoch=epoch))
        self.batches.append(batch)
        return batch

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch at or below the one given, and its end; epoch -1: there is none."""
        found, end = -1, self.log_start_offset
        for batch in self.batches:
            if batch.leader_epoch <= leader_epoch:
                found, end = batch.leader_epoch, batch.next_offset
        return found, end

    def answer(self, part: broker_pb2.FetchPartition) -> broker_pb2.FetchResult:
        result = broker_pb2.FetchResult(
            partition=part.partition,
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )
        error = self.error
        if error is ErrorCode.NONE and part.leader_epoch != self.leader_epoch:
            lower = part.leader_epoch < self.leader_epoch
            error = ErrorCode.FENCED_LEADER_EPOCH if lower else ErrorCode.UNKNOWN_LEADER_EPOCH
        if error is ErrorCode.NONE and not self.log_start_offset <= part.fetch_offset <= self.log_end_offset:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error is not ErrorCode.NONE:
            result.error.CopyFrom(to_proto(error))
            return result
        epoch, end = self.epoch_end(part.last_epoch)
        if part.last_epoch >= 0 and (epoch != part.last_epoch or end < part.fetch_offset):
            result.diverging.leader_epoch, result.diverging.end_offset = epoch, end
            return result
        self.acked_offset = part.acked_offset
        size = 0
        data = []
        for batch in self.batches:
            if batch.next_offset > part.fetch_offset and (not data or size + len(batch.data) <= part.max_bytes):
                data.append(batch.data)
                size += len(batch.data)
            elif data:
                break
        result.records = b"".join(data)
        return result


class FakeLeader(broker_pb2_grpc.BrokerServicer):
    """`changed` has to be notified (`write`, `wake`) for a waiting fetch to look again."""

    def __init__(self) -> None:
        self.logs: dict[PartitionKey, LeaderLog] = {}
        self.requests: list[broker_pb2.FetchRequest] = []
        self.sessions: list[int] = []  # broker epoch of each stream's first request
        self.open_streams = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.session_error = ErrorCode.NONE
        self._changed = asyncio.Condition()
        self._server: RpcServer | None = None

    async def start(self, listen: str = "127.0.0.1:0") -> str:
        self._server = RpcServer([listen])
        broker_pb2_grpc.add_BrokerServicer_to_server(self, self._server.grpc)
        await self._server.start(["highwater.v1.Broker"])
        return self._server.addresses[0]

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def write(self, key: PartitionKey, records: int = 1, **options: Any) -> Batch:
        batch = self.logs[key].write(records, **options)
        await self.wake()
        return batch

    async def until_asked(self, asked: int) -> None:
        """Until so many requests have come in."""
        async with self._changed, asyncio.timeout(10):
            await self._changed.wait_for(lambda: len(self.requests) >= asked)

    async def until_acked(self, key: PartitionKey, offset: int) -> None:
        async with self._changed, asyncio.timeout(10):
            await self._changed.wait_for(lambda: self.logs[key].acked_offset == offset)

    async def FetchStream(
        self, request_iterator: AsyncIterator[broker_pb2.FetchRequest], context: Any
    ) -> AsyncIterator[broker_pb2.FetchResponse]:
        queue: asyncio.Queue[broker_pb2.FetchRequest | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, queue))
        self.open_streams += 1
        try:
            while (request := await queue.get()) is not None:
                await self.answering.wait()
                yield await self._answer(request, queue)
        finally:
            self.open_streams -= 1
            reader.cancel()

    async def _read(
        self, requests: AsyncIterator[broker_pb2.FetchRequest], queue: asyncio.Queue[broker_pb2.FetchRequest | None]
    ) -> None:
        first = True
        async for request in requests:
            if first:
                self.sessions.append(request.replica.broker_epoch)
                first = False
            self.requests.append(request)
            queue.put_nowait(request)
            await self.wake()
        queue.put_nowait(None)
        await self.wake()

    async def _answer(
        self, request: broker_pb2.FetchRequest, queue: asyncio.Queue[broker_pb2.FetchRequest | None]
    ) -> broker_pb2.FetchResponse:
        response = broker_pb2.FetchResponse(correlation_id=request.correlation_id)
        if self.session_error is not ErrorCode.NONE:
            response.error.CopyFrom(to_proto(self.session_error))
            return response

        def results() -> bool:
            del response.results[:]
            for part in request.partitions:
                log = self.logs.get(PartitionKey(part.partition.topic_id, part.partition.partition))
                if log is None:
                    error = to_proto(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    response.results.append(broker_pb2.FetchResult(partition=part.partition, error=error))
                else:
                    response.results.append(log.answer(part))
            return any(r.records or r.error.code or r.HasField("diverging") for r in response.results)

        async with self._changed:
            ready = results()
            self._changed.notify_all()
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    while not ready and queue.empty():
                        await self._changed.wait()
                        ready = results()
            except TimeoutError:
                pass
        return response


class FakeReplicaControl(replica_control_pb2_grpc.ReplicaControlServicer):
    """The follower's own replica-manager: says what to follow."""

    def __init__(self) -> None:
        self._following: replica_control_pb2.Following | None = None
        self._version = 0
        self._changed = asyncio.Condition()
        self._server = RpcServer(["127.0.0.1:0"])

    async def start(self) -> str:
        replica_control_pb2_grpc.add_ReplicaControlServicer_to_server(self, self._server.grpc)
        await self._server.start(["highwater.v1.ReplicaControl"])
        return self._server.addresses[0]

    async def stop(self) -> None:
        await self._server.stop(0)

    async def publish(
        self,
        incarnation: str,
        partitions: dict[PartitionKey, tuple[int, str, int]],
        *,
        broker_epoch: int = 7,
        unclean_epoch: int = -1,
    ) -> None:
        """`partitions`: key -> (leader, its address, leader epoch)."""
        async with self._changed:
            self._version += 1
            self._following = replica_control_pb2.Following(
                broker_id=3,
                broker_epoch=broker_epoch,
                log_storage_incarnation=incarnation,
                partitions=[
                    replica_control_pb2.FollowedPartition(
                        topic="flights",
                        partition=common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition),
                        leader=leader,
                        leader_address=address,
                        leader_epoch=leader_epoch,
                        unclean_epoch=unclean_epoch,
                    )
                    for key, (leader, address, leader_epoch) in partitions.items()
                ],
            )
            self._changed.notify_all()

    async def WatchFollowing(
        self, request: replica_control_pb2.WatchFollowingRequest, context: Any
    ) -> AsyncIterator[replica_control_pb2.Following]:
        seen = 0
        while True:
            async with self._changed:
                while self._version == seen:
                    await self._changed.wait()
                seen = self._version
                assert self._following is not None
                following = self._following
            yield following
