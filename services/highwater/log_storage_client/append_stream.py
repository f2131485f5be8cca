"""The one Append stream of a process to its broker's log-storage: pipelined, answered in order, opened again when it
breaks. Over the append socket where there is one (`append_socket.py`), else over gRPC.

Whatever was handed over and is not answered by then is of unknown outcome; it is never sent again from here
(RULES 3.4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

import grpc.aio

from highwater.log_storage_client.append_socket import SUFFIX, AppendConnection, connect
from highwater.log_storage_client.conversions import append_answer, append_request
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.model.fence_role import Role
from highwater.rpc.bidirectional_stream import StreamEndedError, drive_stream
from highwater.rpc.embedding import Piece
from highwater.rpc.framed_stream import socket_path
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import log_storage_pb2

logger = get_logger("log_storage_client.append_stream")

METHOD = "/highwater.v1.LogStorage/Append"
# For the next answer; with flush.messages=1 it waits for a disk. Well above replica-manager's probe, which ends the
# lease: a stream that stays silent is broken.
LIMIT_S = 10.0


@dataclass(slots=True, eq=False)
class Message:
    """One AppendRequest; without appends it asks for nothing but an answer. `answered` is called once: with the answers
    in the order of `appends`, or with None and the reason where the outcome is not known."""

    appends: Sequence[Append]
    answered: Callable[[Sequence[AppendAnswer] | None, str], None]
    correlation_id: int = 0  # the stream gives it, when it sends the message


class AppendStream:
    """`next_message` is called whenever the stream is free to take one, None: there is none, and `wake` is called when
    there is. `unsent` gives up all that has not been taken, when the stream breaks.

    `connected`: with `greets` a stream begins with a message that asks for nothing but an answer, and is connected once
    that is there; without, it is as soon as its channel or its socket is. `seen` is called with each response, before
    its appends are answered: incarnation, number of offline logs, number of damaged ones. `lost` is called after each
    break, when everything is answered.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        role: Role,
        next_message: Callable[[], Message | None],
        unsent: Callable[[], Iterable[Message]],
        *,
        greets: bool,
        reconnect_s: float,
        seen: Callable[[str, int, int], None] = lambda incarnation, offline_logs, damaged_logs: None,
        lost: Callable[[], None] = lambda: None,
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self.connected = asyncio.Event()
        self._channel = channel
        self._open = channel.stream_stream(
            METHOD, request_serializer=bytes, response_deserializer=log_storage_pb2.AppendResponse.FromString
        )
        self._address = address
        self._socket_path = socket_path(address, SUFFIX)
        self._connection: AppendConnection | None = None  # to the append socket, while the stream is there
        self._role = role
        self._next_message = next_message
        self._unsent = unsent
        self._greets = greets
        self._reconnect_s = reconnect_s
        self._seen = seen
        self._lost = lost
        self._supervisor = supervisor or TaskSupervisor()
        self._sent: deque[Message] = deque()
        self._to_greet = False
        self._wake = asyncio.Event()
        self._last_correlation_id = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        # Begun anew: what was outstanding is settled as after any break (RULES 3.4).
        self._task = self._supervisor.run_forever("append-stream", self._run)

    async def stop(self) -> None:
        """Ends it; outstanding appends are answered as after a break. The channel stays open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._settle("the append stream ended")

    def wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()
        else:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            reason = "the append stream ended"
            try:
                await self._drive()
            except StreamEndedError as error:
                reason = str(error)
            except Exception:  # a mistake of ours: loud, and what was in flight is settled as after any break
                logger.exception("append stream failed")
            finally:
                self._settle(reason)
            self._lost()
            logger.warning("append stream broke %s", pairs(address=self._address, reason=repr(reason)))
            await asyncio.sleep(self._reconnect_s)  # a log-storage that refuses each stream must not spin us

    async def _drive(self) -> None:
        """One stream, from when log-storage can be reached until it ends."""
        await self._channel.channel_ready()
        self._to_greet = self._greets
        connection = self._connection = await self._connect()
        if not self._greets:
            self.connected.set()
        if connection is not None:
            details = pairs(address=self._address, incarnation=connection.incarnation)
            logger.info("append stream over the append socket %s", details)
            await connection.run(self._oldest, LIMIT_S)
        else:
            await drive_stream(self._open(None), self._requests(), self._received, oldest=self._oldest, limit_s=LIMIT_S)

    async def _connect(self) -> AppendConnection | None:
        """To the append socket; None: there is none. A log-storage that answers by gRPC has it already (older ones do
        not), but the channel may be that to one which has just ended: so where there is none it is looked for again."""
        if self._socket_path is None:
            return None
        connection = await connect(self._socket_path, self._next_request, self._received)
        if connection is None:
            await asyncio.sleep(self._reconnect_s)
            await self._channel.channel_ready()
            connection = await connect(self._socket_path, self._next_request, self._received)
        return connection

    def _oldest(self) -> Message | None:
        return self._sent[0] if self._sent else None

    def _settle(self, reason: str) -> None:
        self.connected.clear()
        self._connection = None
        outstanding = [*self._sent, *self._unsent()]
        self._sent.clear()
        reason = f"the append stream to log-storage at {self._address} broke: {reason}"
        for message in outstanding:
            try:
                message.answered(None, reason)
            except Exception:  # the others are not to wait for ever
                logger.exception("an append of unknown outcome could not be settled")

    async def _requests(self) -> AsyncIterator[bytes]:
        """For gRPC."""
        while True:
            while (request := self._next_request()) is not None:
                yield b"".join(request)
            self._wake.clear()
            await self._wake.wait()

    def _next_request(self) -> Sequence[Piece] | None:
        """The next message, as it is sent: from now on its outcome is not known until it is answered."""
        message = Message((), lambda answers, reason: None) if self._to_greet else self._next_message()
        self._to_greet = False
        if message is None:
            return None
        self._last_correlation_id += 1
        message.correlation_id = self._last_correlation_id
        self._sent.append(message)
        return append_request(message.correlation_id, self._role, message.appends)

    def _received(self, response: log_storage_pb2.AppendResponse) -> None:
        sent = self._sent[0]  # it stays there until it can be answered: what raises before breaks the stream
        if response.correlation_id != sent.correlation_id or len(response.results) != len(sent.appends):
            reason = (
                f"answer {response.correlation_id} for {len(response.results)} partitions where"
                f" {sent.correlation_id} for {len(sent.appends)} was due"
            )
            logger.error("append stream failed: %s", reason)
            raise StreamEndedError(reason)
        incarnation = response.incarnation
        answers = [append_answer(result, incarnation) for result in response.results]
        self.connected.set()
        self._seen(incarnation, response.offline_logs, response.damaged_logs)
        self._sent.popleft()
        sent.answered(answers, "")
