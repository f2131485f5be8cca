"""Fetch: consumers, replicas and the debug role; the tail cache first, then log-storage; long poll without polling.

A fetch that finds too little waits in a purgatory, to be woken directly: replicas and the debug role when the log end
moves, consumers when the high watermark does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.metadata.models import PartitionKey
from highwater.replica_manager.partition.actions import DivergingEpoch, FetchSession, FetchVerdict, FollowerFetch
from highwater.replica_manager.partition.answers import check_consumer_fetch
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import FetchPurgatory, Waiting
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.replicas.waits import DataWait
from highwater.replica_manager.requests.payloads import rows_before_columns
from highwater.replica_manager.storage.append_stream import StorageUnavailableError
from highwater.rpc.embedding import Piece, size_of

NO_PIECES: tuple[Piece, ...] = ()
_LEADER_IS_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
# A long wait is cut here, so that a client that asks for hours holds nothing for hours.
MAX_WAIT_MS = 60_000
_NOT_HOSTED = FetchVerdict(ErrorCode.UNKNOWN_LEADER_EPOCH, None, -1, -1, -1, ())
UNBOUNDED = 1 << 62


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


@dataclass(slots=True)
class FetchParams:
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
        self._max_bytes = max_bytes

    def note_follower(self, params: FetchParams) -> None:
        """Takes what a replica's request acknowledges, as soon as it comes in (RULES 4.1, 4.2): an acknowledgement
        does not wait for the answers to the requests before it."""
        session = params.session
        assert session is not None
        params.verdicts = [self._note(session, part) for part in params.parts]

    def _note(self, session: FetchSession, part: FetchPart) -> FetchVerdict:
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
            ),
            self._replica_manager.now_ms(),
        )
        if verdict.actions:
            self._replica_manager.perform(hosted, verdict.actions)
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
        waiting: Waiting[DataWait] | None = None
        try:
            while True:
                results, final, awaited = await self._read(params)
                if final or params.wait.ended or not params.parts or loop.time() >= deadline:
                    return results
                if waiting is None:
                    waiting = self._enter(params, results, deadline)
                    if waiting is None:
                        return results  # too many wait: this one asks again
                    if awaited:
                        continue  # what moved during the reading was not waited for yet
                await params.wait.wait(deadline - loop.time())
                self._leave(params, waiting)
                waiting = None
        finally:
            if waiting is not None:
                self._leave(params, waiting)

    def _enter(self, params: FetchParams, results: Sequence[FetchedPart], deadline: float) -> Waiting[DataWait] | None:
        needed = params.min_bytes - sum(size_of(result.pieces) for result in results)
        offsets = {part.key: part.fetch_offset for part in params.parts}
        waiting = self._purgatory(params).add(offsets, needed, int(deadline * 1000), params.wait)
        if waiting is not None and any(v.error is ErrorCode.UNKNOWN_LEADER_EPOCH for v in params.verdicts):
            self._replica_manager.leadership_waits.add(params.wait)
        return waiting

    def _leave(self, params: FetchParams, waiting: Waiting[DataWait]) -> None:
        self._purgatory(params).cancel(waiting)
        self._replica_manager.leadership_waits.discard(params.wait)

    def _purgatory(self, params: FetchParams) -> FetchPurgatory[DataWait]:
        waits = self._replica_manager.waits
        return waits.consumers if params.role is FetchRole.CONSUMER else waits.replicas

    async def _read(self, params: FetchParams) -> tuple[list[FetchedPart], bool, bool]:
        """The results, whether they are to be answered at once, and whether the event loop ran meanwhile."""
        budget = limit = self._max_bytes if params.max_bytes <= 0 else min(params.max_bytes, self._max_bytes)
        results: list[FetchedPart] = []
        final, awaited = self._leads_by_now(params), False
        for index, part in enumerate(params.parts):
            result = FetchedPart(part.key)
            results.append(result)
            hosted = self._replica_manager.hosted.get(part.key)
            if hosted is None:
                result.error = (
                    params.verdicts[index].error if params.verdicts else self._replica_manager.absent(part.key)
                )
            else:
                bound = self._bound(params, index, part, hosted, result)
                # RULES 4.8: the first batch whole, whatever the limits; after that the budget counts.
                refused = result.error is not ErrorCode.NONE or result.diverging is not None
                if not refused and bound > part.fetch_offset and budget > 0:
                    part_bytes = min(part.max_bytes, budget) if part.max_bytes > 0 else budget
                    awaited |= await self._read_part(params, hosted, part, bound, part_bytes, result)
                    budget -= size_of(result.pieces)
            if result.error is ErrorCode.UNKNOWN_LEADER_EPOCH and params.role is FetchRole.REPLICA:
                continue  # `_leads_by_now`
            if result.error is not ErrorCode.NONE or result.diverging is not None:
                final = True
                if result.error in _LEADER_IS_ELSEWHERE:
                    result.leader, result.leader_epoch = self._replica_manager.leader_of(part.key)
        total = limit - budget
        self._metrics.fetched_bytes[params.role.value].inc(total)
        return results, final or total >= min(max(params.min_bytes, 0), limit), awaited

    def _leads_by_now(self, params: FetchParams) -> bool:
        """A follower may hear of a new leader before the leader does: its fetch waits for that as for data, instead of
        backing off. Notes again what came too early; whether any of it is answered otherwise now."""
        session = params.session
        early = [i for i, verdict in enumerate(params.verdicts) if verdict.error is ErrorCode.UNKNOWN_LEADER_EPOCH]
        if session is None or not early or params.wait.ended:  # ended: by a newer request, which has been noted since
            return False
        verdicts = list(params.verdicts)
        for index in early:
            verdicts[index] = self._note(session, params.parts[index])
        params.verdicts = verdicts
        return any(verdicts[index].error is not ErrorCode.UNKNOWN_LEADER_EPOCH for index in early)

    def _bound(
        self, params: FetchParams, index: int, part: FetchPart, hosted: HostedPartition, result: FetchedPart
    ) -> int:
        """The end of what this role may read; at or below the fetch offset: nothing. Fills in errors and offsets."""
        partition = hosted.partition
        match params.role:
            case FetchRole.REPLICA:
                return self._replica_bound(params.verdicts[index], part, hosted, result)
            case FetchRole.CONSUMER:
                result.error = check_consumer_fetch(partition, part.leader_epoch, part.fetch_offset)
                result.high_watermark, result.log_start_offset = partition.high_watermark, partition.log_start_offset
                if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                    result.message = (
                        f"offset {part.fetch_offset} is not between the log start {partition.log_start_offset} and the "
                        "log end: seek to an offset that exists"
                    )
                return -1 if result.error is not ErrorCode.NONE else partition.high_watermark  # RULES 5.7
            case FetchRole.DEBUG:
                result.high_watermark, result.log_start_offset = partition.high_watermark, partition.log_start_offset
                result.log_end_offset = partition.log_end_offset
                if partition.leadership is None:
                    return UNBOUNDED  # a follower's log is known to log-storage alone, which refuses what is not in it
                if not partition.log_start_offset <= part.fetch_offset <= partition.log_end_offset:
                    result.error = ErrorCode.OFFSET_OUT_OF_RANGE
                return partition.log_end_offset if result.error is ErrorCode.NONE else -1
        raise AssertionError(params.role)

    def _replica_bound(
        self, verdict: FetchVerdict, part: FetchPart, hosted: HostedPartition, result: FetchedPart
    ) -> int:
        partition = hosted.partition
        if verdict.error is not ErrorCode.NONE or verdict.diverging is not None:
            result.error, result.diverging = verdict.error, verdict.diverging
            result.high_watermark, result.log_start_offset = verdict.high_watermark, verdict.log_start_offset
            result.log_end_offset = verdict.log_end_offset
            return -1
        if partition.leadership is None or partition.leader_epoch != part.leader_epoch:
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # leadership ended while the request waited
            return -1
        # RULES 4.6: as they are now, not as they were when the request came in.
        result.high_watermark, result.log_start_offset = partition.high_watermark, partition.log_start_offset
        result.log_end_offset = partition.log_end_offset
        return partition.log_end_offset

    async def _read_part(
        self,
        params: FetchParams,
        hosted: HostedPartition,
        part: FetchPart,
        bound: int,
        max_bytes: int,
        result: FetchedPart,
    ) -> bool:
        """Fills in the batches below `bound`. Whether log-storage had to be asked."""
        pieces = hosted.cached(part.fetch_offset, bound, max_bytes)
        if pieces is None:
            await self._read_storage(params, hosted, part, bound, max_bytes, result)
        else:
            result.pieces = pieces
        if result.pieces and params.role is FetchRole.CONSUMER and not params.accepts_columns:
            result.error, result.pieces = rows_before_columns(result.pieces)
        return pieces is None

    async def _read_storage(
        self,
        params: FetchParams,
        hosted: HostedPartition,
        part: FetchPart,
        bound: int,
        max_bytes: int,
        result: FetchedPart,
    ) -> None:
        partition = hosted.partition
        debug_anything = bound == UNBOUNDED
        leader_epoch = partition.leader_epoch
        try:
            answer = await self._replica_manager.storage.read(
                part.key, part.fetch_offset, -1 if debug_anything else bound, max_bytes
            )
        except StorageUnavailableError as error:
            result.error, result.message = ErrorCode.LOG_STORAGE_ERROR, str(error)
            return
        if answer.offline:
            self._replica_manager.offline_logs.seen([part.key])
        still_leads = partition.leadership is not None and partition.leader_epoch == leader_epoch
        if params.role is not FetchRole.DEBUG and not still_leads:
            # What was read may be another leader's by now, copied over ours.
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        # Retention may have raised the log start: asked again, what is gone is out of range here.
        raised = partition.log_start_seen(leader_epoch, answer.incarnation, answer.log_start_offset)
        self._replica_manager.perform(hosted, raised)
        result.log_start_offset = partition.log_start_offset
        result.error, result.message = answer.error.code, answer.error.message
        if answer.records:
            result.pieces = (answer.records,)
        if debug_anything:
            result.log_end_offset, result.log_start_offset = answer.log_end_offset, answer.log_start_offset
