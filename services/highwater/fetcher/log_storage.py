"""The fetchers' client of their own broker's log-storage: one Append stream that all of them share, and the calls
beside it.

Whatever is sent and not answered is of unknown outcome, and its sender fences again (RULES 3.4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from highwater.fetcher.follower.actions import (
    Append,
    Fence,
    FenceAnswer,
    LogAnswer,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from highwater.fetcher.wire import (
    from_fence_result,
    from_log_result,
    to_append_request,
    to_key,
    to_truncate_fully,
    to_truncate_to,
)
from highwater.log_storage_client.append_request import APPEND_METHOD
from highwater.model.partition import PartitionKey
from highwater.rpc.bidirectional_stream import StreamEndedError, drive_stream
from highwater.rpc.channel import open_channel
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import log_storage_pb2, log_storage_pb2_grpc

logger = get_logger("fetcher.log_storage")

CALL_TIMEOUT_S = 30.0
APPEND_LIMIT_S = 10.0  # for the next answer of the stream; with flush.messages=1 it waits for a disk
RECONNECT_S = 0.1

Response = TypeVar("Response")
Appended = Callable[[Sequence[LogAnswer] | None, str], None]


class OutcomeUnknownError(Exception):
    """log-storage was asked and did not answer."""


@dataclass(frozen=True, slots=True)
class _Sent:
    correlation_id: int
    appends: Sequence[tuple[PartitionKey, Append]]
    answered: Appended


class LogStorage:
    """`address` is `host:port` or `unix:/path`. Connects, and connects again, by itself; `lost` is called whenever the
    connection breaks.

    How much may be under way at once is for the fetchers to bound (`replica_fetcher.APPENDS_IN_FLIGHT` each).
    """

    def __init__(
        self, address: str, lost: Callable[[], None] = lambda: None, *, supervisor: TaskSupervisor | None = None
    ) -> None:
        self._supervisor = supervisor or TaskSupervisor()
        self.reachable = asyncio.Event()
        self._address = address
        self._lost = lost
        self._channel = open_channel(address)
        self._stub = log_storage_pb2_grpc.LogStorageStub(self._channel)
        self._open_appends = self._channel.stream_stream(
            APPEND_METHOD,
            request_serializer=bytes,
            response_deserializer=log_storage_pb2.AppendResponse.FromString,
        )
        self._pending: deque[_Sent] = deque()
        self._sent: deque[_Sent] = deque()
        self._wake = asyncio.Event()
        self._last_correlation_id = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._supervisor.run_forever("append-stream", self._run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close(None)

    def append(self, appends: Sequence[tuple[PartitionKey, Append]], answered: Appended) -> None:
        """One AppendRequest. `answered` gets the answers in the order of `appends`, or None and the reason where the
        outcome is not known; requests are answered in the order in which they were made."""
        self._last_correlation_id += 1
        self._pending.append(_Sent(self._last_correlation_id, appends, answered))
        self._wake.set()

    async def fence(self, fences: Sequence[tuple[PartitionKey, Fence]]) -> list[FenceAnswer]:
        """FenceEpoch with role FOLLOWER, answered in the order of `fences`. Raises `OutcomeUnknownError`."""
        request = log_storage_pb2.FenceEpochRequest(
            role=log_storage_pb2.ROLE_FOLLOWER,
            partitions=[
                log_storage_pb2.FencePartition(partition=to_key(key), leader_epoch=fence.leader_epoch)
                for key, fence in fences
            ],
        )
        response = await self._answer(self._stub.FenceEpoch(request, timeout=CALL_TIMEOUT_S))
        return [
            from_fence_result(result, response.incarnation, fence.generation)
            for (_, fence), result in zip(fences, response.results, strict=True)
        ]

    async def truncate(self, key: PartitionKey, action: TruncateTo | TruncateFullyAndStartAt) -> LogAnswer:
        """Raises `OutcomeUnknownError`."""
        call: Awaitable[log_storage_pb2.TruncateResponse]
        if isinstance(action, TruncateTo):
            call = self._stub.TruncateTo(to_truncate_to(key, action), timeout=CALL_TIMEOUT_S)
        else:
            call = self._stub.TruncateFullyAndStartAt(to_truncate_fully(key, action), timeout=CALL_TIMEOUT_S)
        response = await self._answer(call)
        return from_log_result(response, response.incarnation, action.generation)

    async def _answer(self, call: Awaitable[Response]) -> Response:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise OutcomeUnknownError(
                f"log-storage at {self._address} did not answer: {error.code().name}: {error.details()}"
            ) from error

    async def _run(self) -> None:
        while True:
            await self._channel.channel_ready()
            self.reachable.set()
            reason = "the append stream ended"
            try:
                call = self._open_appends(None, wait_for_ready=True)
                await drive_stream(
                    call,
                    self._requests(),
                    self._received,
                    oldest=lambda: self._sent[0] if self._sent else None,
                    limit_s=APPEND_LIMIT_S,
                )
            except StreamEndedError as error:
                reason = str(error)
            except Exception:  # a mistake of ours: loud, and what was in flight is settled as after any break
                logger.exception("append stream failed")
            finally:
                self.reachable.clear()
                self._fail_all(f"the append stream to log-storage at {self._address} broke: {reason}")
            self._lost()
            logger.warning("append stream broke %s", pairs(address=self._address, reason=repr(reason)))
            await asyncio.sleep(RECONNECT_S)

    async def _requests(self) -> AsyncIterator[bytes]:
        while True:
            while self._pending:
                sent = self._pending.popleft()
                self._sent.append(sent)
                yield to_append_request(sent.correlation_id, sent.appends)
            self._wake.clear()
            await self._wake.wait()

    def _received(self, response: log_storage_pb2.AppendResponse) -> None:
        sent = self._sent[0]  # it stays there until it can be answered
        if response.correlation_id != sent.correlation_id or len(response.results) != len(sent.appends):
            raise StreamEndedError(
                f"answer {response.correlation_id} for {len(response.results)} partitions where"
                f" {sent.correlation_id} for {len(sent.appends)} was due"
            )
        answers = [
            from_log_result(result, response.incarnation, append.generation)
            for (_, append), result in zip(sent.appends, response.results, strict=True)
        ]
        self._sent.popleft()
        sent.answered(answers, "")

    def _fail_all(self, reason: str) -> None:
        failed = [*self._sent, *self._pending]
        self._sent.clear()
        self._pending.clear()
        for sent in failed:
            try:
                sent.answered(None, reason)
            except Exception:  # one fetcher's: the others are not to wait for ever
                logger.exception("an append of unknown outcome could not be settled")
