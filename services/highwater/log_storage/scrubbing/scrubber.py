"""Re-reads sealed segments in the background, slowly, and checks the CRC of every batch.

It is the disk that is read, not the page cache: what is cached of a file is let go before and after. Damage is kept
with the log, shown by DescribeLogs and ListBatches and counted in the answers of the append stream, so that the broker
has the range copied anew from the leader (RULES 7.6).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.scrubbing.segment_examiner import Examiner
from highwater.log_storage.throttle import Throttle
from highwater.telemetry.log import get_logger
from highwater.telemetry.metrics import Metrics

FIRST_PASS_MS = 60_000  # after the start, where the interval is not shorter

_log = get_logger("log_storage.scrubber")


class Scrubber:
    """A pass reads every sealed segment of every log that is online; the next begins `interval_ms` after it ended."""

    def __init__(
        self, logs: LogRegistry, threads: Executor, metrics: Metrics, *, bytes_per_second: float, interval_ms: int
    ) -> None:
        self._logs = logs
        self._examiner = Examiner(threads, self._has_read)
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
        for hosted in list(self._logs):
            try:
                await self.scrub(hosted)
            except Exception:  # one log's, that was deleted meanwhile say: the others are not to go without
                _log.exception("cannot scrub %s", hosted.directory)
            await asyncio.sleep(0)  # a log without a sealed segment has nothing to wait for, and there may be thousands
        self._passes.inc()

    async def scrub(self, hosted: HostedLog) -> None:
        """One log."""
        if hosted.log is None or hosted.offline_reason:
            return
        log = hosted.log
        known = hosted.known_damage
        for segment in log.segments[:-1]:
            if hosted.log is not log or hosted.offline_reason:
                return
            if segment not in log.segments[:-1]:
                continue  # cut, or replaced, meanwhile
            try:
                await self._examiner.examine(hosted, log, segment)
            except OSError as error:
                log.disk.note(error)
                _log.warning("%s is not scrubbed now: %s", hosted.directory, error)
                return
        hosted.scrubbed_ms = time.time_ns() // 1_000_000
        if hosted.known_damage != known or hosted.offline_reason:
            self._logs.count_offline()

    async def _has_read(self, size_bytes: int) -> None:
        self._bytes.inc(size_bytes)
        await asyncio.sleep(self._throttle.delay_s(size_bytes, time.monotonic()))
