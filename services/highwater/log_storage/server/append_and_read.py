"""Appends, reads and lookups as the service answers them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Any, NamedTuple

import grpc.aio

from highwater.errors import ErrorCode
from highwater.log_storage.clock import monotonic_ms, wall_clock_ms
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log.log import Appended, Log
from highwater.log_storage.log.log_context import NO_OFFSET, NO_TIME
from highwater.log_storage.log.timestamp_lookup import go_on
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.server.append_spans import AppendSpans
from highwater.log_storage.server.conversions import Answering, fill_log, refuse
from highwater.log_storage.server.fences import FOLLOWER, LEADER, admit
from highwater.log_storage.server.log_access import LogAccess
from highwater.model.fence_role import Role
from highwater.records import HEADER_BYTES, split_batches
from highwater.rpc.partition_keys import from_key
from highwater.rpc.process.loop_turn import LoopTurn
from highwater.telemetry.log import get_logger
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.tracing import Tracer
from highwater.v1 import common_pb2, log_storage_pb2

# A read up to this size comes from the page cache within a fraction of a millisecond; a larger one goes to a thread.
INLINE_READ_BYTES = 1 << 20
# A follower's batches are appended so many at a time: there may be thousands, and between them the loop may get a turn.
# A leader takes an append as a whole, of a bounded number.
FOLLOWED_AT_ONCE = 200

# Appends of a stream that wait for the disk.
MAX_UNSYNCED = 256
# The answer to an append that tells of a log start waits for so long until the log starts there: other logs'
# acknowledgements come behind it.
LOG_START_PATIENCE_S = 0.1
# Lookups go on for so long before the loop gets a turn, and wait for so long for logs that stand still: less than what
# clients wait for an answer about all of them.
LOOKUP_TURN_S = 0.005
LOOKUP_PATIENCE_S = 1.0


_log = get_logger("log_storage.append_and_read")


class _Unsynced(NamedTuple):
    """An append's answer, and what has to be on disk before it is given: logs, up to which offset (`NO_OFFSET`: not the
    batches, but the log start that is due), whose result."""

    response: log_storage_pb2.AppendResponse
    to_sync: list[tuple[HostedLog, int, log_storage_pb2.AppendResult]]
    spans: AppendSpans | None  # of what is traced of it


class AppendAndRead:
    """The calls that append, read and look offsets up."""

    def __init__(self, access: LogAccess, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self._access = access
        self._manager = access.manager
        self._incarnation = access.incarnation
        appended = metrics.counter("appended_bytes_total", "Bytes of batches appended", ("role",))
        self._appended_by_role = {role: appended.labels(role.name.lower()) for role in Role}
        self._log_starts: dict[LogDir, asyncio.Lock] = {}  # held while they are written
        self._reaching: set[HostedLog] = set()  # a log start that is due
        self._read_bytes = metrics.counter("read_bytes_total", "Bytes of batches read")

    async def Append(self, request_iterator: Any, context: Any) -> None:
        """One request after the other; gRPC's flow control bounds what waits (RULES 8.2: a probe goes this way too).

        From the first append on that has to wait for the disk a task of its own answers, in order: so the next requests
        are appended meanwhile, and the following fdatasync is for all of them."""
        answering: asyncio.Task[None] | None = None
        turn = LoopTurn()
        unsynced: asyncio.Queue[_Unsynced | None] = asyncio.Queue(MAX_UNSYNCED)
        async with asyncio.TaskGroup() as group:
            while True:
                if not getattr(context, "has_request", False):  # a gRPC stream always waits
                    turn.waits()
                if (request := await context.read()) is grpc.aio.EOF:  # type: ignore[attr-defined]
                    break
                appended = await self._append(request, turn)
                if answering is None and not appended.to_sync:
                    await context.write(appended.response)
                    continue
                if answering is None:
                    answering = group.create_task(self._answer_synced(unsynced, context))
                await unsynced.put(appended)
            if answering is not None:
                await unsynced.put(None)

    async def _answer_synced(self, unsynced: asyncio.Queue[_Unsynced | None], context: Any) -> None:
        while (appended := await unsynced.get()) is not None:
            await self._sync_appended(appended)
            await context.write(appended.response)

    async def append(self, request: log_storage_pb2.AppendRequest) -> log_storage_pb2.AppendResponse:
        """One request of the stream."""
        appended = await self._append(request, LoopTurn())
        await self._sync_appended(appended)
        return appended.response

    async def _append(self, request: log_storage_pb2.AppendRequest, turn: LoopTurn) -> _Unsynced:
        response = log_storage_pb2.AppendResponse(correlation_id=request.correlation_id, incarnation=self._incarnation)
        now_ms = monotonic_ms()
        to_sync: list[tuple[HostedLog, int, log_storage_pb2.AppendResult]] = []
        spans: AppendSpans | None = None
        for partition in request.partitions:
            if turn.over():
                await turn.give_way()
            records = partition.records  # which copies them
            result = response.results.add(partition=partition.partition)
            hosted = self._manager.logs.find(from_key(partition.partition))
            if self._tracer is not None and partition.traceparents:
                spans = spans or AppendSpans(self._tracer)
                spans.begin(partition, result, hosted, request.role)
            if hosted is not None and hosted.busy:
                await hosted.idle()
            try:
                if hosted is None:
                    raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, "this broker has no log of the partition")
                if request.role == FOLLOWER and len(records) > FOLLOWED_AT_ONCE * HEADER_BYTES:
                    appended = await self._append_in_pieces(hosted, partition, records, now_ms, turn)
                else:
                    appended = self._append_one(
                        hosted, request.role, partition, records, partition.expected_offset, now_ms
                    )
                result.base_offset = appended.base_offset
                result.last_offset = appended.last_offset
                result.duplicate = appended.duplicate
                result.log_append_time_ms = appended.log_append_time_ms
                log = hosted.online()
                if log.producer_state.pending and log.producer_state.pending.claim():
                    self._access.to_thread(log.producer_state.write_snapshots)
            except LogError as error:
                refuse(result, error)
            if hosted is not None:
                fill_log(result.log, hosted)
                # A refused one too: the log end in its answer is taken for acknowledged (RULES 4.1). One that was taken
                # in any case: since then another thread may have found that the disk has failed.
                if hosted.log is not None and not (result.error.code and hosted.offline_reason):
                    to_sync += _due(hosted, hosted.log, result)
        response.offline_logs = self._manager.logs.offline_logs
        response.damaged_logs = self._manager.logs.damaged_logs
        if spans is not None:
            spans.written(syncs=bool(to_sync))
        return _Unsynced(response, to_sync, spans)

    async def _sync_appended(self, appended: _Unsynced) -> None:
        if appended.to_sync:
            await asyncio.gather(*(self._sync_result(*one) for one in appended.to_sync))  # the logs' files side by side
            if appended.spans is not None:
                appended.spans.synced()

    async def _sync_result(self, hosted: HostedLog, log_end_offset: int, result: log_storage_pb2.AppendResult) -> None:
        try:
            if log_end_offset != NO_OFFSET:
                await self._access.sync(hosted, log_end_offset)
            await self._reach_log_start(hosted)
            # And no more of the log's state as it is now: later appends may not be on disk yet.
            result.log.log_start_offset = hosted.online().log_start_offset
        except LogError as error:
            refuse(result, error)
            result.log.offline = bool(hosted.offline_reason)
            if log_end_offset != NO_OFFSET and hosted.log is not None:
                # No log end that is not on disk: it is taken for acknowledged, whatever the answer.
                result.log.log_end_offset = min(result.log.log_end_offset, hosted.log.synced_offset)

    async def _reach_log_start(self, hosted: HostedLog) -> None:
        """Has a follower's log start raised to what is due, and waits for that, but not for long: there may be many
        batches to sync, and the sync has the log. Who comes while it is under way does not wait. Where it takes long,
        or fails, the log start lags, and the fetcher asks again. Raises `LogError` (LOG_STORAGE_ERROR)."""
        offsets = hosted.online().offsets
        if hosted in self._reaching or offsets.log_start_due <= offsets.log_start_offset:
            return
        self._reaching.add(hosted)
        reaching = self._access.begin("log-start", lambda: self._reach_due(hosted))
        reaching.add_done_callback(lambda _: self._reaching.discard(hosted))
        await asyncio.wait((reaching,), timeout=LOG_START_PATIENCE_S)

    async def _reach_due(self, hosted: HostedLog) -> None:
        """Raises the log start. It is on disk first: DeleteRecords is answered once all have told that they start
        there; and before it the batches below it (RULES 4.6, 5.8). Logs of a directory that are due together are
        written together."""
        try:
            await self._access.prepare_log_start(hosted, hosted.online().offsets.log_start_due)
            log, log_dir = hosted.online(), hosted.log_dir
            due = log.offsets.log_start_to_checkpoint
            if due <= log.log_start_offset:
                return
            async with self._log_starts.setdefault(log_dir, asyncio.Lock()):
                if log.offsets.log_start_filed < due:
                    logs = [each.log for each in self._manager.logs.in_directory(log_dir) if each.log is not None]
                    written = [
                        (each.offsets, each.offsets.log_start_to_checkpoint)
                        for each in logs
                        if each.offsets.log_start_to_checkpoint > each.log_start_offset
                    ]
                    await self._access.checkpoint(log_dir, checkpoints.LOG_STARTS)
                    for offsets, offset in written:
                        offsets.log_start_filed = min(offset, offsets.log_start_due)
            await self._access.prepare_log_start(hosted, due)
            self._manager.logs.due.touch(hosted)
            hosted.online().log_start.reach(due)
        except LogError as error:  # the answer says it where the log is offline
            _log.error("%s", error)

    async def _append_in_pieces(
        self,
        hosted: HostedLog,
        given: log_storage_pb2.AppendPartition,
        records: bytes,
        now_ms: int,
        turn: LoopTurn,
    ) -> Appended:
        """A follower's append. Raises `LogError`; some of the batches may have been appended then."""
        pieces = split_batches(records, FOLLOWED_AT_ONCE)
        whole = self._append_one(hosted, FOLLOWER, given, next(pieces), given.expected_offset, now_ms)
        for piece in pieces:
            if turn.over():
                await turn.give_way()
            if hosted.busy:
                await hosted.idle()
            appended = self._append_one(hosted, FOLLOWER, given, piece, whole.last_offset + 1, now_ms)
            whole = whole._replace(last_offset=appended.last_offset)
        return whole

    def _append_one(
        self,
        hosted: HostedLog,
        role: int,
        given: log_storage_pb2.AppendPartition,
        records: bytes,
        expected_offset: int,
        now_ms: int,
    ) -> Appended:
        log = hosted.online()
        self._manager.logs.due.touch(hosted)
        if role == LEADER:
            admit(hosted, Role.LEADER, given.leader_epoch, self._incarnation)
            append_time_ms = wall_clock_ms() if log.config.log_append_time else NO_TIME
            appended = log.append_as_leader(records, given.leader_epoch, expected_offset, now_ms, append_time_ms)
            self._appended_by_role[Role.LEADER].inc(len(records))
        elif role == FOLLOWER:
            admit(hosted, Role.FOLLOWER, given.leader_epoch, self._incarnation)
            appended = log.append_as_follower(
                records,
                given.leader_epoch,
                expected_offset,
                given.leader_high_watermark,
                given.leader_log_start_offset,
                now_ms,
            )
            self._appended_by_role[Role.FOLLOWER].inc(len(records))
        else:
            raise LogError(ErrorCode.INVALID_REQUEST, "an append is made as ROLE_LEADER or as ROLE_FOLLOWER")
        return appended

    async def Read(self, request: log_storage_pb2.ReadRequest, context: Any) -> log_storage_pb2.ReadResponse:
        if self._tracer is None or not request.traceparent:
            return await self._read(request)
        span = self._tracer.go_on("read", request.traceparent, offset=request.offset)
        response = await self._read(request)
        if span is not None:
            error = common_pb2.ErrorCode.Name(response.error.code) if response.error.code else ""
            span.end(error=error, bytes=len(response.records))
        return response

    async def _read(self, request: log_storage_pb2.ReadRequest) -> log_storage_pb2.ReadResponse:
        response = log_storage_pb2.ReadResponse(incarnation=self._incarnation)
        with Answering(response) as answering:
            hosted = answering.hosted = await self._access.idle(request.partition)
            with self._access.following_up(hosted):
                plan = hosted.online().reader.plan_read(request.offset, request.max_offset, request.max_bytes)
                if plan is not None:
                    inline = request.max_bytes <= INLINE_READ_BYTES
                    records = plan.run() if inline else await self._access.in_thread(plan.run)
                    response.records = records
                    self._read_bytes.inc(len(records))
        return response

    async def ListOffsets(
        self, request: log_storage_pb2.LogListOffsetsRequest, context: Any
    ) -> log_storage_pb2.LogListOffsetsResponse:
        """One log after the other. Those that stand still are waited for together, after the others and for
        `LOOKUP_PATIENCE_S`: an asker of many has the answers of all but these."""
        response = log_storage_pb2.LogListOffsetsResponse(incarnation=self._incarnation)
        standing: list[tuple[log_storage_pb2.LogListOffsetsPartition, log_storage_pb2.LogListOffsetsResult]] = []
        turn_ends = monotonic() + LOOKUP_TURN_S
        for part in request.partitions:
            result = response.results.add(offset=NO_OFFSET, timestamp=NO_TIME)
            with Answering(result):
                hosted = self._manager.logs.get(from_key(part.partition))
                if hosted.busy:
                    standing.append((part, result))
                else:
                    await self._look_up(hosted, part, result)
            if monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = monotonic() + LOOKUP_TURN_S
        if standing:
            await asyncio.gather(*(self._look_up_later(*each) for each in standing))
        return response

    async def _look_up_later(
        self, part: log_storage_pb2.LogListOffsetsPartition, result: log_storage_pb2.LogListOffsetsResult
    ) -> None:
        with Answering(result):
            try:
                async with asyncio.timeout(LOOKUP_PATIENCE_S):
                    hosted = await self._access.idle(part.partition)
            except TimeoutError:
                raise LogError(ErrorCode.LOG_STORAGE_ERROR, "the log is being changed: try again") from None
            await self._look_up(hosted, part, result)

    async def _look_up(
        self,
        hosted: HostedLog,
        part: log_storage_pb2.LogListOffsetsPartition,
        result: log_storage_pb2.LogListOffsetsResult,
    ) -> None:
        """Batches are expanded in threads. Raises `LogError`."""
        log = hosted.online()
        search = log.reader.search_offset(part.timestamp, part.max_offset)
        with self._access.following_up(hosted), contextlib.closing(search):
            try:
                looked_into = next(search)
                while True:
                    small = looked_into.small
                    scanned = looked_into.scan() if small else await self._access.in_thread(looked_into.scan)
                    if hosted.busy or hosted.log is not log:
                        raise LogError(ErrorCode.LOG_STORAGE_ERROR, "the log is being changed: try again")
                    looked_into = go_on(search, scanned)
            except StopIteration as end:
                found = end.value
        result.offset, result.timestamp, result.leader_epoch = found

    async def EndOffsetForEpoch(
        self, request: log_storage_pb2.EndOffsetForEpochRequest, context: Any
    ) -> log_storage_pb2.EndOffsetForEpochResponse:
        response = log_storage_pb2.EndOffsetForEpochResponse(incarnation=self._incarnation)
        with Answering(response):
            hosted = await self._access.idle(request.partition)
            reader = hosted.online().reader
            response.leader_epoch, response.end_offset = reader.end_offset_for_epoch(request.leader_epoch)
        return response


def _due(
    hosted: HostedLog, log: Log, result: log_storage_pb2.AppendResult
) -> Iterator[tuple[HostedLog, int, log_storage_pb2.AppendResult]]:
    """Finds what of the log has to be on disk before the result is given (`_Unsynced`)."""
    if log.flusher.must_sync:
        yield hosted, log.log_end_offset, result
    elif log.offsets.log_start_due > log.log_start_offset:
        yield hosted, NO_OFFSET, result
