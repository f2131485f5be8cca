"""A member's stream to its coordinator: words out, answers in."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from highwater.client.cluster.connection import END_OF_STREAM, Connection, transport_error
from highwater.client.exceptions import AuthenticationError, HighwaterError, NetworkError, RetriableError
from highwater.client.membership.words import Answer, Failure, GroupPartition, Partitions, Word
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.supervision import is_cancelled
from highwater.telemetry.log import get_logger
from highwater.v1 import group_pb2, group_pb2_grpc

_log = get_logger(__name__)

HANG_UP_TIMEOUT_S = 0.5  # for the coordinator to end a stream that the member has ended


class SessionStream:
    """Opened at once. `on_answer` gets every answer; `on_end`, once, why it has ended. At most one word waits to be
    written: a later one says what it says."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        first: Word,
        *,
        group: str,
        member_id: str,
        instance_id: str,
        on_answer: Callable[[Answer], None],
        on_end: Callable[[Failure], None],
    ) -> None:
        self._connect = connect
        self._names = (group, member_id, instance_id)
        self._on_answer = on_answer
        self._on_end = on_end
        self._pending: Word | None = first
        self._wake = asyncio.Event()
        self._wake.set()
        self._closed = False
        self._call: Any = None
        self._bug: Exception | None = None
        self._running = asyncio.create_task(self._run())

    def say(self, word: Word) -> None:
        self._pending = word if self._pending is None else word.after(self._pending)
        self._wake.set()

    def close(self) -> None:
        """Ends it; nothing is told any more."""
        self._closed = True
        self._wake.set()
        asyncio.get_running_loop().call_later(HANG_UP_TIMEOUT_S, self._running.cancel)

    @property
    def is_over(self) -> bool:
        return self._running.done()

    async def closed(self) -> None:
        """Waits for the end after `close`."""
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        code, message = ErrorCode.NETWORK_EXCEPTION, "the coordinator has ended the stream"
        unauthenticated = False
        writing: asyncio.Task[None] | None = None
        address = "the coordinator"
        try:
            connection: Connection = await self._connect()
            address = connection.address
            if self._closed:
                return
            stub: Any = group_pb2_grpc.GroupCoordinatorStub(connection.channel)
            self._call = stub.Session(**connection.call_options)
            writing = asyncio.create_task(self._write())
            code, message = await self._read() or (code, message)
        except HighwaterError as error:
            code, message, unauthenticated = _told(error)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            message = f"the connection to {address} was closed"
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            code, message, unauthenticated = _told(transport_error(error, address))
        except Exception as error:
            self._bug = error
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            if self._call is not None:
                self._call.cancel()
                self._call = None  # it would keep its channel
        if self._bug is not None:
            _log.error("the session stream of group %s has failed", self._names[0], exc_info=self._bug)
            code = ErrorCode.UNKNOWN_SERVER_ERROR  # the next stream would fail as well
            message = f"the session stream has failed, by a bug of the client: {self._bug!r}"
        if not self._closed:
            self._closed = True
            self._on_end(Failure(code, message, unauthenticated))

    async def _read(self) -> tuple[ErrorCode, str] | None:
        """Until the end; the error that the coordinator ended it with."""
        while True:
            response: Any = await self._call.read()
            if response is END_OF_STREAM:
                status = await self._call.code()
                if status is grpc.StatusCode.OK:
                    return None
                details = str(await self._call.details() or "")
                trailing = await self._call.trailing_metadata() or grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details, None)
            code = from_proto(response.error)
            if code is not ErrorCode.NONE:
                return code, response.error.message
            if not self._closed:
                self._on_answer(_answer(response))

    async def _write(self) -> None:
        """Leaves what goes wrong to the reader, which knows better, and ends the stream."""
        first = True
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                word, self._pending = self._pending, None
                if word is not None:
                    await self._call.write(self._request(word, first))
                    first = False
                if self._closed:
                    await self._call.done_writing()
                    return
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            return
        except Exception as error:
            self._bug = error
            self._call.cancel()  # that ends the reading

    def _request(self, word: Word, first: bool) -> group_pb2.SessionRequest:
        request = group_pb2.SessionRequest(member_epoch=word.member_epoch, seen_assignment=word.seen_assignment)
        if first:
            request.group, request.member_id, request.instance_id = self._names
        if word.subscription is not None:
            said = word.subscription
            request.subscription.topics.extend(said.topics)
            request.subscription.pattern = said.pattern
            request.subscription.assignor = said.assignor
            request.subscription.rebalance_timeout_ms = said.rebalance_timeout_ms
            request.subscription.rack = said.rack
            request.subscription.client_id = said.client_id
        if word.owned is not None:
            request.owned.SetInParent()
            numbers: defaultdict[bytes, list[int]] = defaultdict(list)
            for _, topic_id, partition in word.owned:
                numbers[topic_id].append(partition)
            for topic_id, found in sorted(numbers.items()):
                request.owned.topics.add(topic_id=topic_id, partitions=sorted(found))
        return request


def _told(error: HighwaterError) -> tuple[ErrorCode, str, bool]:
    """Its code and sentence, and whether the broker does not know who this is."""
    return _code_of(error), str(error), isinstance(error, AuthenticationError)


def _code_of(error: HighwaterError) -> ErrorCode:
    """A failure of the transport that may pass is a broken connection, whatever gRPC calls it."""
    if isinstance(error, NetworkError):
        return ErrorCode.NETWORK_EXCEPTION
    if isinstance(error, RetriableError) and not error.code.retriable:
        return ErrorCode.NETWORK_EXCEPTION
    return error.code


def _answer(response: group_pb2.SessionResponse) -> Answer:
    assignment: Partitions | None = None
    if response.HasField("assignment"):
        assignment = frozenset(
            GroupPartition(topic.topic, topic.topic_id, partition)
            for topic in response.assignment.topics
            for partition in topic.partitions
        )
    return Answer(
        response.member_epoch,
        response.heartbeat_interval_ms,
        response.session_timeout_ms,
        assignment,
        response.assignment_number,
    )
