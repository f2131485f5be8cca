"""Access to the logs that the parts of the service share: their locks, and threads for what would block the event
loop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from highwater.log_storage.clock import monotonic_ms
from highwater.log_storage.errors import DamagedError
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.scrubbing.segment_examiner import Inquest
from highwater.log_storage.server.shared_write import SharedWrite
from highwater.log_storage.thread_work import to_its_end
from highwater.rpc.partition_keys import from_key
from highwater.rpc.process.loop_turn import LoopTurn
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger
from highwater.telemetry.metrics import Metrics
from highwater.v1 import common_pb2

LOG_STARTS_AT_ONCE = 2  # are prepared in a directory: a sync may take long, and others need the threads, too

_log = get_logger("log_storage.log_access")

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class LogAccess:
    """One for the server: `manager` has the logs, `incarnation` is this process's (RULES 3.1)."""

    def __init__(self, manager: LogManager, incarnation: str, threads: Executor, metrics: Metrics) -> None:
        self.manager = manager
        self.incarnation = incarnation
        self._threads = threads
        # Of all logs, so nobody waits for a log while holding one of them: what stands still for one would for all.
        self.fencing = asyncio.Lock()  # while fences are decided on and written; take it last
        self.lifecycle_lock = asyncio.Lock()  # while a log is made or deleted
        self._log_starts: dict[LogDir, asyncio.Semaphore] = {}  # before a log's `maintenance`
        self._lowered: dict[LogDir, SharedWrite] = {}  # checkpoints, for the cuts in a directory
        self._under_way: set[asyncio.Future[Any]] = set()
        self._tasks = TaskSupervisor()
        self.inquest = Inquest(threads, manager.logs.count_offline, monotonic_ms)
        self.fsync = metrics.latency("fsync", "Flushes of logs to disk")

    async def stop(self) -> None:
        """Ends what was begun: nothing of it touches a log that is being closed. Waits as `settle`."""
        await self._tasks.stop()
        await self.settle()

    async def settle(self) -> None:
        """Waits for what is under way in threads: also for callers that have gone away, and removals."""
        await self.inquest.stop()
        while self._under_way:
            await asyncio.wait(self._under_way)

    @property
    def writes_fences(self) -> bool:
        """Tells whether fences are being written, of whichever directories."""
        return self.fencing.locked()

    def remove_left(self) -> None:
        """Removes, in threads, the directories that deletions and moves have left."""
        removable = self.manager.logs.removable
        while removable:
            self.to_thread(remove_tree, removable.popleft())

    @contextlib.asynccontextmanager
    async def unfenced(self, hosted: HostedLog) -> AsyncIterator[None]:
        """No fence of this log is set meanwhile, of others they are. The caller has the log `alone`."""
        async with self.fencing:  # those that are under way are written
            hosted.hold_fences()
        try:
            yield
        finally:
            hosted.free_fences()

    async def idle(self, partition: common_pb2.PartitionKey) -> HostedLog:
        """Raises `LogError` (UNKNOWN_TOPIC_ID)."""
        hosted = self.manager.logs.get(from_key(partition))
        if hosted.busy:
            await hosted.idle()
        return hosted

    @contextlib.contextmanager
    def following_up(self, hosted: HostedLog) -> Iterator[None]:
        """Follows up a read: where it meets damage, it is found out what of the log is damaged, and made known (RULES
        7.6)."""
        try:
            yield
        except DamagedError as error:
            self.inquest.begin(hosted, error.base_offset)
            raise

    async def in_thread(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        return await to_its_end(self.to_thread(function, *arguments))

    async def wholly(self, work: Coroutine[Any, Any, None]) -> None:
        """`work`, to its end: what a call has begun to do to a log is not left half done where its caller goes away."""
        await to_its_end(self._noted(asyncio.ensure_future(work)))

    def to_thread(self, function: Callable[..., Answer], *arguments: Any) -> asyncio.Future[Answer]:
        return self._noted(asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments))

    def begin(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        """Begins what outlives the call that begins it, and ends by itself, or with `stop`."""
        return self._noted(self._tasks.run_once(name, work))

    def _noted(self, work: asyncio.Future[Answer]) -> asyncio.Future[Answer]:
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        return work

    async def sync(self, hosted: HostedLog, log_end_offset: int) -> None:
        """`flush.messages`: the batches below `log_end_offset` to disk, before that is answered. All appends that have
        been made when it begins share it. Raises `LogError` (LOG_STORAGE_ERROR)."""
        async with hosted.maintenance:
            await self.sync_held(hosted, log_end_offset)

    async def sync_held(self, hosted: HostedLog, log_end_offset: int) -> None:
        """The same, by whoever has the log's `maintenance`."""
        log = hosted.online()
        if log.synced_offset >= log_end_offset:
            return
        began_ms = monotonic_ms()
        sync = log.flusher.begin_sync()
        with self.fsync.time():
            await self.in_thread(log.flusher.write_out, sync)
        log.flusher.finish_sync(sync)
        hosted.flushed_ms = began_ms
        self.manager.logs.due.touch(hosted)

    async def prepare_log_start(self, hosted: HostedLog, log_start_offset: int) -> None:
        """Before a log starts there: brings to disk what has to be there, which would hold up the loop. Nobody has the
        log alone when this returns. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""

        def due(log: Log) -> int:
            return min(log_start_offset, log.high_watermark)

        while (log := hosted.log) is not None and (hosted.busy or log.log_start.must_prepare(due(log))):
            preparing = self._log_starts.setdefault(hosted.log_dir, asyncio.Semaphore(LOG_STARTS_AT_ONCE))
            async with preparing, hosted.maintenance:  # which whoever has the log alone holds, too
                if self.manager.logs.find(hosted.key) is not hosted or hosted.offline_reason:
                    return
                if hosted.log is log:
                    offset = due(log)
                    if log.log_start.must_sync(offset):
                        await self.sync_held(hosted, offset)
                    await self.in_thread(log.log_start.prepare, offset)

    async def lower_checkpoints(self, log_dir: LogDir) -> None:
        """As `LogManager.lower_checkpoints`, for all cuts that were begun in the directory when the write begins: a
        checkpoint has a line for each of its logs, and thousands may be cut at once."""
        shared = self._lowered.get(log_dir)
        if shared is None:
            shared = self._lowered[log_dir] = SharedWrite(
                lambda: self.in_thread(self.manager.lower_checkpoints, log_dir)
            )
        await shared.written()

    async def checkpoint(self, log_dir: LogDir, name: str) -> None:
        try:
            await self.in_thread(self.manager.logs.write_checkpoint, log_dir, name)
        except OSError as error:
            raise log_dir.disk.refusal(error, f"cannot write {log_dir.path / name}") from error


async def for_each_log(logs: Iterable[HostedLog], work: Callable[[HostedLog], Awaitable[None]]) -> None:
    """`work` for one log after the other, as `_for_each`."""
    await _for_each(((hosted, hosted.directory) for hosted in logs), work)


async def for_each_dir(log_dirs: Iterable[LogDir], work: Callable[[LogDir], Awaitable[None]]) -> None:
    """`work` for one log directory after the other, as `_for_each`."""
    await _for_each(((log_dir, log_dir.path) for log_dir in log_dirs), work)


async def _for_each(named: Iterable[tuple[Item, Path]], work: Callable[[Item], Awaitable[None]]) -> None:
    """One for which it fails keeps none of the others from its turn; the first failure is raised at the end. There may
    be thousands for which there is nothing to wait for, so the loop gets turns between them."""
    first: Exception | None = None
    turn = LoopTurn()
    for item, path in named:
        if turn.over():
            await turn.give_way()
        try:
            await work(item)
        except Exception as error:
            _log.error("%s: %s", path, error)
            first = first or error
    if first is not None:
        raise first


def remove_tree(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
