"""Re-reads sealed segments in the background, slowly, and checks the CRC of every batch.

It is the disk that is read, not the page cache: what is cached of a file is let go before and after. Damage is kept
with the log, shown by DescribeLogs and ListBatches and counted in the answers of the append stream, so that the broker
has the range copied anew from the leader (RULES 7.6).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Executor

from highwater.log_storage.damage import DamagedRange, WalkedBatch, walk_checked
from highwater.log_storage.hosted import HostedLog
from highwater.log_storage.log import Log
from highwater.log_storage.log_registry import LogRegistry
from highwater.log_storage.segment import Segment
from highwater.log_storage.throttle import Throttle
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.metrics import Metrics

STEP_BYTES = 1 << 20  # read between two looks at the clock
FIRST_PASS_MS = 60_000  # after the start, where the interval is not shorter

_log = get_logger("log_storage.scrubber")


class Scrubber:
    """A pass reads every sealed segment of every log that is online; the next begins `interval_ms` after it ended."""

    def __init__(
        self, registry: LogRegistry, threads: Executor, metrics: Metrics, *, bytes_per_second: float, interval_ms: int
    ) -> None:
        self._registry = registry
        self._threads = threads
        self._throttle = Throttle(bytes_per_second)
        self._interval_ms = interval_ms
        self._bytes = metrics.counter("scrubbed_bytes", "Bytes of sealed segments read and checked in the background")
        self._passes = metrics.counter("scrub_passes", "Times that all logs were scrubbed")

    async def run(self) -> None:
        await asyncio.sleep(min(FIRST_PASS_MS, self._interval_ms) / 1000)
        while True:
            await self.scrub_all()
            await asyncio.sleep(self._interval_ms / 1000)

    async def scrub_all(self) -> None:
        """One pass."""
        for hosted in list(self._registry):
            try:
                await self.scrub(hosted)
            except Exception:  # one log's, that was deleted meanwhile say: the others are not to go without
                _log.exception("cannot scrub %s", hosted.directory)
        self._passes.inc()

    async def scrub(self, hosted: HostedLog) -> None:
        """One log."""
        if hosted.log is None or hosted.offline_reason:
            return
        for segment in hosted.log.segments[:-1]:
            if hosted.log is None or hosted.offline_reason:
                return
            end_offset = _end_of(hosted.log, segment)
            try:
                found = await self._read(segment, end_offset, hosted.log)
                if found:  # once more: it may have been the way from the disk
                    found = await self._read(segment, end_offset, hosted.log)
            except OSError as error:
                # A sector that cannot be read, say; whether all of the disk has failed, its other users will find.
                found = [DamagedRange(segment.base_offset, segment.end_offset - 1, f"{segment.path}: {error}")]
            if end_offset is None or _end_of(hosted.log, segment) != end_offset:
                continue  # cut, or replaced, meanwhile
            hosted.damage.note(segment, found)
            for damaged in found:
                where = pairs(topic=hosted.topic, partition=hosted.key.partition, first=damaged.first_offset)
                _log.error("damaged: %s %s", damaged.problem, where)
        hosted.scrubbed_ms = time.time_ns() // 1_000_000
        self._registry.count_offline()

    async def _read(self, segment: Segment, end_offset: int | None, log: Log) -> list[DamagedRange]:
        """What is damaged in it. Raises `OSError`."""
        walk = walk_checked(segment, 0, checked=True, end_offset=end_offset, contiguous=log.contiguous)
        found: list[DamagedRange] = []
        position = 0
        while position >= 0:
            run = asyncio.get_running_loop().run_in_executor
            after = await run(self._threads, _step, segment, walk, position, found)
            read = (segment.size_bytes if after < 0 else after) - position
            self._bytes.inc(max(read, 0))
            await asyncio.sleep(self._throttle.delay_s(max(read, 0), time.monotonic()))
            position = after
        return found


def _end_of(log: Log, segment: Segment) -> int | None:
    """Where the segment behind it begins; None where it is not a sealed one of the log's."""
    segments = log.segments
    number = segments.index(segment) if segment in segments else len(segments)
    return segments[number + 1].base_offset if number + 1 < len(segments) else None


def _step(
    segment: Segment, walk: Iterator[WalkedBatch | DamagedRange], position: int, found: list[DamagedRange]
) -> int:
    """Reads on for some bytes; the position behind them, -1 at the end of the segment."""
    segment.let_go_of_cache(position, 2 * STEP_BYTES)
    after = -1
    for each in walk:
        if isinstance(each, DamagedRange):
            found.append(each)
        elif each.position + each.header.size_bytes - position >= STEP_BYTES:
            after = each.position + each.header.size_bytes
            break
    segment.let_go_of_cache(position, 2 * STEP_BYTES)
    return after
