"""The one Append stream to the broker's own log-storage: pipelined, answered in order.

Everything that is handed over between two turns of the event loop, whatever its partition and request, goes out as one
message. A broken stream answers all that was handed over with None: its outcome is not known (RULES 3.4).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from highwater.errors import ErrorCode
from highwater.log_storage_client.append_request import APPEND_METHOD, append_request
from highwater.model.partition import PartitionKey
from highwater.rpc.embedding import Piece
from highwater.rpc.errors import from_proto
from highwater.rpc.overdue import until_overdue
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import common_pb2, log_storage_pb2

logger = get_logger("log_storage_client.append_stream")

# Messages of about 250 KB moved most; a larger single batch is sent alone.
MESSAGE_BYTES = 512 << 10
# For the next answer. Well above replica-manager's probe, which ends the lease: a stream that stays silent is broken.
LIMIT_S = 10.0


class StorageUnavailableError(Exception):
    """log-storage did not answer: the stream or the call broke, or took too long."""


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """log-storage's answer for one append. Offsets are -1 where `error` is set, those of the log excepted."""

    error: ErrorCode
    message: str
    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int
    log_end_offset: int
    last_epoch: int
    log_start_offset: int
    incarnation: str
    offline: bool = False  # the log takes nothing any more until log-storage is started again (RULES 7.7)


@dataclass(slots=True)
class Append:
    """One append to be sent. `answered` is called once, with None where the outcome is not known; where it raises, once
    more with None."""

    key: PartitionKey
    leader_epoch: int
    expected_offset: int
    records: Piece
    answered: Callable[[AppendAnswer | None], None]


@dataclass(slots=True)
class _Sent:
    correlation_id: int
    appends: Sequence[Append]
    probe: asyncio.Future[str] | None = None


class AppendStream:
    """Re-connects by itself. `incarnation` is called with the incarnation in each answer, `offline_logs` and
    `damaged_logs` with how many logs are that, where it is another number than in the answer before."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        incarnation: Callable[[str], None],
        offline_logs: Callable[[int], None] = lambda count: None,
        damaged_logs: Callable[[int], None] = lambda count: None,
        *,
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._open = channel.stream_stream(
            APPEND_METHOD,
            request_serializer=_serialize,
            response_deserializer=log_storage_pb2.AppendResponse.FromString,
        )
        self._supervisor = supervisor or TaskSupervisor()
        self._seen_incarnation = incarnation
        self._seen_offline_logs = offline_logs
        self._offline_logs = 0
        self._seen_damaged_logs = damaged_logs
        self._damaged_logs = 0
        self._pending: deque[Append] = deque()
        self._probes: deque[asyncio.Future[str]] = deque()
        self._sent: deque[_Sent] = deque()
        self._wake = asyncio.Event()
        self._next_correlation_id = 0
        self._connected = False
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Tells whether this stream has been answered at least once since it was opened."""
        return self._connected

    def start(self) -> None:
        # Begun anew: what was outstanding is settled as after any break (RULES 3.4).
        self._task = self._supervisor.run_forever("append-stream", self._run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._fail_outstanding()

    def send(self, append: Append) -> None:
        """Hands an append over; appends keep the order of these calls. Not connected: answered with None at once."""
        if not self._connected:
            append.answered(None)
            return
        self._pending.append(append)
        self._wake.set()

    async def probe(self, timeout_s: float) -> str:
        """An empty append through the same loop (RULES 8.2): the incarnation that answered. Raises
        `StorageUnavailableError`."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._probes.append(future)
        self._wake.set()
        try:
            # Not `wait_for`: up to Python 3.11 it swallows a cancellation that comes with the answer, and then a lease
            # is renewed for ever by a task that its owner waits to see end.
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            with contextlib.suppress(ValueError):
                self._probes.remove(future)  # where it was not sent: they would pile up while nothing is connected
            raise StorageUnavailableError(f"log-storage did not answer a probe within {timeout_s} s") from None

    async def _run(self) -> None:
        while True:
            call = self._open(None, wait_for_ready=True)
            halves = [
                asyncio.create_task(self._write(call), name="append-stream-write"),
                asyncio.create_task(self._read(call), name="append-stream-read"),
                asyncio.create_task(self._watch(), name="append-stream-watch"),
            ]
            try:
                done, _ = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
                for half in done:
                    error = half.exception()
                    if error is not None and not isinstance(
                        error, grpc.RpcError | asyncio.InvalidStateError | StorageUnavailableError
                    ):
                        logger.error("append stream failed", exc_info=error)
                    else:
                        logger.warning("the append stream to log-storage broke: %s", _reason(error))
            finally:
                for half in halves:
                    half.cancel()
                await asyncio.gather(*halves, return_exceptions=True)
                call.cancel()
                self._connected = False
                self._fail_outstanding()
            await asyncio.sleep(0.05)  # a log-storage that refuses each stream must not spin us

    async def _watch(self) -> None:
        await until_overdue(lambda: self._sent[0] if self._sent else None, LIMIT_S)
        raise StorageUnavailableError(f"no answer within {LIMIT_S:g} s")

    def _fail_outstanding(self) -> None:
        sent, self._sent = self._sent, deque()
        pending, self._pending = self._pending, deque()
        probes, self._probes = self._probes, deque()
        for probe in [*(s.probe for s in sent if s.probe is not None), *probes]:
            if not probe.done():
                probe.set_exception(StorageUnavailableError("the append stream to log-storage broke"))
        for append in [*(append for group in sent for append in group.appends), *pending]:
            _settle(append, None)

    async def _write(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        # The first message asks for nothing but an answer: from then on the stream is known to work.
        await self._write_one(call, _Sent(self._correlation_id(), ()))
        while True:
            while not self._pending and not self._probes:
                self._wake.clear()
                await self._wake.wait()
            if self._probes:
                await self._write_one(call, _Sent(self._correlation_id(), (), self._probes.popleft()))
            if self._pending:
                await self._write_one(call, _Sent(self._correlation_id(), self._take()))

    async def _write_one(self, call: grpc.aio.StreamStreamCall[Any, Any], sent: _Sent) -> None:
        self._sent.append(sent)
        await call.write(sent)

    def _correlation_id(self) -> int:
        self._next_correlation_id += 1
        return self._next_correlation_id

    def _take(self) -> list[Append]:
        taken = [self._pending.popleft()]
        size = len(taken[0].records)
        while self._pending and size + len(self._pending[0].records) <= MESSAGE_BYTES:
            taken.append(self._pending.popleft())
            size += len(taken[-1].records)
        return taken

    async def _read(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        while True:
            response = await call.read()
            if response is EOF:
                return
            response = cast(log_storage_pb2.AppendResponse, response)
            sent = self._sent[0]  # it stays there until it can be settled: what raises before breaks the stream
            if sent.correlation_id != response.correlation_id or len(sent.appends) != len(response.results):
                raise RuntimeError(
                    f"log-storage answered append {response.correlation_id} with {len(response.results)} results where "
                    f"{sent.correlation_id} with {len(sent.appends)} was expected"
                )
            self._connected = True
            self._seen_incarnation(response.incarnation)
            if response.offline_logs != self._offline_logs:
                self._offline_logs = response.offline_logs
                self._seen_offline_logs(response.offline_logs)
            if response.damaged_logs != self._damaged_logs:
                self._damaged_logs = response.damaged_logs
                self._seen_damaged_logs(response.damaged_logs)
            self._sent.popleft()
            if sent.probe is not None and not sent.probe.done():
                sent.probe.set_result(response.incarnation)
            for append, result in zip(sent.appends, response.results, strict=True):
                _settle(append, _answer(result, response.incarnation))


def _settle(append: Append, answer: AppendAnswer | None) -> None:
    """A mistake of ours about one partition is its own: the others in the message are not to wait for it for ever."""
    try:
        append.answered(answer)
    except Exception:
        logger.exception("an append could not be settled %s", pairs(partition=append.key, known=answer is not None))
        if answer is not None:
            _settle(append, None)  # its leadership begins anew, and who waits there is answered


def _answer(result: log_storage_pb2.AppendResult, incarnation: str) -> AppendAnswer:
    log = result.log
    return AppendAnswer(
        from_proto(result.error),
        result.error.message,
        result.base_offset,
        result.last_offset,
        result.duplicate,
        result.log_append_time_ms,
        log.log_end_offset,
        log.last_epoch,
        log.log_start_offset,
        incarnation,
        log.offline,
    )


def _serialize(sent: _Sent) -> bytes:
    return append_request(
        sent.correlation_id,
        log_storage_pb2.ROLE_LEADER,
        (
            (
                log_storage_pb2.AppendPartition(
                    partition=common_pb2.PartitionKey(topic_id=append.key.topic_id, partition=append.key.partition),
                    leader_epoch=append.leader_epoch,
                    expected_offset=append.expected_offset,
                    leader_high_watermark=-1,
                    leader_log_start_offset=-1,
                ),
                append.records,
            )
            for append in sent.appends
        ),
    )


def _reason(error: BaseException | None) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    if isinstance(error, StorageUnavailableError):
        return str(error)
    return "closed by log-storage" if error is None else repr(error)
