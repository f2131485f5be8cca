"""Fetch: consumers, replicas and the debug role; the tail cache first, then log-storage; long poll without polling.

A fetch that finds too little waits in a purgatory, to be woken directly: replicas and the debug role when the log end
moves, consumers when the high watermark does.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import ReadAnswer, StorageUnavailableError
from highwater.replica_manager.partition.actions import FetchSession, FetchVerdict, FollowerFetch, PartitionSettings
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.replicas.data_wait import DataWait
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import FetchPurgatory, Waiting, WaitingFetch
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.replicas.traced_batches import TracedBatches
from highwater.replica_manager.requests.payloads import rows_before_columns
from highwater.replica_manager.requests.session_roles import is_throttled
from highwater.replica_manager.responses.fetch_parts import (
    NO_PIECES,
    UNBOUNDED,
    FetchedPart,
    FetchPart,
    FetchRole,
    for_consumer,
    for_debug,
    for_replica,
    read_refusal,
)
from highwater.replica_manager.responses.response_budget import ResponseBudget
from highwater.replica_manager.responses.response_reads import PartRead, ResponseReads
from highwater.replica_manager.responses.response_room import ResponseRoom, Turn
from highwater.replica_manager.storage.shared_reads import SharedReads
from highwater.rpc.embedding import size_of
from highwater.security.access import Access
from highwater.telemetry.tracing import Span, Tracer

LEADER_IS_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
# A long wait is cut here, so that a client that asks for hours holds nothing for hours.
MAX_WAIT_MS = 60_000
# Where as many wait as may, the others are answered after so long, with what there is then: they ask again at once.
FULL_PAUSE_S = 0.5
RESPONSES_MAX_BYTES = 256 << 20
_NOT_HOSTED = FetchVerdict(ErrorCode.UNKNOWN_LEADER_EPOCH, None, -1, -1, -1, ())


class FetchRead(NamedTuple):
    """The findings of one look at all partitions of a fetch."""

    parts: list[FetchedPart]  # one for each that was asked for, in their order
    complete: bool  # to be answered now: enough bytes, or something that waiting does not mend
    awaited: bool  # the event loop ran meanwhile: what moved then has not been waited for
    starved: bool = False  # there is something to read, and no room for it in the budget of all responses
    held_back_s: float = 0.0  # something waits so long for the leader's throttle (RULES 4.14)


@dataclass(slots=True)
class FetchParams:
    """One fetch request."""

    role: FetchRole
    parts: Sequence[FetchPart]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    accepts_columns: bool
    session: FetchSession | None = None
    # What the leader made of each part when the request came in (RULES 4.2); replicas only.
    verdicts: Sequence[FetchVerdict] = ()
    wait: DataWait = field(default_factory=DataWait)
    taken_s: float = field(default_factory=time.perf_counter)  # when it came
    room: ResponseRoom = field(default_factory=ResponseRoom)  # whoever sends the answer gives it back
    access: Access | None = None  # of a consumer; None: nobody is asked what it may read
    span: Span | None = None  # where it is traced; whoever sends the answer ends it
    client_id: str = ""

    def hold_ms(self, settings: PartitionSettings) -> int:
        """Returns for how long it may wait for what it lacks."""
        longest_ms = settings.longest_hold_ms if self.role is FetchRole.REPLICA else MAX_WAIT_MS
        return min(max(self.max_wait_ms, 0), longest_ms)


class FetchHandler:
    def __init__(
        self,
        replica_manager: ReplicaManager,
        metrics: ReplicaManagerMetrics,
        *,
        max_bytes: int,
        responses_max_bytes: int = RESPONSES_MAX_BYTES,
        tracer: Tracer | None = None,
        traced: TracedBatches | None = None,
    ) -> None:
        """`max_bytes` are of one response, `responses_max_bytes` of all that are not written yet."""
        self.tracer = tracer
        self.traced = TracedBatches() if traced is None else traced
        self._replica_manager = replica_manager
        self._metrics = metrics
        self._reads: SharedReads[ReadAnswer] = SharedReads(lambda answer: len(answer.records))
        self.max_bytes = max_bytes
        self.budget = ResponseBudget(
            responses_max_bytes,
            message_max_bytes=replica_manager.message_max_bytes,
            waited=lambda granted: metrics.fetch_response_waits["granted" if granted else "refused"].inc(),
        )

    def resize(self, max_bytes: int, responses_max_bytes: int) -> None:
        """Takes other bounds, of answers from now on; those of before keep their room until they are written."""
        self.max_bytes = max_bytes
        self.budget.resize(responses_max_bytes, self._replica_manager.message_max_bytes)

    def answered(self, params: FetchParams, began_s: float) -> float:
        """The answer is made, which was begun then; returns the time."""
        now_s, times, waited_s = time.perf_counter(), self._metrics.fetches[params.role.value], params.wait.waited_s
        times.total.observe(now_s - params.taken_s)
        times.queue.observe(began_s - params.taken_s)
        times.local.observe(max(now_s - began_s - waited_s, 0.0))
        times.remote.observe(waited_s)
        return now_s

    def written(self, params: FetchParams, answered_s: float) -> None:
        """The answer of then was written."""
        self._metrics.fetches[params.role.value].response.observe(time.perf_counter() - answered_s)

    def refused(self, results: Sequence[FetchedPart]) -> None:
        """Counts what the answers refuse, by topic."""
        for result in results:
            if result.error is not ErrorCode.NONE:
                hosted = self._replica_manager.hosted.get(result.key)
                if hosted is not None:
                    hosted.traffic.failed_fetches += 1

    def room(self, role: FetchRole, turn: Turn | None = None, caller: str = "") -> ResponseRoom:
        """That of one answer, which takes it as it reads. `turn`: a stream's. `caller`: who asks, in any role but a
        replica's."""
        if role is FetchRole.REPLICA:
            return ResponseRoom(self.budget.replicas, turn)
        return ResponseRoom(self.budget.consumers, turn, caller)

    def note_follower(self, params: FetchParams) -> None:
        """Takes what a replica's request acknowledges, as soon as it comes in (RULES 4.1, 4.2): an acknowledgement
        does not wait for the answers to the requests before it."""
        session = params.session
        assert session is not None
        params.verdicts = [self._note(session, part) for part in params.parts]

    def note_place(self, session: FetchSession, part: FetchPart) -> FetchVerdict:
        """The same of one partition that an incremental session names: its next requests repeat it (RULES 4.10)."""
        return self._note(session, part, repeated=True)

    def _note(self, session: FetchSession, part: FetchPart, *, repeated: bool = False) -> FetchVerdict:
        hosted = self._replica_manager.hosted.get(part.key)
        if hosted is None:
            return _NOT_HOSTED
        verdict = hosted.partition.fetched(
            FollowerFetch(
                session,
                part.leader_epoch,
                part.fetch_offset,
                part.acked_offset,
                part.last_epoch,
                part.log_start_offset,
                repeated,
            ),
            self._replica_manager.now_ms(),
        )
        session.partitions[part.key] = None
        if verdict.actions:
            self._replica_manager.perform(hosted, verdict.actions)
        else:
            self._replica_manager.due.note(hosted)
        for wait in hosted.log_start_waits:
            wait.wake()
        if verdict.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and hosted.partition.phase is Phase.FENCING:
            return verdict._replace(error=ErrorCode.UNKNOWN_LEADER_EPOCH)
        return verdict

    async def answer(self, params: FetchParams) -> list[FetchedPart]:
        """One result for each part, in their order. Answers at once where max wait is 0, nothing was asked, min bytes
        are there, or any part failed (RULES 5.7); else when they are, the time is up or `params.wait` is ended. Where
        there is no room for what can be read, it waits for that, and answers without data where none comes in time."""
        parts = await self._answer(params)
        if params.session is not None and (quota := self._replica_manager.leader_quota).rate is not None:
            moved = (each for each in parts if each.pieces)
            throttled = (each for each in moved if is_throttled(self._replica_manager, params.session, each.key))
            quota.moved(sum(size_of(each.pieces) for each in throttled), self._replica_manager.now_ms() / 1000)
        return parts

    async def _answer(self, params: FetchParams) -> list[FetchedPart]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + params.hold_ms(self._replica_manager.settings) / 1000
        waiting: Waiting[WaitingFetch] | None = None
        try:
            while True:
                read = await self._read(params)
                if read.complete or not params.parts:
                    return read.parts
                if read.starved:
                    if await params.room.wait(self._wanted_bytes(params), deadline - loop.time()):
                        continue
                    return read.parts
                if params.wait.ended or loop.time() >= deadline:
                    return read.parts
                has_moved = False
                if waiting is None:
                    waiting = self.enter(params, read, deadline)
                    has_moved = read.awaited and self._has_moved(params, read)
                params.room.release()
                until = min(deadline, loop.time() + read.held_back_s) if read.held_back_s else deadline
                del read  # what it holds is found again
                if waiting is None:  # too many wait: this one is not woken for data, nor asked again at once
                    await params.wait.wait(min(deadline - loop.time(), FULL_PAUSE_S))
                    return (await self._read(params)).parts
                if has_moved:
                    continue
                await params.wait.wait(until - loop.time())
                self.leave(params, waiting)
                waiting = None
        finally:
            if waiting is not None:
                self.leave(params, waiting)

    def enter(self, params: FetchParams, read: FetchRead, deadline_s: float) -> Waiting[WaitingFetch] | None:
        """Waits in the purgatory for what `read` lacks, until `deadline_s` of the event loop. None: it is full."""
        needed = params.min_bytes - sum(size_of(part.pieces) for part in read.parts)
        offsets = {part.key: part.fetch_offset for part in params.parts}
        waiting = self._purgatory(params).add(offsets, needed, int(deadline_s * 1000), params.wait)
        if waiting is not None and any(v.error is ErrorCode.UNKNOWN_LEADER_EPOCH for v in params.verdicts):
            self._replica_manager.leadership_waits.add(params.wait)
        return waiting

    def leave(self, params: FetchParams, waiting: Waiting[WaitingFetch]) -> None:
        self._purgatory(params).cancel(waiting)
        self._replica_manager.leadership_waits.discard(params.wait)

    def _has_moved(self, params: FetchParams, read: FetchRead) -> bool:
        """Tells whether another look would find anything else, after one during which the event loop ran."""
        return self.leads_by_now(params) or any(
            (now.readable_end, now.error, now.diverging) != (then.readable_end, then.error, then.diverging)
            for index, then in enumerate(read.parts)
            for now in (self.admitted(params, index, self._replica_manager.hosted.get(then.key)),)
        )

    def _purgatory(self, params: FetchParams) -> FetchPurgatory[WaitingFetch]:
        purgatory = self._replica_manager.purgatory
        return purgatory.consumers if params.role is FetchRole.CONSUMER else purgatory.replicas

    def limit_bytes(self, params: FetchParams) -> int:
        """Of the answer."""
        return self.max_bytes if params.max_bytes <= 0 else min(params.max_bytes, self.max_bytes)

    def _wanted_bytes(self, params: FetchParams) -> int:
        """The most that the answer has; a batch comes whole."""
        limits = [part.max_bytes for part in params.parts]
        limit = self.limit_bytes(params)
        wanted = limit if any(each <= 0 for each in limits) else min(limit, sum(limits))
        return max(wanted, self._replica_manager.message_max_bytes)

    async def _read(self, params: FetchParams) -> FetchRead:
        limit = self.limit_bytes(params)
        parts: list[FetchedPart] = []
        complete, awaited, starved = self.leads_by_now(params), False, False
        session, held_back_s = params.session, 0.0
        owed_s = (
            0.0 if session is None else self._replica_manager.leader_quota.wait_s(self._replica_manager.now_ms() / 1000)
        )
        full = False  # it has less room than it wants, or there is more to read than it has room for
        total = 0

        async def read(reads: Sequence[PartRead]) -> list[tuple[FetchedPart, int]]:
            nonlocal awaited
            awaited = awaited or not all(each.hosted.is_cached(each.part.fetch_offset) for each in reads)
            return await self.read_places(reads, role=params.role, accepts_columns=params.accepts_columns)

        def done(index: int, found: FetchedPart | None, size_bytes: int) -> None:
            nonlocal total, full
            if found is None:
                full = True
            else:
                parts[index] = found
                total += size_bytes

        reads: ResponseReads[int] | None = None
        for index, part in enumerate(params.parts):
            hosted = self._replica_manager.hosted.get(part.key)
            found = self.admitted(params, index, hosted)
            parts.append(found)
            refused = found.error is not ErrorCode.NONE or found.diverging is not None
            if hosted is None or refused or starved or found.readable_end <= part.fetch_offset:
                continue
            if owed_s > 0 and session is not None and is_throttled(self._replica_manager, session, part.key):
                held_back_s = owed_s
                continue
            if reads is None:
                wanted = self._wanted_bytes(params)
                granted = params.room.take(wanted)
                if not granted:
                    starved = True
                    continue
                full = granted < wanted
                reads = ResponseReads(read, min(limit, granted), self._replica_manager.message_max_bytes, done)
            await reads.add(index, hosted, part, found)
        if reads is not None:
            await reads.finish()
        params.room.settle(total)  # a grant that nothing was read for goes back
        for part, found in zip(params.parts, parts, strict=True):
            if found.error is ErrorCode.UNKNOWN_LEADER_EPOCH and params.role is FetchRole.REPLICA:
                continue  # `leads_by_now`
            if found.error is not ErrorCode.NONE or found.diverging is not None:
                complete = True
                if found.error in LEADER_IS_ELSEWHERE:
                    found.leader, found.leader_epoch = self._replica_manager.leader_of(part.key)
        enough = not starved and ((full and total > 0) or total >= min(max(params.min_bytes, 0), limit))
        return FetchRead(parts, complete or enough, awaited, starved, held_back_s)

    async def read_places(
        self, reads: Sequence[PartRead], *, role: FetchRole = FetchRole.REPLICA, accepts_columns: bool = True
    ) -> list[tuple[FetchedPart, int]]:
        """The batches of each partition, and their bytes, in their order. Log-storage is asked side by side."""
        found: list[FetchedPart] = []
        asked: list[Coroutine[Any, Any, FetchedPart]] = []
        places: list[int] = []
        for place, (hosted, part, admitted, max_bytes) in enumerate(reads):
            found.append(admitted)
            if not self._from_cache(hosted, part, admitted, max_bytes):
                # The epoch as of now: by the time that a task runs it may be another.
                leader_epoch = hosted.partition.leader_epoch
                places.append(place)
                asked.append(self._from_log_storage(role, hosted, part, admitted, max_bytes, leader_epoch))
        if asked:
            answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
            for place, answer in zip(places, answers, strict=True):
                found[place] = answer
        sized = []
        for each in found:
            if each.pieces and role is FetchRole.CONSUMER and not accepts_columns:
                each.error, each.pieces = rows_before_columns(each.pieces)
            size_bytes = size_of(each.pieces)
            self._metrics.fetched_bytes[role.value].inc(size_bytes)
            sized.append((each, size_bytes))
        for (hosted, _, _, _), (_, size_bytes) in zip(reads, sized, strict=True):
            if role is FetchRole.REPLICA:
                hosted.traffic.replication_bytes_out += size_bytes
            else:
                hosted.traffic.bytes_out += size_bytes
        return sized

    @staticmethod
    def _from_cache(hosted: HostedPartition, part: FetchPart, found: FetchedPart, max_bytes: int) -> bool:
        pieces = hosted.cached(part.fetch_offset, found.readable_end, max_bytes)
        if pieces is not None:
            found.pieces = pieces
        return pieces is not None

    def leads_by_now(self, params: FetchParams) -> bool:
        """Takes again what came too early, and returns whether any of it is answered otherwise now: a follower may hear
        of a new leader before the leader does, and its fetch waits for that as for data, instead of backing off."""
        session = params.session
        early = [i for i, verdict in enumerate(params.verdicts) if verdict.error is ErrorCode.UNKNOWN_LEADER_EPOCH]
        if session is None or not early or params.wait.ended:  # ended: by a newer request, which has been noted since
            return False
        if not self._replica_manager.sessions.is_newest(session):
            return False  # RULES 4.2: what it says counts no more
        verdicts = list(params.verdicts)
        for index in early:
            verdicts[index] = self._note(session, params.parts[index])
        params.verdicts = verdicts
        return any(verdicts[index].error is not ErrorCode.UNKNOWN_LEADER_EPOCH for index in early)

    def admitted(self, params: FetchParams, index: int, hosted: HostedPartition | None) -> FetchedPart:
        """The answer about one partition before anything is read: error, offsets, and how far this role may read."""
        part = params.parts[index]
        if params.access is not None and (refused := read_refusal(part.key, params.access)) is not None:
            return refused
        if hosted is None:
            verdicts = params.verdicts
            error = verdicts[index].error if verdicts else self._replica_manager.absent(part.key)
            return FetchedPart(part.key, error)
        match params.role:
            case FetchRole.REPLICA:
                return for_replica(part, hosted.partition, params.verdicts[index])
            case FetchRole.CONSUMER:
                return for_consumer(part, hosted.partition)
            case FetchRole.DEBUG:
                return for_debug(part, hosted.partition)

    async def _from_log_storage(
        self,
        role: FetchRole,
        hosted: HostedPartition,
        part: FetchPart,
        admitted: FetchedPart,
        max_bytes: int,
        leader_epoch: int,
    ) -> FetchedPart:
        partition = hosted.partition
        unbounded = admitted.readable_end == UNBOUNDED
        max_offset = -1 if unbounded else admitted.readable_end
        begin = functools.partial(
            self._replica_manager.storage.read, part.key, part.fetch_offset, max_offset, max_bytes
        )
        # What one leadership may give out does not change below the bound, which is this reader's: high watermark or
        # log end. A log of another's may be copied over.
        same = (part.key, leader_epoch, partition.incarnation, part.fetch_offset, max_offset)
        try:
            if partition.leadership is None:
                answer = await begin()
            else:
                answer = await self._reads.read(same, max_bytes, begin)
        except StorageUnavailableError as error:
            return replace(admitted, error=ErrorCode.LOG_STORAGE_ERROR, message=str(error))
        if answer.offline:
            self._replica_manager.heard_offline(part.key, answer.incarnation)
        still_leads = partition.leadership is not None and partition.leader_epoch == leader_epoch
        if role is not FetchRole.DEBUG and not still_leads:
            # What was read may be another leader's by now, copied over ours.
            return replace(admitted, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Retention may have raised the log start: asked again, what is gone is out of range here.
        raised = partition.log_start_seen(leader_epoch, answer.incarnation, answer.log_start_offset)
        self._replica_manager.perform(hosted, raised)
        return replace(
            admitted,
            error=answer.error.code,
            message=answer.error.message,
            pieces=(answer.records,) if answer.records else NO_PIECES,
            log_start_offset=answer.log_start_offset if unbounded else partition.log_start_offset,
            log_end_offset=answer.log_end_offset if unbounded else admitted.log_end_offset,
        )
