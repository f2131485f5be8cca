"""The way of all fetchers to their broker's log-storage: the one Append stream, which they share, and the calls beside
it, in the words of the followers.

Whatever is sent and not answered is of unknown outcome, and its sender fences again (RULES 3.4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from highwater.errors import ErrorCode
from highwater.fetcher.follower import actions as act
from highwater.fetcher.follower.actions import FenceAnswer, LogAnswer, TruncateFullyAndStartAt, TruncateTo
from highwater.log_storage_client.append_stream import AppendStream, Message
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.supervision import TaskSupervisor

CALL_TIMEOUT_S = 30.0
RECONNECT_S = 0.1

Appends = Sequence[tuple[PartitionKey, act.Append]]
Appended = Callable[[Sequence[LogAnswer] | None, str], None]


class LogStorage:
    """`address` is `host:port`, `ssl:host:port` or `unix:/path`. Connects, and connects again, by itself; `lost` is
    called whenever the connection breaks. Calls raise `StorageUnavailableError` where they are not answered.

    How much may be under way at once is for the fetchers to bound (`replica_fetcher.APPENDS_IN_FLIGHT` each, and
    `FetchBudget` together).
    """

    def __init__(
        self,
        address: str,
        lost: Callable[[], None] = lambda: None,
        *,
        supervisor: TaskSupervisor | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        channel = open_channel(address, certificates)
        self._client = LogStorageClient(
            channel, timeout_s=CALL_TIMEOUT_S, unanswered=f"log-storage at {address} did not answer"
        )
        self._stream = AppendStream(
            channel,
            address,
            Role.FOLLOWER,
            self._next_message,
            self._unsent,
            greets=False,  # what is handed over meanwhile waits for the stream
            reconnect_s=RECONNECT_S,
            lost=lost,
            supervisor=supervisor,
        )
        self._pending: deque[Message] = deque()

    @property
    def reachable(self) -> asyncio.Event:
        return self._stream.connected

    def start(self) -> None:
        self._stream.start()

    async def stop(self) -> None:
        await self._stream.stop()
        await self._client.close()

    def append(self, appends: Appends, answered: Appended) -> None:
        """One message. `answered` gets the answers in the order of `appends`, or None and the reason where the outcome
        is not known; messages are answered in the order in which they were handed over."""
        parts = [
            Append(
                key,
                append.leader_epoch,
                append.expected_offset,
                append.records or b"",
                append.leader_high_watermark,
                append.leader_log_start_offset,
                append.traceparents,
            )
            for key, append in appends
        ]
        self._pending.append(Message(parts, partial(_answered, appends, answered)))
        self._stream.wake()

    async def fence(self, fences: Sequence[tuple[PartitionKey, act.Fence]]) -> list[FenceAnswer]:
        """FenceEpoch with role FOLLOWER, answered in the order of `fences`."""
        fenced = await self._client.fence(Role.FOLLOWER, [(key, fence.leader_epoch) for key, fence in fences])
        return [
            FenceAnswer(
                fence.generation,
                log.incarnation,
                log.log if log.error.code is ErrorCode.NONE else None,
                log.epochs,
                log.error.code,
                log.error.message,
            )
            for (_, fence), log in zip(fences, fenced, strict=True)
        ]

    async def truncate(self, key: PartitionKey, action: TruncateTo | TruncateFullyAndStartAt) -> LogAnswer:
        client = self._client
        cut = client.truncate_to if isinstance(action, TruncateTo) else client.truncate_fully_and_start_at
        answer = await cut(
            key,
            action.leader_epoch,
            action.offset,
            action.unclean_epoch,
            action.expected_log_end_offset,
            action.expected_last_epoch,
        )
        error = answer.error
        log = answer.log if error.code is ErrorCode.NONE else None
        return LogAnswer(action.generation, answer.incarnation, log, error.code, error.message)

    def _next_message(self) -> Message | None:
        return self._pending.popleft() if self._pending else None

    def _unsent(self) -> Iterable[Message]:
        pending, self._pending = self._pending, deque()
        return pending


def _answered(appends: Appends, answered: Appended, answers: Sequence[AppendAnswer] | None, reason: str) -> None:
    if answers is None:
        answered(None, reason)
        return
    answered(
        [
            LogAnswer(
                append.generation,
                answer.incarnation,
                answer.log if answer.error is ErrorCode.NONE else None,
                answer.error,
                answer.message,
            )
            for (_, append), answer in zip(appends, answers, strict=True)
        ],
        "",
    )
