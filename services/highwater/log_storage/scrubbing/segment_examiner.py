"""Reading a segment from the disk, to find out what of it is damaged: by scrubbing, and where a read met damage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor

from highwater.log_storage.files.disk import is_unreadable
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.segment.damage import DamagedRange, check_segment
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_reader import SegmentReader
from highwater.log_storage.segment.walk import WalkedBatch
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs

STEP_BYTES = 1 << 20  # read between two calls of `has_read`

AGAIN_MS = 10_000

_log = get_logger("log_storage.segment_examiner")


class Examiner:
    """`has_read` is told how many bytes each step has read, and may make the next one wait."""

    def __init__(self, threads: Executor, has_read: Callable[[int], Awaitable[None]]) -> None:
        self._threads = threads
        self._has_read = has_read

    async def examine(self, hosted: HostedLog, log: Log, segment: Segment) -> None:
        """Reads the segment, as far as it is written now, and notes with the log what is damaged in it. What seems
        damaged is read once more, through another descriptor: it may have been the way from the disk. Nothing is noted
        where the segment was cut or replaced meanwhile.

        Raises `OSError` where it cannot be read for a reason that says nothing of what stands there: no descriptors are
        left, say, or the whole volume has failed."""
        cuts = segment.cuts
        found: list[DamagedRange] = []
        for _ in range(2):
            reader, end_offset = SegmentReader(segment), _end_of(log, segment)
            try:
                found = await self.read(reader, end_offset, log)
            except OSError as error:
                if not is_unreadable(error) and not await _is_missing(hosted, log, segment):
                    if segment not in log.segments:
                        return
                    raise
                # A sector that cannot be read, say; whether all of the disk has failed, its other users will find.
                found = [DamagedRange(segment.base_offset, reader.end_offset - 1, f"{segment.path}: {error}")]
            if segment.cuts != cuts or segment not in log.segments:
                return
            if not found:
                break
        log.damage.note(segment, found)
        log.disk.health_changed = True
        for damaged in found:
            where = pairs(topic=hosted.topic, partition=hosted.key.partition, first=damaged.first_offset)
            _log.error("damaged: %s %s", damaged.problem, where)

    async def read(self, reader: SegmentReader, end_offset: int, log: Log) -> list[DamagedRange]:
        """Finds what is damaged in it. Raises `OSError`."""
        run = asyncio.get_running_loop().run_in_executor
        await run(self._threads, reader.open)
        contiguous = log.segment_list.contiguous
        checked = check_segment(reader, 0, check_crcs=True, end_offset=end_offset, contiguous=contiguous)
        found: list[DamagedRange] = []
        position = 0
        while position >= 0:
            after = await run(self._threads, _step, reader, checked, position, found)
            await self._has_read(max((reader.size_bytes if after < 0 else after) - position, 0))
            position = after
        return found


class Inquest:
    """Finds out, where reads of a log have met damage, what of that segment is damaged: scrubbing would only once it is
    sealed, and later. One segment of a log at a time, and one that came out sound not again for `AGAIN_MS`."""

    def __init__(self, threads: Executor, found: Callable[[], None], now_ms: Callable[[], int]) -> None:
        """`found` is called after each segment."""
        self._examiner = Examiner(threads, _at_once)
        self._found = found
        self._now_ms = now_ms
        self._sound_ms: dict[HostedLog, int] = {}  # when reads of it were last followed up, in vain
        self._running: dict[HostedLog, asyncio.Task[None]] = {}
        self._tasks = TaskSupervisor()

    def begin(self, hosted: HostedLog, base_offset: int) -> None:
        """A read met damage in the segment that begins there."""
        log = hosted.log
        if log is None or hosted.offline_reason or hosted in self._running:
            return
        segment = next((each for each in log.segments.copy() if each.base_offset == base_offset), None)
        if segment is None or segment in log.damage:
            return
        if self._now_ms() - self._sound_ms.get(hosted, -AGAIN_MS) < AGAIN_MS:
            return
        task = self._tasks.run_once("inquest", lambda: self._run(hosted, log, segment))
        self._running[hosted] = task
        task.add_done_callback(lambda _: self._running.pop(hosted, None))

    async def settle(self) -> None:
        """Waits for those that are under way."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def stop(self) -> None:
        """Ends those that are under way; none is begun afterwards."""
        await self._tasks.stop()

    async def _run(self, hosted: HostedLog, log: Log, segment: Segment) -> None:
        self._sound_ms.pop(hosted, None)
        try:
            await self._examiner.examine(hosted, log, segment)
        except Exception as error:  # it is begun again by a later read
            if isinstance(error, OSError):
                log.disk.note(error)
            _log.warning("%s: what a read met is not known: %s", hosted.directory, error)
        if segment not in log.damage:
            self._sound_ms = {each: ms for each, ms in self._sound_ms.items() if self._now_ms() - ms < AGAIN_MS}
            self._sound_ms[hosted] = self._now_ms()
        self._found()


async def _at_once(size_bytes: int) -> None:
    await asyncio.sleep(0)


def _end_of(log: Log, segment: Segment) -> int:
    """The offset at which the segment behind it begins; of the active one, the log end. Batches are below it."""
    following = [other.base_offset for other in log.segments.copy() if other.base_offset > segment.base_offset]
    return min(following, default=log.log_end_offset)


async def _is_missing(hosted: HostedLog, log: Log, segment: Segment) -> bool:
    """Tells whether a segment of the log has no file any more. Its name may be another one while it is taken into the
    log or out of it."""
    async with hosted.maintenance:
        return segment in log.segments and not segment.path.exists() and log.disk.present()


def _step(
    reader: SegmentReader, checked: Iterator[WalkedBatch | DamagedRange], position: int, found: list[DamagedRange]
) -> int:
    """Reads on for some bytes; the position behind them, -1 at the end of the segment."""
    reader.let_go_of_cache(position, 2 * STEP_BYTES)
    after = -1
    for each in checked:
        if isinstance(each, DamagedRange):
            found.append(each)
        elif each.position + each.header.size_bytes - position >= STEP_BYTES:
            after = each.position + each.header.size_bytes
            break
    reader.let_go_of_cache(position, 2 * STEP_BYTES)
    return after
