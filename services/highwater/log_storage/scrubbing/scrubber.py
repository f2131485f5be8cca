"""Re-reads sealed segments in the background, slowly, and checks the CRC of every batch.

It is the disk that is read, not the page cache: what is cached of a file is let go before and after. Damage is kept
with the log, shown by DescribeLogs and ListBatches and counted in the answers of the append stream, so that the broker
has the range copied anew from the leader (RULES 7.6).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import Executor

from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.scrubbing.segment_examiner import Examiner
from highwater.log_storage.throttle import Throttle
from highwater.telemetry.log import get_logger
from highwater.telemetry.metrics import Metrics

FIRST_PASS_MS = 60_000  # after the start, where the interval is not shorter
LONG_MAX = 2**63 - 1

_log = get_logger("log_storage.scrubber")


class Scrubber:
    """A pass reads every sealed segment of every log that is online; the next begins `interval_ms` after it ended.
    `bytes_per_second` 0: none begins, and one that is under way ends early."""

    def __init__(
        self, logs: LogRegistry, threads: Executor, metrics: Metrics, *, bytes_per_second: float, interval_ms: int
    ) -> None:
        self._logs = logs
        self._examiner = Examiner(threads, self._has_read)
        self._changed = asyncio.Event()
        self._throttle: Throttle | None = None  # while there is none nothing is read
        self._interval_ms = interval_ms
        self.configure(bytes_per_second, interval_ms)
        self._bytes = metrics.counter("scrubbed_bytes", "Bytes of sealed segments read and checked in the background")
        self._passes = metrics.counter("scrub_passes", "Times that all logs were scrubbed")

    def configure(self, bytes_per_second: float, interval_ms: int) -> None:
        """Takes another rate and interval, for what is under way too."""
        self._throttle = Throttle(bytes_per_second) if bytes_per_second else None
        self._interval_ms = interval_ms
        self._changed.set()

    async def run(self) -> None:
        ended_s, longest_ms = time.monotonic(), FIRST_PASS_MS
        while True:
            await self._due(ended_s, longest_ms)
            await self.scrub_all()
            ended_s, longest_ms = time.monotonic(), LONG_MAX

    async def _due(self, since_s: float, longest_ms: int) -> None:
        """Returns when the next pass is to begin, after the interval that counts by then, `longest_ms` at most."""
        while True:
            self._changed.clear()
            due_s = since_s + min(longest_ms, self._interval_ms) / 1000
            if self._throttle is not None and due_s <= time.monotonic():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self._throttle is None else due_s - time.monotonic()):
                    await self._changed.wait()

    async def scrub_all(self) -> None:
        """One pass."""
        for hosted in list(self._logs):
            if self._throttle is None:
                return
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
        if self._throttle is not None:
            await asyncio.sleep(self._throttle.delay_s(size_bytes, time.monotonic()))
