"""Produce: admission, appends, and the wait for acks=all (RULES 5.3, 5.4), partition by partition.

The way out of an acks=all produce, and the way back:

    BrokerServicer.ProduceStream    protobuf becomes `ProducePart`s
    ProduceHandler.submit           admission: a slot; the batches' headers, and what is in them: in a thread
    _HandOver                       some of many partitions at a time
    ProduceHandler._append          admission: the leadership, the minimum
    AppendPipeline.append           names the offset that it expects
    LeaderAppends.send              one message for each turn of the event loop, to log-storage
    _Request.appended               <- its answer: the produce enters the purgatory
    HostedPartition.appended        tail cache, the leader's log end; followers' fetches are woken
    FetchHandler.note_follower      <- their next fetch acknowledges: the high watermark advances
    HostedPartition.high_watermark_advanced     out of the purgatory
    _Request.completed              the last partition to be completed answers the request

Works by callbacks: no task is made for a request or a partition. The records of a request are handed to log-storage
before `submit` returns, or before what it returns is done: whoever waits for that keeps the order of its requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import AppendAnswer
from highwater.model.partition import PartitionKey
from highwater.model.topic_name import is_internal_topic
from highwater.records import BatchHeader
from highwater.replica_manager.partition.answers import ACKS, ACKS_ALL, produce_admission
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.replicas.traced_batches import TracedBatches
from highwater.replica_manager.requests.batch_check import check
from highwater.replica_manager.requests.payload_check import InlineChecks, PayloadCheck, run_checks
from highwater.replica_manager.requests.produce_room import ProduceRoom
from highwater.replica_manager.requests.produce_trace import ProduceTrace
from highwater.telemetry.log import get_logger
from highwater.telemetry.tallies import Timing
from highwater.telemetry.tracing import Tracer

logger = get_logger("replica_manager.produce")

# Requests whose batches are looked into at the same time: the others wait, and no more than `max_requests` of them.
CHECKS_AT_ONCE = 2
# Partitions of a request that are looked into and handed over in one turn of the event loop: some 10 ms.
PARTS_AT_ONCE = 200

_LEADER_IS_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class ProducePart(NamedTuple):
    key: PartitionKey
    records: bytes  # one or more whole batches
    refusal: tuple[ErrorCode, str] | None = None  # the sender may not write there


@dataclass(slots=True)
class ProduceResult:
    """Offsets are -1 on an error. `leader` and `leader_epoch` (-1: not known) tell where to go instead."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    base_offset: int = -1
    last_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    leader: int = -1
    leader_epoch: int = -1


Done = Callable[[Sequence[ProduceResult]], None]


class ProduceHandler:
    """At most `max_requests` requests, and `max_bytes` of their records, are with log-storage, of one caller a part of
    that (`room`). While there are so many streams are not read; what comes all the same is OVERLOADED at once, before
    anything is written. What waits for followers holds no records: the purgatory bounds it.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metrics: ReplicaManagerMetrics,
        *,
        max_requests: int,
        max_bytes: int,
        wall_clock_s: Callable[[], float] = time.time,
        tracer: Tracer | None = None,
        traced: TracedBatches | None = None,
    ) -> None:
        self._tracer = tracer
        self._traced = TracedBatches() if traced is None else traced
        self._wall_clock_s = wall_clock_s
        self.replica_manager = replica_manager
        self._metrics = metrics
        self.room = ProduceRoom(max_requests, max_bytes)
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, "payload-check")
        self._coming = 0  # partitions that will wait for followers once log-storage has answered

    def submit(
        self,
        acks: int,
        timeout_ms: int,
        parts: Sequence[ProducePart],
        done: Done,
        *,
        until_done: bool = False,
        traceparent: str = "",
        caller: str = "",
    ) -> asyncio.Future[None] | None:
        """`done` is called once: with acks=0 as soon as the records are on their way to log-storage, with acks=1 when
        all is answered by log-storage, with acks=-1 when each partition is committed, refused or out of time.
        `until_done`: the records are held until then, so they count for as long. `caller`: who takes the room.

        None: the records are on their way. A future is done when they are: they are many, or looked into by a thread
        before. Its sender's next request is submitted after that."""
        size = sum(len(part.records) for part in parts)
        self._metrics.produced_bytes.inc(size)
        error, message = self._refusal(acks, len(parts), size, caller)
        if error is not ErrorCode.NONE:
            self._metrics.refused_produces.labels(error.name).inc(len(parts))
            for part in parts:
                self._refused(part.key)
            done([ProduceResult(part.key, error, message) for part in parts])
            return None
        self.room.take(caller, size)
        self._coming += len(parts) if acks == ACKS_ALL else 0
        deadline_ms = self.replica_manager.now_ms() + max(timeout_ms, 0)
        request = _Request(self, acks, deadline_ms, size, caller, [ProduceResult(part.key) for part in parts], done)
        if traceparent and self._tracer is not None:
            span = self._tracer.go_on("produce", traceparent, acks=acks, partitions=len(parts), bytes=size)
            request.trace = None if span is None else ProduceTrace(span, self._traced, waits=acks == ACKS_ALL)
        if until_done:
            request.unwritten += 1
            request.until_done = True
        return _HandOver(self, request, parts).start()

    def check_of(self, part: ProducePart, inline: InlineChecks) -> PayloadCheck | None:
        """None where the part will be refused in any case: nobody looks into it."""
        hosted = self.replica_manager.hosted.get(part.key)
        if hosted is None or hosted.pipeline is None or is_internal_topic(hosted.topic) or part.refusal is not None:
            return None
        now_ms, config = int(self._wall_clock_s() * 1000), hosted.config
        headers = check(part.records, config, now_ms)
        if headers.error is not ErrorCode.NONE:
            return PayloadCheck(part.records, config, now_ms, headers, headers)
        sound = inline.sound(part.records, headers, config, now_ms)
        return PayloadCheck(part.records, config, now_ms, headers, headers if sound else None)

    def looking_into(self, checks: Sequence[PayloadCheck | None]) -> asyncio.Future[None]:
        """Has a thread find out what is not known of them yet."""
        return asyncio.get_running_loop().run_in_executor(self._threads, run_checks, checks)

    def hand_over(self, request: _Request, index: int, part: ProducePart, check: PayloadCheck | None) -> None:
        if not self._append(request, index, part, check) and request.acks == ACKS_ALL:
            self._coming -= 1

    def given_up(self, request: _Request, rest: range) -> None:
        """An error of ours: these of its partitions will not be handed over."""
        self._coming -= len(rest) if request.acks == ACKS_ALL else 0
        request.given_up = rest
        for index in rest:
            request.refuse(index, ErrorCode.UNKNOWN_SERVER_ERROR)
        request.handed_over()

    async def close(self) -> None:
        """Ends the threads. Nothing may be submitted any more."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _refusal(self, acks: int, partitions: int, size: int, caller: str) -> tuple[ErrorCode, str]:
        if acks not in ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is none of 0, 1 and -1 (all)"
        if message := self.room.refusal(caller, size):
            return ErrorCode.OVERLOADED, message
        waits = self.replica_manager.purgatory.produces
        waiting = len(waits) + self._coming
        if acks == ACKS_ALL and waiting and waiting + partitions > waits.limit:
            return (
                ErrorCode.OVERLOADED,
                f"the records of {waiting} partitions' requests wait for followers here: retry after a short pause",
            )
        return ErrorCode.NONE, ""

    def _append(self, request: _Request, index: int, part: ProducePart, check: PayloadCheck | None) -> bool:
        """Tells whether log-storage will answer for it; else it is refused."""
        if part.refusal is not None:
            request.refuse(index, *part.refusal)
            return False
        hosted = self.replica_manager.hosted.get(part.key)
        if hosted is None:
            request.refuse(index, self.replica_manager.absent(part.key))
            return False
        if is_internal_topic(hosted.topic):
            request.refuse(
                index,
                ErrorCode.INVALID_TOPIC,
                f"topic {hosted.topic!r} is internal: names that begin with two underscores are for the cluster's own"
                " records, write to another topic",
            )
            return False
        error = produce_admission(hosted.partition, request.acks)
        if error is ErrorCode.NONE and request.acks != ACKS_ALL and not self.replica_manager.lease_confirmed():
            # RULES 8.1: another may lead by now, and nobody would tell us before we acknowledged.
            request.refuse(
                index, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker cannot confirm its lease: use acks=all"
            )
            return False
        pipeline = hosted.pipeline
        checked = None if check is None else check.outcome
        if error is not ErrorCode.NONE or pipeline is None or checked is None:
            request.refuse(index, error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return False
        if checked.error is not ErrorCode.NONE:
            request.refuse(index, checked.error, checked.message)
            return False
        request.outstanding += 1
        request.unwritten += 1
        answered = partial(request.appended, index, hosted, pipeline.leader_epoch, part.records, checked.batches)
        try:
            traceparents = () if request.trace is None else request.trace.handed_over()
            pipeline.append(part.records, checked.offsets, answered, traceparents=traceparents)
        except Exception:
            request.outstanding -= 1
            request.unwritten -= 1
            raise
        return True

    def came(self, request: _Request) -> None:
        """log-storage has answered for a partition of it."""
        self._coming -= request.acks == ACKS_ALL

    def written(self, request: _Request) -> None:
        """log-storage has answered for all of it."""
        self.room.give(request.caller, request.size)

    def responded(self, request: _Request) -> None:
        now_s, times = time.perf_counter(), self._metrics.produces
        written_s = request.written_s if request.unwritten == 0 else now_s  # acks=0: it may come later
        self._metrics.produce.observe(now_s - request.taken_s)
        times.total.observe(now_s - request.taken_s)
        times.queue.observe(request.handed_s - request.taken_s)
        times.local.observe(written_s - request.handed_s)
        times.remote.observe(now_s - written_s)
        refused = [result for result in request.results if result.error is not ErrorCode.NONE]
        for error, count in Counter(result.error for result in refused).items() if refused else ():
            self._metrics.refused_produces.labels(error.name).inc(count)
        for result in refused:
            self._refused(result.key)

    def _refused(self, key: PartitionKey) -> None:
        hosted = self.replica_manager.hosted.get(key)
        if hosted is not None:
            hosted.traffic.failed_produces += 1

    @property
    def written_times(self) -> Timing:
        """Of responses, from when they are there until they are written."""
        return self._metrics.produces.response


class _HandOver:
    """The way of a request's partitions to log-storage: looked into, and handed over, `PARTS_AT_ONCE` in a turn of the
    event loop. The first of them in the turn in which the request comes, where that takes no thread."""

    __slots__ = ("_ended", "_first", "_handed_over", "_handler", "_inline", "_parts", "_request")

    def __init__(self, handler: ProduceHandler, request: _Request, parts: Sequence[ProducePart]) -> None:
        self._handler = handler
        self._request = request
        self._parts = parts
        self._inline = InlineChecks()
        self._first = 0  # of those that are not handed over
        self._ended = False  # the request knows that no more is handed over
        self._handed_over: asyncio.Future[None] | None = None  # None: nobody waits for it

    def start(self) -> asyncio.Future[None] | None:
        """None: all are handed over. Raises what a step raises, as what it returns does."""
        try:
            if self._piece():
                return None
        except Exception:
            self._give_up()
            raise
        self._handed_over = asyncio.get_running_loop().create_future()
        return self._handed_over

    def _piece(self) -> bool:
        """Tells whether that was the last; else it goes on later."""
        parts = self._parts[self._first : self._first + PARTS_AT_ONCE]
        checks = [self._handler.check_of(part, self._inline) for part in parts]
        if all(one is None or one.outcome is not None for one in checks):
            return self._hand_over(checks)
        self._handler.looking_into(checks).add_done_callback(partial(self._looked_into, checks))
        return False

    def _looked_into(self, checks: Sequence[PayloadCheck | None], work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            logger.error("what is in a produced batch could not be checked", exc_info=error)
            for one in checks:
                if one is not None:
                    one.fail(error)
        self._go_on(partial(self._hand_over, checks))

    def _hand_over(self, checks: Sequence[PayloadCheck | None]) -> bool:
        """Tells whether those were the last."""
        trace = self._request.trace
        if not self._first:
            self._request.handed_s = self._request.written_s = time.perf_counter()
            if trace is not None:
                trace.appends()
        for index, one in enumerate(checks, self._first):
            self._handler.hand_over(self._request, index, self._parts[index], one)
            self._first = index + 1
        if self._first < len(self._parts):
            asyncio.get_running_loop().call_soon(self._go_on, self._piece)
            return False
        if trace is not None:
            trace.answered()
        self._ended = True
        self._request.handed_over()
        return True

    def _go_on(self, step: Callable[[], bool]) -> None:
        try:
            if not step():
                return
        except Exception as error:  # its sender must not wait for ever
            failed: Exception | None = error
            self._give_up()
        else:
            failed = None
        if self._handed_over is None or self._handed_over.done():
            return
        if failed is None:
            self._handed_over.set_result(None)
        else:
            self._handed_over.set_exception(failed)

    def _give_up(self) -> None:
        """A step has raised: no more is handed over, and the request holds its slot no longer than log-storage has what
        has been."""
        if not self._ended:
            self._ended = True
            self._handler.given_up(self._request, range(self._first, len(self._parts)))


class _Request:
    """A request under way. `unwritten` are its partitions that log-storage has not answered for, `outstanding` those
    and the ones that wait for the high watermark; each is one more while they are being handed over."""

    __slots__ = (
        "_done",
        "_handler",
        "acks",
        "caller",
        "deadline_ms",
        "given_up",
        "handed_s",
        "outstanding",
        "results",
        "size",
        "taken_s",
        "trace",
        "until_done",
        "unwritten",
        "written_s",
    )

    def __init__(
        self,
        handler: ProduceHandler,
        acks: int,
        deadline_ms: int,
        size: int,
        caller: str,
        results: list[ProduceResult],
        done: Done,
    ) -> None:
        self._handler = handler
        self._done: Done | None = done  # None: the response has been given
        self.taken_s = self.handed_s = self.written_s = time.perf_counter()
        self.acks = acks
        self.deadline_ms = deadline_ms
        self.size = size
        self.caller = caller
        self.results = results
        self.given_up = range(0)  # partitions that have their answer, whatever log-storage says
        self.outstanding = 1
        self.unwritten = 1
        self.until_done = False
        self.trace: ProduceTrace | None = None

    def handed_over(self) -> None:
        try:
            if self.acks == 0:
                self._respond()
        finally:
            self._written_one()
            self._settled_one()

    def refuse(self, index: int, error: ErrorCode, message: str = "") -> None:
        """The outcome of one partition. After an acks=0 response nobody is told."""
        if self._done is None:
            return
        key = self.results[index].key
        leader = self._handler.replica_manager.leader_of(key) if error in _LEADER_IS_ELSEWHERE else (-1, -1)
        self.results[index] = ProduceResult(key, error, message, leader=leader[0], leader_epoch=leader[1])

    def appended(
        self,
        index: int,
        hosted: HostedPartition,
        leader_epoch: int,
        records: bytes,
        batches: Sequence[tuple[int, BatchHeader]],
        answer: AppendAnswer,
    ) -> None:
        """log-storage has answered for one partition."""
        if index in self.given_up:
            return
        if self.trace is not None:
            self.trace.answered()
        self._handler.came(self)
        self._written_one()  # first: nobody gives the slot back where the answer cannot be given
        if answer.error is not ErrorCode.NONE:
            self.refuse(index, answer.error, answer.message)
            self._settled_one()
            return
        if self._done is not None:
            result = self.results[index]
            result.base_offset, result.last_offset = answer.base_offset, answer.last_offset
            result.log_append_time_ms, result.log_start_offset = answer.log_append_time_ms, answer.log.log_start_offset
        if self.acks == ACKS_ALL:
            # Before the partition hears of the append: with a single replica, that commits it.
            hosted.await_commit(leader_epoch, answer.last_offset + 1, self.deadline_ms, partial(self.completed, index))
        if self.trace is not None and not answer.duplicate:
            self.trace.appended(hosted.key, answer.base_offset)
        try:
            if not answer.duplicate:
                hosted.traffic.bytes_in += len(records)
                for _, header in batches:
                    hosted.traffic.messages_in += header.record_count
                hosted.appended(leader_epoch, answer, records, batches)
        finally:
            if self.acks != ACKS_ALL:
                self._settled_one()

    def completed(self, index: int, error: ErrorCode) -> None:
        """Takes the outcome for a partition that waited for the high watermark."""
        if error is ErrorCode.REQUEST_TIMED_OUT:
            self.refuse(index, error, "not all in-sync replicas had the records in time")
        elif error is not ErrorCode.NONE:
            self.refuse(index, error)
        self._settled_one()

    def _written_one(self) -> None:
        self.unwritten -= 1
        if self.unwritten == int(self.until_done):
            self.written_s = time.perf_counter()
        if self.unwritten == 0:
            self._handler.written(self)

    def _settled_one(self) -> None:
        self.outstanding -= 1
        if self.outstanding == 0:
            self._respond()

    def _respond(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            if self.until_done:
                self._written_one()
            done(self.results)
            self._handler.responded(self)
            if self.trace is not None:
                self.trace.responded([each.error for each in self.results])
