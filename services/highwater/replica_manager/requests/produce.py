"""Produce: admission, appends, and the wait for acks=all (RULES 5.3, 5.4), partition by partition.

Works by callbacks: no task is made for a request or a partition. The records of a request are handed to log-storage
before `submit` returns, so requests keep the order in which they are submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.metadata.keys import is_internal_topic
from highwater.metadata.models import PartitionKey
from highwater.replica_manager.partition.answers import ACKS, ACKS_ALL, produce_admission
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.batch_check import CheckedBatches, check
from highwater.replica_manager.storage.append_stream import AppendAnswer

_LEADER_IS_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class ProducePart(NamedTuple):
    key: PartitionKey
    records: bytes  # one or more whole batches


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
    """At most `max_requests` requests and `max_bytes` of records are under way; what is above is OVERLOADED at once."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metrics: ReplicaManagerMetrics,
        *,
        max_requests: int,
        max_bytes: int,
        wall_clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock_s = wall_clock_s
        self._replica_manager = replica_manager
        self._metrics = metrics
        self.max_requests = max_requests
        self._max_bytes = max_bytes
        self._requests = 0
        self._bytes = 0

    def submit(self, acks: int, timeout_ms: int, parts: Sequence[ProducePart], done: Done) -> None:
        """`done` is called once: with acks=0 before this returns, with acks=1 when all is answered by log-storage, with
        acks=-1 when each partition is committed, refused or out of time."""
        size = sum(len(part.records) for part in parts)
        self._metrics.produced_bytes.inc(size)
        error, message = self._refusal(acks, size)
        if error is not ErrorCode.NONE:
            self._metrics.refused_produces.labels(error.name).inc(len(parts))
            done([ProduceResult(part.key, error, message) for part in parts])
            return
        self._requests += 1
        self._bytes += size
        deadline_ms = self._replica_manager.now_ms() + max(timeout_ms, 0)
        request = _Request(self, acks, deadline_ms, size, [ProduceResult(part.key) for part in parts], done)
        for index, part in enumerate(parts):
            self._append(request, index, part)
        request.all_handed_over()

    def _refusal(self, acks: int, size: int) -> tuple[ErrorCode, str]:
        if acks not in ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is none of 0, 1 and -1 (all)"
        if self._requests >= self.max_requests or (self._bytes and self._bytes + size > self._max_bytes):
            return (
                ErrorCode.OVERLOADED,
                f"{self._requests} requests with {self._bytes} bytes are under way here: retry after a short pause",
            )
        return ErrorCode.NONE, ""

    def _append(self, request: _Request, index: int, part: ProducePart) -> None:
        result = request.results[index]
        hosted = self._replica_manager.hosted.get(part.key)
        if hosted is None:
            self._refuse(result, self._replica_manager.absent(part.key))
            return
        if is_internal_topic(hosted.topic):
            self._refuse(
                result,
                ErrorCode.INVALID_TOPIC,
                f"topic {hosted.topic!r} is internal: names that begin with two underscores are for the cluster's own"
                " records, write to another topic",
            )
            return
        error = produce_admission(hosted.partition, request.acks)
        if error is ErrorCode.NONE and request.acks != ACKS_ALL and not self._replica_manager.lease_confirmed():
            # RULES 8.1: another may lead by now, and nobody would tell us before we acknowledged.
            self._refuse(result, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker cannot confirm its lease: use acks=all")
            return
        pipeline = hosted.pipeline
        if error is not ErrorCode.NONE or pipeline is None:
            self._refuse(result, error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        checked = check(part.records, hosted.config, int(self._wall_clock_s() * 1000))
        if checked.error is not ErrorCode.NONE:
            self._refuse(result, checked.error, checked.message)
            return
        request.appends.add(index)
        append = _PartAppend(request, index, hosted, pipeline.leader_epoch, part.records, checked)
        pipeline.append(part.records, checked.offsets, append.answered)

    def _refuse(self, result: ProduceResult, error: ErrorCode, message: str = "") -> None:
        result.error = error
        result.message = message
        if error in _LEADER_IS_ELSEWHERE:
            result.leader, result.leader_epoch = self._replica_manager.leader_of(result.key)

    def released(self, request: _Request) -> None:
        self._requests -= 1
        self._bytes -= request.size

    def responded(self, request: _Request) -> None:
        self._metrics.produce.observe(time.perf_counter() - request.taken_s)
        for result in request.results:
            if result.error is not ErrorCode.NONE:
                self._metrics.refused_produces.labels(result.error.name).inc()


class _Request:
    """A request under way: `appends` are not answered by log-storage, `waiting` wait for the high watermark."""

    __slots__ = (
        "_done",
        "_finished",
        "_open",
        "_produce_handler",
        "acks",
        "appends",
        "deadline_ms",
        "results",
        "size",
        "taken_s",
        "waiting",
    )

    def __init__(
        self,
        produce_handler: ProduceHandler,
        acks: int,
        deadline_ms: int,
        size: int,
        results: list[ProduceResult],
        done: Done,
    ) -> None:
        self._produce_handler = produce_handler
        self._done: Done | None = done
        self._open = True  # parts are still being handed over
        self._finished = False
        self.taken_s = time.perf_counter()
        self.acks = acks
        self.deadline_ms = deadline_ms
        self.size = size
        self.results = results
        self.appends: set[int] = set()
        self.waiting: set[int] = set()

    def all_handed_over(self) -> None:
        self._open = False
        if self.acks == 0:
            self._respond()
        self.progressed()

    def progressed(self) -> None:
        if self._open or self.appends or self.waiting or self._finished:
            return
        self._finished = True
        self._produce_handler.released(self)  # first: nobody gives the slot back where the answer cannot be given
        self._respond()

    def appended(self, index: int, answer: AppendAnswer) -> None:
        if self._done is None:  # acks=0 was answered before
            return
        result = self.results[index]
        result.base_offset, result.last_offset = answer.base_offset, answer.last_offset
        result.log_append_time_ms, result.log_start_offset = answer.log_append_time_ms, answer.log_start_offset

    def failed(self, index: int, error: ErrorCode, message: str = "") -> None:
        if self._done is None:
            return
        key = self.results[index].key
        self.results[index] = ProduceResult(key, error, message)
        if error in _LEADER_IS_ELSEWHERE:
            leader, leader_epoch = self._produce_handler._replica_manager.leader_of(key)
            self.results[index].leader, self.results[index].leader_epoch = leader, leader_epoch

    def completed(self, index: int, error: ErrorCode) -> None:
        """What waited for the high watermark has it, or will not get it."""
        self.waiting.discard(index)
        if error is ErrorCode.REQUEST_TIMED_OUT:
            self.failed(index, error, "not all in-sync replicas had the records in time")
        elif error is not ErrorCode.NONE:
            self.failed(index, error)
        self.progressed()

    def _respond(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self.results)
            self._produce_handler.responded(self)


class _PartAppend:
    """One partition's append of a request, under way in log-storage."""

    __slots__ = ("_checked", "_hosted", "_index", "_leader_epoch", "_records", "_request")

    def __init__(
        self,
        request: _Request,
        index: int,
        hosted: HostedPartition,
        leader_epoch: int,
        records: bytes,
        checked: CheckedBatches,
    ) -> None:
        self._request = request
        self._index = index
        self._hosted = hosted
        self._leader_epoch = leader_epoch
        self._records = records
        self._checked = checked

    def answered(self, answer: AppendAnswer) -> None:
        request = self._request
        request.appends.discard(self._index)
        if answer.error is not ErrorCode.NONE:
            request.failed(self._index, answer.error, answer.message)
            request.progressed()
            return
        request.appended(self._index, answer)
        if request.acks == ACKS_ALL:
            # Before the partition hears of the append: with a single replica, that commits it.
            request.waiting.add(self._index)
            self._hosted.await_commit(self._leader_epoch, answer.last_offset + 1, request.deadline_ms, self._committed)
        if not answer.duplicate:
            self._hosted.appended(self._leader_epoch, answer, self._records, self._checked.batches)
        request.progressed()

    def _committed(self, error: ErrorCode) -> None:
        self._request.completed(self._index, error)
