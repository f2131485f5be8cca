"""Flushes, checkpoints and retention: asked for, and due from time to time."""

from __future__ import annotations

from logging import ERROR
from typing import Any

from highwater.errors import ErrorCode
from highwater.log_storage.clock import monotonic_ms, wall_clock_ms
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.cleaning_state import CleaningState
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.server.fences import admit
from highwater.log_storage.server.log_access import LogAccess, for_each_dir, for_each_log
from highwater.model.fence_role import Role
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process.loop_turn import LoopTurn, by_turns
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.summed_log import SummedLog
from highwater.v1 import log_storage_pb2

FLUSHED_AT_ONCE = 16  # sealed segments of a log, of three files each; then others may have the log

_log = get_logger("log_storage.flush_and_checkpoint")
_failures = SummedLog(_log)


class FlushAndCheckpoint:
    """The calls that bring logs and checkpoints to disk, and what of that is due from time to time."""

    def __init__(self, access: LogAccess, metrics: Metrics) -> None:
        self._access = access
        self._manager = access.manager
        self._incarnation = access.incarnation
        self._deleted_segments = metrics.counter("deleted_segments_total", "Segments that retention let go")

    async def Flush(self, request: log_storage_pb2.FlushRequest, context: Any) -> log_storage_pb2.FlushResponse:
        response = log_storage_pb2.FlushResponse(incarnation=self._incarnation)
        if request.incarnation not in ("", self._incarnation):
            return response
        asked = map(from_key, request.partitions)
        failed: set[LogDir] = set()
        async for key in by_turns(asked if request.partitions else [hosted.key for hosted in self._manager.logs]):
            hosted = self._manager.logs.find(key)
            try:
                await self.flush(self._manager.logs.get(key))
            except LogError as error:
                response.errors.add(partition=to_key(key), error=to_proto(error.code, error.message))
                if hosted is not None:
                    failed.add(hosted.log_dir)
        for log_dir in self._manager.logs.online_dirs:
            try:
                await self._access.checkpoint(log_dir, checkpoints.RECOVERY_POINTS)
                if request.record_boot and log_dir not in failed:
                    async with self._access.fencing:
                        await self._access.in_thread(log_dir.record_boot)
                if request.cluster_id:
                    await self._access.in_thread(lambda log_dir=log_dir: log_dir.record_cluster(request.cluster_id))
            except (LogError, OSError) as error:
                response.errors.add(error=to_proto(ErrorCode.LOG_STORAGE_ERROR, f"{log_dir.path}: {error}"))
        return response

    async def flush(self, hosted: HostedLog) -> None:
        """One log to disk. Appends go on meanwhile, and others who want the log get their turn between some segments
        and the next: a log that has rolled often and is to be deleted is not flushed any more. Raises `LogError`
        (LOG_STORAGE_ERROR)."""
        log, began_ms = hosted.online(), monotonic_ms()
        log_end_offset = log.log_end_offset
        while True:
            async with hosted.maintenance:
                if hosted.log is not log:  # it has been deleted, or has moved
                    return
                await self._flush_some(hosted.online())
                self._manager.logs.due.touch(hosted)
            if log.recovery_point >= min(log_end_offset, log.log_end_offset):  # it may have been cut meanwhile
                hosted.flushed_ms = began_ms
                return

    async def _flush_some(self, log: Log) -> None:
        if log.producer_state.pending:
            await self._access.in_thread(log.producer_state.write_snapshots)
        flush = log.flusher.begin_flush(FLUSHED_AT_ONCE)
        with self._access.fsync.time():
            await self._access.in_thread(log.flusher.write_out, flush)
        log.flusher.finish_flush(flush)

    async def flush_due(self) -> None:
        """`flush.ms`: flushes each log whose last flush is so long ago and that has been appended to since."""
        await for_each_log(self._manager.logs.due.to_flush(monotonic_ms()), self._flush_due_log)

    async def _flush_due_log(self, hosted: HostedLog) -> None:
        if not hosted.offline_reason:
            try:
                await self.flush(hosted)
            except LogError as error:
                _failures.note(ERROR, "a log is not flushed", _named(hosted, error), cause=error.code.name)

    async def retain(self) -> None:
        """Lets go of the segments of every log that are too old or too many. A log that has any stands still while
        they are renamed; the others go on."""
        # Of a log that is being compacted, which this would stop, it is the turn when that is done.
        uncleaned = (hosted for hosted in self._manager.logs if hosted.cleaning.state is CleaningState.NONE)
        await for_each_log(uncleaned, self.retain_log)

    async def retain_log(self, hosted: HostedLog) -> None:
        """The same of one log."""
        await hosted.idle()
        try:
            if hosted.offline_reason or not hosted.configured:
                return
            log = hosted.online()
            expired = log.log_start.expired(wall_clock_ms())
            if not expired:
                return
            await self._access.prepare_log_start(hosted, log.log_start.behind(expired))
            async with hosted.alone():
                self._manager.logs.due.touch(hosted)
                released = await self._access.in_thread(self._manager.retain, hosted, wall_clock_ms())
            self._deleted_segments.inc(released)
        except LogError as error:
            _failures.note(ERROR, "retention has failed", _named(hosted, error), cause=error.code.name)

    async def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks of the directories in which one has changed. Raises `LogError`."""
        changed: dict[LogDir, list[tuple[HostedLog, int]]] = {}
        for hosted, high_watermark in self._manager.logs.due.with_high_watermark():
            changed.setdefault(hosted.log_dir, []).append((hosted, high_watermark))

        async def write(log_dir: LogDir) -> None:
            if log_dir.offline:
                return
            await self._access.checkpoint(log_dir, checkpoints.HIGH_WATERMARKS)
            for hosted, high_watermark in changed[log_dir]:
                hosted.high_watermark_written = high_watermark

        await for_each_dir(changed, write)

    async def checkpoint_recovery_points(self) -> None:
        """Recovery points and log starts of every directory. Raises `LogError`."""

        async def write(log_dir: LogDir) -> None:
            await self._access.checkpoint(log_dir, checkpoints.RECOVERY_POINTS)
            await self._access.checkpoint(log_dir, checkpoints.LOG_STARTS)

        await for_each_dir(self._manager.logs.online_dirs, write)

    async def CheckpointHighWatermarks(
        self, request: log_storage_pb2.CheckpointHighWatermarksRequest, context: Any
    ) -> log_storage_pb2.CheckpointHighWatermarksResponse:
        response = log_storage_pb2.CheckpointHighWatermarksResponse(incarnation=self._incarnation)
        turn = LoopTurn()
        for given in request.partitions:
            if turn.over():
                await turn.give_way()
            try:
                hosted = await self._access.idle(given.partition)
                admit(hosted, Role.LEADER, given.leader_epoch, self._incarnation)
                self._manager.logs.due.touch(hosted)
                hosted.online().offsets.raise_high_watermark(given.high_watermark)
            except LogError as error:
                response.errors.add(partition=given.partition, error=to_proto(error.code, error.message))
        try:
            await self.checkpoint_high_watermarks()
        except LogError as error:
            _log.error("%s", error)
        return response


def _named(hosted: HostedLog, error: LogError) -> str:
    return pairs(log=hosted.directory.name, error=error.code.name, reason=repr(error.message))
