"""Fetch: consumers, replicas and the debug role; the tail cache first, then log-storage; long poll without polling.

A fetch that finds too little waits in a purgatory, to be woken directly: replicas and the debug role when the log end
moves, consumers when the high watermark does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import DivergingEpoch, FetchSession, FetchVerdict, FollowerFetch
from highwater.replica_manager.partition.answers import check_consumer_fetch
from highwater.replica_manager.partition.partition import Partition, Phase
from highwater.replica_manager.replicas.data_wait import DataWait
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import FetchPurgatory, Waiting, WaitingFetch
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.payloads import rows_before_columns
from highwater.rpc.embedding import Piece, size_of

NO_PIECES: tuple[Piece, ...] = ()
LEADER_IS_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
# A long wait is cut here, so that a client that asks for hours holds nothing for hours.
MAX_WAIT_MS = 60_000
# Where as many wait as may, the others are answered after so long, with what there is then: they ask again at once.
FULL_PAUSE_S = 0.5
_NOT_HOSTED = FetchVerdict(ErrorCode.UNKNOWN_LEADER_EPOCH, None, -1, -1, -1, ())
_NOTHING = -1 << 62
_UNBOUNDED = 1 << 62


class FetchRole(Enum):
    REPLICA = "replica"
    CONSUMER = "consumer"
    DEBUG = "debug"  # any replica, any offset (RULES 5.7)


class FetchPart(NamedTuple):
    key: PartitionKey
    leader_epoch: int
    fetch_offset: int
    max_bytes: int
    acked_offset: int = -1  # the last three: replicas only (RULES 4.1)
    last_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchedPart:
    """The answer about one partition. Offsets and epochs are -1 where they are not told; `leader` and `leader_epoch`
    tell where to go instead."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    pieces: Sequence[Piece] = NO_PIECES  # whole batches, in order
    diverging: DivergingEpoch | None = None
    leader: int = -1
    leader_epoch: int = -1
    readable_end: int = _NOTHING  # whoever asks may read up to there: nothing, where that is not above the fetch offset


class FetchRead(NamedTuple):
    """The findings of one look at all partitions of a fetch."""

    parts: list[FetchedPart]  # one for each that was asked for, in their order
    complete: bool  # to be answered now: enough bytes, or something that waiting does not mend
    awaited: bool  # the event loop ran meanwhile: what moved then has not been waited for


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


class FetchHandler:
    def __init__(self, replica_manager: ReplicaManager, metrics: ReplicaManagerMetrics, *, max_bytes: int) -> None:
        self._replica_manager = replica_manager
        self._metrics = metrics
        self.max_bytes = max_bytes

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
        are there, or any part failed (RULES 5.7); else when they are, the time is up or `params.wait` is ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(params.max_wait_ms, 0), MAX_WAIT_MS) / 1000
        waiting: Waiting[WaitingFetch] | None = None
        try:
            while True:
                read = await self._read(params)
                if read.complete or params.wait.ended or not params.parts or loop.time() >= deadline:
                    return read.parts
                if waiting is None:
                    waiting = self.enter(params, read, deadline)
                    if waiting is None:  # too many wait: this one is not woken for data, nor asked again at once
                        await params.wait.wait(min(deadline - loop.time(), FULL_PAUSE_S))
                        return (await self._read(params)).parts
                    if read.awaited:
                        continue
                await params.wait.wait(deadline - loop.time())
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

    def _purgatory(self, params: FetchParams) -> FetchPurgatory[WaitingFetch]:
        purgatory = self._replica_manager.purgatory
        return purgatory.consumers if params.role is FetchRole.CONSUMER else purgatory.replicas

    async def _read(self, params: FetchParams) -> FetchRead:
        budget = limit = self.max_bytes if params.max_bytes <= 0 else min(params.max_bytes, self.max_bytes)
        parts: list[FetchedPart] = []
        complete, awaited = self.leads_by_now(params), False
        for index, part in enumerate(params.parts):
            hosted = self._replica_manager.hosted.get(part.key)
            found = self.admitted(params, index, hosted)
            # RULES 4.8: the first batch whole, whatever the limits; after that the budget counts.
            refused = found.error is not ErrorCode.NONE or found.diverging is not None
            if hosted is not None and not refused and found.readable_end > part.fetch_offset and budget > 0:
                max_bytes = min(part.max_bytes, budget) if part.max_bytes > 0 else budget
                if not self._from_cache(hosted, part, found, max_bytes):
                    found, awaited = await self._from_log_storage(params.role, hosted, part, found, max_bytes), True
                if found.pieces and params.role is FetchRole.CONSUMER and not params.accepts_columns:
                    found.error, found.pieces = rows_before_columns(found.pieces)
                budget -= size_of(found.pieces)
            parts.append(found)
            if found.error is ErrorCode.UNKNOWN_LEADER_EPOCH and params.role is FetchRole.REPLICA:
                continue  # `leads_by_now`
            if found.error is not ErrorCode.NONE or found.diverging is not None:
                complete = True
                if found.error in LEADER_IS_ELSEWHERE:
                    found.leader, found.leader_epoch = self._replica_manager.leader_of(part.key)
        total = limit - budget
        self._metrics.fetched_bytes[params.role.value].inc(total)
        return FetchRead(parts, complete or total >= min(max(params.min_bytes, 0), limit), awaited)

    async def read_place(
        self,
        hosted: HostedPartition,
        part: FetchPart,
        admitted: FetchedPart,
        max_bytes: int,
        *,
        role: FetchRole = FetchRole.REPLICA,
        accepts_columns: bool = True,
    ) -> tuple[FetchedPart, int]:
        """Reads for an incremental session; the bytes of what was found come with it."""
        found = admitted
        if not self._from_cache(hosted, part, found, max_bytes):
            found = await self._from_log_storage(role, hosted, part, admitted, max_bytes)
        if found.pieces and not accepts_columns:
            found.error, found.pieces = rows_before_columns(found.pieces)
        size_bytes = size_of(found.pieces)
        self._metrics.fetched_bytes[role.value].inc(size_bytes)
        return found, size_bytes

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
                return _for_debug(part, hosted.partition)

    async def _from_log_storage(
        self, role: FetchRole, hosted: HostedPartition, part: FetchPart, admitted: FetchedPart, max_bytes: int
    ) -> FetchedPart:
        partition = hosted.partition
        leader_epoch = partition.leader_epoch
        unbounded = admitted.readable_end == _UNBOUNDED
        max_offset = -1 if unbounded else admitted.readable_end
        try:
            answer = await self._replica_manager.storage.read(part.key, part.fetch_offset, max_offset, max_bytes)
        except StorageUnavailableError as error:
            return replace(admitted, error=ErrorCode.LOG_STORAGE_ERROR, message=str(error))
        if answer.offline:
            self._replica_manager.offline_logs.seen([part.key])
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


def for_replica(part: FetchPart, partition: Partition, verdict: FetchVerdict) -> FetchedPart:
    if verdict.error is not ErrorCode.NONE or verdict.diverging is not None:
        return FetchedPart(
            part.key,
            verdict.error,
            "",
            verdict.high_watermark,
            verdict.log_start_offset,
            verdict.log_end_offset,
            diverging=verdict.diverging,
        )
    if partition.leadership is None or partition.leader_epoch != part.leader_epoch:
        return FetchedPart(part.key, ErrorCode.NOT_LEADER_OR_FOLLOWER)  # leadership ended while the request waited
    # RULES 4.6: as they are now, not as they were when the request came in.
    end = partition.log_end_offset
    return FetchedPart(
        part.key,
        ErrorCode.NONE,
        "",
        partition.high_watermark,
        partition.log_start_offset,
        end,
        readable_end=end,
    )


def for_consumer(part: FetchPart, partition: Partition) -> FetchedPart:
    error = check_consumer_fetch(partition, part.leader_epoch, part.fetch_offset)
    message = ""
    if error is ErrorCode.OFFSET_OUT_OF_RANGE:
        message = (
            f"offset {part.fetch_offset} is not between the log start {partition.log_start_offset} and the "
            "log end: seek to an offset that exists"
        )
    high_watermark = partition.high_watermark
    return FetchedPart(
        part.key,
        error,
        message,
        high_watermark,
        partition.log_start_offset,
        readable_end=high_watermark if error is ErrorCode.NONE else _NOTHING,  # RULES 5.7
    )


def _for_debug(part: FetchPart, partition: Partition) -> FetchedPart:
    end, start = partition.log_end_offset, partition.log_start_offset
    found = FetchedPart(part.key, ErrorCode.NONE, "", partition.high_watermark, start, end)
    if partition.leadership is None:
        found.readable_end = (
            _UNBOUNDED  # a follower's log is known to log-storage alone, which refuses what is not there
        )
    elif start <= part.fetch_offset <= end:
        found.readable_end = end
    else:
        found.error = ErrorCode.OFFSET_OUT_OF_RANGE
    return found
