"""Moves of logs between directories, as the service begins them and carries them on in the background."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from highwater.errors import ErrorCode
from highwater.log_storage.clock import monotonic_ms
from highwater.log_storage.errors import LogError
from highwater.log_storage.log import log_copy
from highwater.log_storage.log_manager.hosted_log import FutureLog, HostedLog
from highwater.log_storage.server.log_access import LogAccess
from highwater.log_storage.throttle import Throttle
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key
from highwater.rpc.process.loop_turn import by_turns
from highwater.telemetry.log import get_logger
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

COPY_BYTES = 1 << 20  # are read and written at once
FLUSH_BYTES = 64 << 20  # of a copy may be in memory only
SWAP_BYTES = 4 << 20  # may still be missing when the log is made to stand still for the swap
RETRY_S = 1.0

_log = get_logger("log_storage.log_moves")


class LogMoves:
    """The call that begins moves between directories, and the task that carries them on."""

    def __init__(self, access: LogAccess, metrics: Metrics) -> None:
        self._access = access
        self._manager = access.manager
        self._incarnation = access.incarnation
        self._moves = asyncio.Event()
        self._throttle = Throttle(sys.float_info.max)
        self._moves.set()  # those that were under way when the process ended
        self._moved_bytes = metrics.counter("moved_bytes_total", "Bytes copied by moves between log directories")
        moving = metrics.gauge("moving_logs", "Logs that move to another directory")
        moving.set_function(lambda: sum(1 for hosted in access.manager.logs if hosted.future is not None))

    async def AlterReplicaLogDirs(
        self, request: log_storage_pb2.AlterLogDirsRequest, context: Any
    ) -> log_storage_pb2.AlterLogDirsResponse:
        response = log_storage_pb2.AlterLogDirsResponse(incarnation=self._incarnation)
        try:
            async for move in by_turns(request.moves):
                result = response.results.add(partition=move.partition)
                try:
                    await self._begin(from_key(move.partition), move.log_dir)
                except LogError as error:
                    result.error.CopyFrom(to_proto(error.code, error.message))
        finally:  # also where the caller has gone away meanwhile
            self._moves.set()
            self._access.remove_left()
        return response

    async def _begin(self, key: PartitionKey, log_dir: str) -> None:
        """Raises `LogError`."""
        async with self._manager.logs.get(key).alone():
            await self._access.in_thread(self._manager.mover.start_move, key, log_dir)

    def limit_rate(self, bytes_per_second: float) -> None:
        """Bounds all moves together, from the next piece on."""
        self._throttle = Throttle(bytes_per_second)

    async def move_logs(self) -> None:
        """Carries all moves on, a piece of each in turn, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._moves.wait()
            moving = [
                hosted for hosted in self._manager.logs if hosted.future is not None and not hosted.offline_reason
            ]
            if not moving:
                self._moves.clear()
                continue
            stuck = True
            for hosted in moving:
                copied = await self._advance(hosted)
                stuck = stuck and copied is None
                if copied:
                    self._moved_bytes.inc(copied)
                    await asyncio.sleep(self._throttle.delay_s(copied, loop.time()))
            if stuck:
                await asyncio.sleep(RETRY_S)

    async def _advance(self, hosted: HostedLog) -> int | None:
        """One piece; how many bytes. None where there is no going on now."""
        future = hosted.future
        if future is None or future.log_dir.disk.full:
            return None
        try:
            async with hosted.maintenance:
                if hosted.future is not future:
                    return 0
                copied = await self._copy(hosted, future)
                nearly = hosted.online().reader.bytes_from(future.log.log_end_offset) <= SWAP_BYTES
                if future.unflushed_bytes and (nearly or future.unflushed_bytes > FLUSH_BYTES):
                    await self._access.in_thread(future.log.flush)
                    future.unflushed_bytes = 0
            if nearly:
                await self._swap(hosted, future)
            return copied
        except LogError as error:
            if error.code is ErrorCode.STORAGE_FULL:
                return None
            _log.error("the move of %s to %s is given up: %s", hosted.directory, future.log_dir.path, error)
            await self._give_up(hosted, future)
            return 0
        except Exception:  # the other moves go on
            _log.exception("the move of %s to %s is given up", hosted.directory, future.log_dir.path)
            await self._give_up(hosted, future)
            return 0

    async def _copy(self, hosted: HostedLog, future: FutureLog) -> int:
        """Whoever calls has the log's `maintenance`. Planned here, since only the loop may look into the indexes of a
        log that is appended to."""
        plan = hosted.online().reader.plan_copy(future.log.log_end_offset, COPY_BYTES)
        if plan is None:
            return 0
        records = await self._access.in_thread(plan.run)
        await self._access.in_thread(log_copy.append_copy, future.log, records, monotonic_ms())
        future.unflushed_bytes += len(records)
        return len(records)

    async def _swap(self, hosted: HostedLog, future: FutureLog) -> None:
        async with hosted.alone():
            if hosted.future is not future:
                return
            while await self._copy(hosted, future):
                pass
            async with self._access.unfenced(hosted):
                self._manager.logs.due.touch(hosted)
                await self._access.in_thread(self._manager.mover.swap, hosted)
        self._access.remove_left()

    async def _give_up(self, hosted: HostedLog, future: FutureLog) -> None:
        async with hosted.maintenance:
            if hosted.future is not future or hosted.offline_reason:
                return  # of a log that is offline the copy stays: after a start it may go on
            if future.log_dir.offline:
                hosted.future = None
            else:
                await self._access.in_thread(self._manager.mover.drop_future, hosted)
        self._access.remove_left()
