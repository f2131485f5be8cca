"""The LogStorage service's edge: protobuf in, protobuf out. Rules of a single log are in `log.py`, those of the fence
in `fence.py`; here is their order in time."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc.aio

from highwater.errors import ErrorCode
from highwater.log_storage import checkpoints
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence, FenceVerdict, Role, admission, propose
from highwater.log_storage.hosted import HostedLog
from highwater.log_storage.log import NO_OFFSET, NO_TIME, Appended, Log, LogState
from highwater.log_storage.log_dir import LogDir
from highwater.log_storage.log_manager import LogManager, monotonic_ms
from highwater.log_storage.segment import Segment
from highwater.metadata.models import PartitionKey
from highwater.rpc.errors import to_proto
from highwater.telemetry.log import get_logger
from highwater.telemetry.metrics import Metrics
from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc

# A read up to this size comes from the page cache within a fraction of a millisecond; a larger one goes to a thread.
INLINE_READ_BYTES = 1 << 20
# After so many bytes of appends the loop gets a turn.
INLINE_APPEND_BYTES = 1 << 20

# Appends of a stream that wait for the disk.
MAX_UNSYNCED = 256

_LEADER = int(Role.LEADER)
_FOLLOWER = int(Role.FOLLOWER)

_log = get_logger("log_storage.servicer")

Answer = TypeVar("Answer")


class _Unsynced(NamedTuple):
    """An append's answer, and what has to be on disk before it is given: logs, up to which offset, whose result."""

    response: log_storage_pb2.AppendResponse
    to_sync: list[tuple[HostedLog, int, log_storage_pb2.AppendResult]]


class LogStorageServicer(log_storage_pb2_grpc.LogStorageServicer):
    def __init__(self, manager: LogManager, incarnation: str, threads: Executor, metrics: Metrics) -> None:
        self._manager = manager
        self._incarnation = incarnation
        self._threads = threads
        self._fencing = asyncio.Lock()  # one FenceEpoch, CreateLog or DeleteLog at a time
        self._in_threads: set[asyncio.Future[Any]] = set()
        self._appended_bytes = metrics.counter("appended_bytes_total", "Bytes of batches appended", ("role",))
        self._appended_by_role = {role: self._appended_bytes.labels(role.name.lower()) for role in Role}
        self._read_bytes = metrics.counter("read_bytes_total", "Bytes of batches read")
        self._deleted_segments = metrics.counter("deleted_segments_total", "Segments that retention let go")
        self._fsync = metrics.latency("fsync", "Flushes of logs to disk")

    # -- the data path ------------------------------------------------------------------------------------------------

    async def Append(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """One request after the other; gRPC's flow control bounds what waits (RULES 8.2: a probe goes this way too).

        From the first append on that has to wait for the disk a task of its own answers, in order: so the next requests
        are appended meanwhile, and the following fdatasync is for all of them."""
        answering: asyncio.Task[None] | None = None
        unsynced: asyncio.Queue[_Unsynced | None] = asyncio.Queue(MAX_UNSYNCED)
        async with asyncio.TaskGroup() as group:
            while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                appended = await self._append(request)
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
        appended = await self._append(request)
        await self._sync_appended(appended)
        return appended.response

    async def _append(self, request: log_storage_pb2.AppendRequest) -> _Unsynced:
        response = log_storage_pb2.AppendResponse(correlation_id=request.correlation_id, incarnation=self._incarnation)
        now_ms = monotonic_ms()
        to_sync: list[tuple[HostedLog, int, log_storage_pb2.AppendResult]] = []
        given_bytes = 0
        for partition in request.partitions:
            if given_bytes > INLINE_APPEND_BYTES:
                given_bytes = 0
                await asyncio.sleep(0)
            given_bytes += len(partition.records)
            result = response.results.add(partition=partition.partition)
            hosted = self._manager.find(_key(partition.partition))
            if hosted is not None and hosted.busy:
                await hosted.idle()
            try:
                if hosted is None:
                    raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, "this broker has no log of the partition")
                appended = self._append_one(hosted, request.role, partition, now_ms)
                result.base_offset = appended.base_offset
                result.last_offset = appended.last_offset
                result.duplicate = appended.duplicate
                result.log_append_time_ms = appended.log_append_time_ms
                log = hosted.online()
                if log.must_sync:
                    to_sync.append((hosted, log.log_end_offset, result))
            except LogError as error:
                _refuse(result, error)
            if hosted is not None and hosted.log is not None:
                _fill_state(result.log, hosted.log.state)
        return _Unsynced(response, to_sync)

    async def _sync_appended(self, appended: _Unsynced) -> None:
        for hosted, log_end_offset, result in appended.to_sync:
            try:
                await self._sync(hosted, log_end_offset)
            except LogError as error:
                _refuse(result, error)

    def _append_one(
        self, hosted: HostedLog, role: int, given: log_storage_pb2.AppendPartition, now_ms: int
    ) -> Appended:
        log = hosted.online()
        records = given.records
        if role == _LEADER:
            _admit(hosted, Role.LEADER, given.leader_epoch, self._incarnation)
            wall_clock_ms = _wall_clock_ms() if log.config.log_append_time else NO_TIME
            appended = log.append_as_leader(records, given.leader_epoch, given.expected_offset, now_ms, wall_clock_ms)
            self._appended_by_role[Role.LEADER].inc(len(records))
        elif role == _FOLLOWER:
            _admit(hosted, Role.FOLLOWER, given.leader_epoch, self._incarnation)
            appended = log.append_as_follower(
                records,
                given.leader_epoch,
                given.expected_offset,
                given.leader_high_watermark,
                given.leader_log_start_offset,
                now_ms,
            )
            self._appended_by_role[Role.FOLLOWER].inc(len(records))
        else:
            raise LogError(ErrorCode.INVALID_REQUEST, "an append is made as LEADER or as FOLLOWER")
        return appended

    async def _sync(self, hosted: HostedLog, appended_up_to: int) -> None:
        """`flush.messages`: the batches to disk before the append is answered. All appends that have been made when it
        begins share it."""
        async with hosted.maintenance:
            log = hosted.online()
            if log.synced_offset >= appended_up_to:
                return
            began_ms = monotonic_ms()
            segments, log_end_offset = log.begin_sync()
            try:
                with self._fsync.time():
                    await self._in_thread(_sync_segments, segments)
            except OSError as error:
                raise log.fail(error) from error
            log.finish_sync(log_end_offset)
            hosted.flushed_ms = began_ms

    async def Read(self, request: log_storage_pb2.ReadRequest, context: Any) -> log_storage_pb2.ReadResponse:
        response = log_storage_pb2.ReadResponse(incarnation=self._incarnation)
        hosted: HostedLog | None = None
        try:
            hosted = await self._idle(request.partition)
            plan = hosted.online().plan_read(request.offset, request.max_offset, request.max_bytes)
            if plan is not None:
                inline = request.max_bytes <= INLINE_READ_BYTES
                response.records = plan.run() if inline else await self._in_thread(plan.run)
                self._read_bytes.inc(len(response.records))
        except LogError as error:
            _refuse(response, error)
        if hosted is not None and hosted.log is not None:
            _fill_state(response.log, hosted.log.state)
        return response

    async def ListOffsets(
        self, request: log_storage_pb2.LogListOffsetsRequest, context: Any
    ) -> log_storage_pb2.LogListOffsetsResponse:
        response = log_storage_pb2.LogListOffsetsResponse(incarnation=self._incarnation, offset=NO_OFFSET, timestamp=-1)
        try:
            hosted = await self._idle(request.partition)
            found = hosted.online().list_offset(request.timestamp, request.max_offset)
            response.offset, response.timestamp, response.leader_epoch = found
        except LogError as error:
            _refuse(response, error)
        return response

    async def EndOffsetForEpoch(
        self, request: log_storage_pb2.EndOffsetForEpochRequest, context: Any
    ) -> log_storage_pb2.EndOffsetForEpochResponse:
        response = log_storage_pb2.EndOffsetForEpochResponse(incarnation=self._incarnation)
        try:
            hosted = await self._idle(request.partition)
            response.leader_epoch, response.end_offset = hosted.online().end_offset_for_epoch(request.leader_epoch)
        except LogError as error:
            _refuse(response, error)
        return response

    # -- the fence ----------------------------------------------------------------------------------------------------

    async def FenceEpoch(
        self, request: log_storage_pb2.FenceEpochRequest, context: Any
    ) -> log_storage_pb2.FenceEpochResponse:
        """RULES 3.1, 3.2. A raised fence shuts out the writes of the earlier one from the moment it is decided, so
        the log stands still while the fence goes to disk; the state in the answer is read after that."""
        response = log_storage_pb2.FenceEpochResponse(incarnation=self._incarnation)
        async with self._fencing:
            raised: dict[LogDir, dict[PartitionKey, Fence]] = {}
            refused: list[LogError | None] = []
            for asked in request.partitions:
                try:
                    self._propose(request, asked, raised)
                    refused.append(None)
                except LogError as error:
                    refused.append(error)
            await self._record(raised)
            for asked, refusal in zip(request.partitions, refused, strict=True):
                await self._answer_fence(request, asked, refusal, response.results.add(partition=asked.partition))
        return response

    def _propose(
        self,
        request: log_storage_pb2.FenceEpochRequest,
        asked: log_storage_pb2.FencePartition,
        raised: dict[LogDir, dict[PartitionKey, Fence]],
    ) -> None:
        if request.role not in (_LEADER, _FOLLOWER) or asked.leader_epoch < 0:
            raise LogError(ErrorCode.INVALID_REQUEST, "a fence has the role LEADER or FOLLOWER and an epoch from 0 on")
        hosted = self._manager.get(_key(asked.partition))
        log = hosted.online()
        role = Role(request.role)
        replica_manager = request.replica_manager_incarnation if role is Role.LEADER else ""
        proposed = Fence(asked.leader_epoch, role, replica_manager, self._incarnation)
        verdict = propose(hosted.fence, proposed)
        behind_log = role is Role.LEADER and asked.leader_epoch < log.last_epoch
        if verdict is FenceVerdict.REFUSED or behind_log:
            raise LogError(
                ErrorCode.STALE_FENCE,
                f"{proposed} is refused: the fence is {hosted.fence}, the log's last epoch {log.last_epoch}",
            )
        if verdict is FenceVerdict.RAISED:
            hosted.log_dir.fences.fences[hosted.key] = proposed
            raised.setdefault(hosted.log_dir, {})[hosted.key] = proposed

    async def _record(self, raised: dict[LogDir, dict[PartitionKey, Fence]]) -> None:
        """One fdatasync a log directory. A failure shows in `fences.failed`."""
        records = [self._to_thread(log_dir.fences.record, fences) for log_dir, fences in raised.items()]
        for outcome in await _to_its_end(asyncio.gather(*records, return_exceptions=True)):
            if isinstance(outcome, OSError):
                _log.error("fences could not be written: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _answer_fence(
        self,
        request: log_storage_pb2.FenceEpochRequest,
        asked: log_storage_pb2.FencePartition,
        refused: LogError | None,
        result: log_storage_pb2.FenceResult,
    ) -> None:
        hosted = self._manager.find(_key(asked.partition))
        result.fenced_epoch = -1
        try:
            if refused is not None:
                raise refused
            if hosted is None:
                raise LogError(ErrorCode.UNKNOWN_TOPIC_ID, "the log was deleted meanwhile")
            if hosted.log_dir.fences.failed:
                raise LogError(
                    ErrorCode.LOG_STORAGE_ERROR, f"fences cannot be written in {hosted.log_dir.path}: see the log"
                )
            await hosted.idle()
            log = hosted.online()
            if request.role == _LEADER:
                log.become_leader(asked.leader_epoch)
            else:
                log.become_follower()
            for entry in log.epochs.entries:
                result.epochs.add(leader_epoch=entry.leader_epoch, start_offset=entry.start_offset)
        except LogError as error:
            _refuse(result, error)
        if hosted is not None:
            result.fenced_epoch = hosted.fence.leader_epoch if hosted.fence is not None else -1
            if hosted.log is not None:
                _fill_state(result.log, hosted.log.state)

    # -- cutting ------------------------------------------------------------------------------------------------------

    async def TruncateTo(
        self, request: log_storage_pb2.TruncateToRequest, context: Any
    ) -> log_storage_pb2.TruncateResponse:
        return await self._cut(request, self._manager.truncate)

    async def TruncateFullyAndStartAt(
        self, request: log_storage_pb2.TruncateFullyAndStartAtRequest, context: Any
    ) -> log_storage_pb2.TruncateResponse:
        return await self._cut(request, self._manager.truncate_fully_and_start_at)

    async def _cut(
        self,
        request: log_storage_pb2.TruncateToRequest | log_storage_pb2.TruncateFullyAndStartAtRequest,
        cut: Callable[[HostedLog, int, int], None],
    ) -> log_storage_pb2.TruncateResponse:
        response = log_storage_pb2.TruncateResponse(incarnation=self._incarnation)
        hosted: HostedLog | None = None
        try:
            hosted = self._manager.get(_key(request.partition))
            async with hosted.alone():
                _admit(hosted, Role.FOLLOWER, request.leader_epoch, self._incarnation)
                _check_decided_on(hosted.online(), request)
                await self._in_thread(cut, hosted, request.offset, request.unclean_epoch)
        except LogError as error:
            _refuse(response, error)
        if hosted is not None and hosted.log is not None:
            _fill_state(response.log, hosted.log.state)
        return response

    async def RaiseLogStart(
        self, request: log_storage_pb2.RaiseLogStartRequest, context: Any
    ) -> log_storage_pb2.RaiseLogStartResponse:
        response = log_storage_pb2.RaiseLogStartResponse(incarnation=self._incarnation)
        hosted: HostedLog | None = None
        try:
            hosted = await self._idle(request.partition)
            fence = hosted.fence
            _admit(hosted, fence.role if fence is not None else Role.LEADER, request.leader_epoch, self._incarnation)
            hosted.online().raise_log_start(request.log_start_offset)
            await self._checkpoint(hosted.log_dir, checkpoints.LOG_STARTS)
        except LogError as error:
            _refuse(response, error)
        if hosted is not None and hosted.log is not None:
            _fill_state(response.log, hosted.log.state)
        return response

    # -- logs ---------------------------------------------------------------------------------------------------------

    async def CreateLog(
        self, request: log_storage_pb2.CreateLogRequest, context: Any
    ) -> log_storage_pb2.CreateLogResponse:
        response = log_storage_pb2.CreateLogResponse(incarnation=self._incarnation)
        try:
            async with self._fencing:
                response.created = await self._in_thread(
                    self._manager.create, request.topic, _key(request.partition), dict(request.config)
                )
        except LogError as error:
            _refuse(response, error)
        return response

    async def DeleteLog(
        self, request: log_storage_pb2.DeleteLogRequest, context: Any
    ) -> log_storage_pb2.DeleteLogResponse:
        response = log_storage_pb2.DeleteLogResponse(incarnation=self._incarnation)
        key = _key(request.partition)
        try:
            async with self._fencing:
                hosted = self._manager.find(key)
                if hosted is not None:
                    async with hosted.alone():
                        removable = await self._in_thread(self._manager.delete, key, request.leader_epoch)
                    if removable is not None:
                        self._to_thread(_remove_tree, removable)
        except LogError as error:
            _refuse(response, error)
        return response

    async def CheckpointHighWatermarks(
        self, request: log_storage_pb2.CheckpointHighWatermarksRequest, context: Any
    ) -> log_storage_pb2.CheckpointHighWatermarksResponse:
        response = log_storage_pb2.CheckpointHighWatermarksResponse(incarnation=self._incarnation)
        for given in request.partitions:
            try:
                hosted = await self._idle(given.partition)
                _admit(hosted, Role.LEADER, given.leader_epoch, self._incarnation)
                hosted.online().raise_high_watermark(given.high_watermark)
            except LogError as error:
                response.errors.add(partition=given.partition, error=to_proto(error.code, error.message))
        try:
            await self.checkpoint_high_watermarks()
        except LogError as error:
            _log.error("%s", error)
        return response

    async def DescribeLogs(
        self, request: log_storage_pb2.DescribeLogsRequest, context: Any
    ) -> log_storage_pb2.DescribeLogsResponse:
        response = log_storage_pb2.DescribeLogsResponse(incarnation=self._incarnation)
        asked = [_key(partition) for partition in request.partitions]
        for hosted in self._manager if not asked else [self._manager.find(key) for key in asked]:
            if hosted is not None:
                _describe(hosted, response.logs.add(partition=_key_proto(hosted.key)))
        for key in asked:
            if self._manager.find(key) is None:
                missing = response.logs.add(partition=_key_proto(key), fenced_epoch=-1)
                missing.error.CopyFrom(to_proto(ErrorCode.UNKNOWN_TOPIC_ID, f"this broker has no log of {key}"))
        for log_dir in self._manager.log_dirs:
            described = response.log_dirs.add(
                path=str(log_dir.path), tail_lost=log_dir.tail_lost, cluster_id=log_dir.cluster_id
            )
            described.logs = sum(1 for _ in self._manager.in_directory(log_dir))
            try:
                usage = shutil.disk_usage(log_dir.path)
                described.total_bytes, described.usable_bytes = usage.total, usage.free
            except OSError as error:
                described.error.CopyFrom(to_proto(ErrorCode.LOG_STORAGE_ERROR, f"{log_dir.path}: {error}"))
        return response

    async def AlterLogConfig(
        self, request: log_storage_pb2.AlterLogConfigRequest, context: Any
    ) -> log_storage_pb2.AlterLogConfigResponse:
        response = log_storage_pb2.AlterLogConfigResponse(incarnation=self._incarnation)
        try:
            hosted = await self._idle(request.partition)
            hosted.online().config = self._manager.config.with_topic(dict(request.config))
            hosted.configured = True
        except LogError as error:
            _refuse(response, error)
        return response

    # -- durability ---------------------------------------------------------------------------------------------------

    async def Flush(self, request: log_storage_pb2.FlushRequest, context: Any) -> log_storage_pb2.FlushResponse:
        response = log_storage_pb2.FlushResponse(incarnation=self._incarnation)
        keys = [_key(partition) for partition in request.partitions] or [hosted.key for hosted in self._manager]
        failed: set[LogDir] = set()
        for key in keys:
            hosted = self._manager.find(key)
            try:
                await self.flush(self._manager.get(key))
            except LogError as error:
                response.errors.add(partition=_key_proto(key), error=to_proto(error.code, error.message))
                if hosted is not None:
                    failed.add(hosted.log_dir)
        for log_dir in self._manager.log_dirs:
            try:
                await self._checkpoint(log_dir, checkpoints.RECOVERY_POINTS)
                if request.record_boot and log_dir not in failed:
                    await self._in_thread(log_dir.record_boot)
                if request.cluster_id:
                    await self._in_thread(lambda log_dir=log_dir: log_dir.record_cluster(request.cluster_id))
            except (LogError, OSError) as error:
                response.errors.add(error=to_proto(ErrorCode.LOG_STORAGE_ERROR, f"{log_dir.path}: {error}"))
        return response

    async def flush(self, hosted: HostedLog) -> None:
        """One log to disk. Appends go on meanwhile. Raises `LogError` (LOG_STORAGE_ERROR)."""
        async with hosted.maintenance:
            log = hosted.online()
            began_ms = monotonic_ms()
            flush = log.begin_flush()
            try:
                with self._fsync.time():
                    await self._in_thread(flush.run)
            except OSError as error:
                raise log.fail(error) from error
            log.finish_flush(flush)
            hosted.flushed_ms = began_ms

    async def flush_due(self) -> None:
        """`flush.ms`: flushes each log whose last flush is so long ago and that has been appended to since."""
        for hosted in self._manager:
            log = hosted.log
            if log is None or hosted.offline_reason or log.synced_offset == log.log_end_offset:
                continue
            if monotonic_ms() - hosted.flushed_ms >= log.config.flush_ms:
                try:
                    await self.flush(hosted)
                except LogError as error:
                    _log.error("%s", error)

    async def retain(self) -> None:
        """Lets go of the segments of every log that are too old or too many. A log that has any stands still while
        they are renamed; the others go on."""
        for hosted in self._manager:
            await hosted.idle()
            try:
                if hosted.offline_reason or not hosted.configured or not hosted.online().expired(_wall_clock_ms()):
                    continue
                async with hosted.alone():
                    released = await self._in_thread(self._manager.retain, hosted, _wall_clock_ms())
                self._deleted_segments.inc(released)
            except LogError as error:
                _log.error("%s", error)

    async def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks of the directories in which one has changed. Raises `LogError`."""
        changed: dict[LogDir, list[tuple[HostedLog, int]]] = {}
        for hosted in self._manager:
            if hosted.log is not None and hosted.log.high_watermark != hosted.high_watermark_written:
                changed.setdefault(hosted.log_dir, []).append((hosted, hosted.log.high_watermark))
        for log_dir, written in changed.items():
            await self._checkpoint(log_dir, checkpoints.HIGH_WATERMARKS)
            for hosted, high_watermark in written:
                hosted.high_watermark_written = high_watermark

    async def checkpoint_recovery_points(self) -> None:
        """Recovery points and log starts of every directory. Raises `LogError`."""
        for log_dir in self._manager.log_dirs:
            await self._checkpoint(log_dir, checkpoints.RECOVERY_POINTS)
            await self._checkpoint(log_dir, checkpoints.LOG_STARTS)

    async def _checkpoint(self, log_dir: LogDir, name: str) -> None:
        try:
            await self._in_thread(self._manager.write_checkpoint, log_dir, name)
        except OSError as error:
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR, f"cannot write {log_dir.path / name}: {error.strerror or error}"
            ) from error

    async def settle(self) -> None:
        """Waits for what is under way in threads: also for callers that have gone away, and removals."""
        while self._in_threads:
            await asyncio.wait(self._in_threads)

    async def _idle(self, partition: common_pb2.PartitionKey) -> HostedLog:
        """Raises `LogError` (UNKNOWN_TOPIC_ID)."""
        hosted = self._manager.get(_key(partition))
        if hosted.busy:
            await hosted.idle()
        return hosted

    async def _in_thread(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        return await _to_its_end(self._to_thread(function, *arguments))

    def _to_thread(self, function: Callable[..., Answer], *arguments: Any) -> asyncio.Future[Answer]:
        work = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        self._in_threads.add(work)
        work.add_done_callback(self._in_threads.discard)
        return work


async def _to_its_end(work: asyncio.Future[Answer]) -> Answer:
    """The outcome of work in a thread. A call is cancelled when its caller goes away or its deadline passes; the thread
    is not. So the locks that the call holds are kept until the thread is done: nobody else may touch the log before,
    and no fence that is not on disk yet may be answered for (RULES 3.1)."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((work,))
        if not work.cancelled() and (error := work.exception()) is not None:
            _log.error("failed, and nobody waited for it: %s", error)
        raise


def _admit(hosted: HostedLog, role: Role, leader_epoch: int, incarnation: str) -> None:
    """RULES 3.1. Raises `LogError` (UNKNOWN_FENCE, STALE_FENCE)."""
    fence = hosted.log_dir.fences.fences.get(hosted.key)
    code = admission(fence, role, leader_epoch, incarnation)
    if code is not ErrorCode.NONE:
        raise LogError(
            code,
            f"a write as {role.name} under leader epoch {leader_epoch} to {hosted.directory}: the fence is {fence}",
        )


def _check_decided_on(
    log: Log, request: log_storage_pb2.TruncateToRequest | log_storage_pb2.TruncateFullyAndStartAtRequest
) -> None:
    """A truncation that arrives late must not cut what was acknowledged since (RULES 3.4, 4.1). Raises `LogError`
    (OFFSET_MISMATCH)."""
    if not request.HasField("expected_log_end_offset"):
        return
    decided_on = (request.expected_log_end_offset, request.expected_last_epoch)
    if decided_on != (log.state.log_end_offset, log.state.last_epoch):
        raise LogError(
            ErrorCode.OFFSET_MISMATCH,
            f"the truncation was decided on a log that ends at {decided_on[0]} in epoch {decided_on[1]}; this one ends "
            f"at {log.state.log_end_offset} in epoch {log.state.last_epoch}",
        )


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _sync_segments(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.sync_batches()


def _remove_tree(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _key(partition: common_pb2.PartitionKey) -> PartitionKey:
    return PartitionKey(partition.topic_id, partition.partition)


def _key_proto(key: PartitionKey) -> common_pb2.PartitionKey:
    return common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)


def _refuse(answer: Any, error: LogError) -> None:
    """Puts the error into an answer."""
    answer.error.CopyFrom(to_proto(error.code, error.message))
    if isinstance(answer, log_storage_pb2.AppendResult):
        answer.base_offset = answer.last_offset = NO_OFFSET
        answer.log_append_time_ms = NO_TIME


def _fill_state(target: log_storage_pb2.LogState, state: LogState) -> None:
    target.log_end_offset, target.last_epoch, target.log_start_offset, target.high_watermark = state


def _describe(hosted: HostedLog, target: log_storage_pb2.LogDescription) -> None:
    target.topic = hosted.topic
    target.log_dir = str(hosted.log_dir.path)
    fence = hosted.fence
    target.fenced_epoch = fence.leader_epoch if fence is not None else -1
    if fence is not None:
        target.fenced_role = int(fence.role)  # type: ignore[assignment]
    if hosted.offline_reason:
        target.error.CopyFrom(to_proto(ErrorCode.LOG_STORAGE_ERROR, hosted.offline_reason))
    log = hosted.log
    if log is not None:
        _fill_state(target.log, log.state)
        target.size_bytes = log.size_bytes
        target.segments = len(log.segments)
        target.recovery_point = log.recovery_point
        for entry in log.epochs.entries:
            target.epochs.add(leader_epoch=entry.leader_epoch, start_offset=entry.start_offset)
