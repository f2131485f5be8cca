"""Compaction as the log-storage runs it, the LogCleaner of Kafka: which log is next, a process that does the pass, and
each group of cleaned segments into the log as soon as it is ready.

The event loop only chooses and waits. The pass over the data is in `cleaner_process.py`; renames and fsyncs are in
threads. Who must have a log alone stops its cleaning first (`HostedLog.alone`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from highwater.log_storage.clock import wall_clock_ms
from highwater.log_storage.compaction.cleaner_job import CleanedGroup, PassFailed, PassLimits, PassReport
from highwater.log_storage.compaction.cleaner_metrics import CleanerMetrics
from highwater.log_storage.compaction.cleaner_selection import filthiest
from highwater.log_storage.compaction.cleaner_worker import CleanerWorker, WorkerDiedError
from highwater.log_storage.compaction.segment_swap import as_seen, due_job, swap_in
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.cleaning_state import CleaningState
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.scrubbing.segment_examiner import Examiner
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX
from highwater.log_storage.thread_work import to_its_end
from highwater.records import CorruptBatchError
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.metrics import Metrics

# Logs looked at before the event loop gets a turn.
_LOOKED_AT = 16

_log = get_logger("log_storage.cleaner_scheduler")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    processes: int
    limits: PassLimits  # of each process
    backoff_ms: int  # between two looks when there was nothing to do


class _StoppedError(Exception):
    """The pass is given up, and the log is as it should be."""


class LogCleaner:
    """`run` as many times side by side as there are to be processes, each until it is cancelled; those beyond the
    number that counts now are idle."""

    def __init__(
        self,
        logs: LogRegistry,
        threads: Executor,
        metrics: Metrics,
        settings: CleanerSettings,
        *,
        cleaned: Callable[[HostedLog], Awaitable[None]],
    ) -> None:
        """`cleaned` is called after a log has been cleaned."""
        self._logs = logs
        self._threads = threads
        self._examiner = Examiner(threads, _without_pause)
        self._settings = settings
        self._changed = asyncio.Event()
        self._cleaned = cleaned
        self._metrics = CleanerMetrics(metrics)
        # Not to be tried again before the next pause, nor to be looked at.
        self._failed: set[HostedLog] = set()
        self._unseen: set[HostedLog] = set()

    def configure(self, settings: CleanerSettings) -> None:
        """Takes other settings, each process from its next pass on."""
        self._settings = settings
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self, number: int = 0) -> None:
        """Cleans what is due, with a process of its own, and looks again from time to time; `number` counts from 0.
        What it raises concerns one log, which waits until the next pause: begun anew, it goes on with the others."""
        settings = self._settings
        worker = CleanerWorker(settings.limits)
        try:
            while True:
                changed = self._changed
                if settings != self._settings:
                    await worker.close()
                    settings = self._settings
                    worker = CleanerWorker(settings.limits)
                if number >= settings.processes:
                    await changed.wait()
                elif not await self.clean_next(worker):
                    await worker.close()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(settings.backoff_ms / 1000):
                            await changed.wait()
                    self._failed.clear()
                    self._unseen.clear()
        finally:
            await worker.close()

    async def clean_next(self, worker: CleanerWorker) -> bool:
        """One pass over the filthiest log; False where none is due."""
        hosted = await self._choose()
        if hosted is None:
            return False
        if not _wanted(hosted) or not hosted.cleaning.begin():
            return True  # meanwhile
        assert hosted.log is not None
        hosted.abort_cleaning = worker.kill
        started_s = time.monotonic()
        try:
            report = await self._clean(worker, hosted, hosted.log)
            if report is None:
                return True
            self._done(hosted, report, time.monotonic() - started_s)
        except _StoppedError as error:
            await worker.close()
            self._metrics.passed("aborted")
            _log.info("the cleaning of %s was stopped: %s", hosted.directory.name, error)
        except UncleanableError as error:
            self._metrics.passed("failed")
            _leave_alone(hosted, error)
        except (WorkerDiedError, LogError, CorruptBatchError, OSError) as error:
            await worker.close()
            self._failed.add(hosted)
            self._metrics.passed("failed")
            _log.error("%s was not cleaned, it is tried again later: %s", hosted.directory, error)
        except BaseException as error:
            if isinstance(error, Exception):
                self._failed.add(hosted)
                self._metrics.passed("failed")
            await worker.close()
            raise
        finally:
            # Before anybody else has the log: what is left is this pass's.
            await self._in_thread(_remove_cleaned_files, hosted.directory)
            hosted.end_cleaning()
        await self._cleaned(hosted)
        return True

    def _done(self, hosted: HostedLog, report: PassReport, seconds: float) -> None:
        self._metrics.done(report, seconds)
        _log.info(
            "cleaned %s %s",
            hosted.directory.name,
            pairs(
                cleaned_to=report.cleaned_to,
                keys=report.keys,
                dropped=report.records_dropped,
                read=report.bytes_read,
                written=report.bytes_written,
                ms=round(seconds * 1000),
            ),
        )

    # -- choosing -----------------------------------------------------------------------------------------------------

    async def _choose(self) -> HostedLog | None:
        """The log that is next, as it was when it was looked at: the loop has had turns since."""
        logs = []
        uncleanable_bytes = 0
        for number, hosted in enumerate(self._logs):
            if number % _LOOKED_AT == 0:
                await asyncio.sleep(0)
            if not _wanted(hosted) or hosted in self._unseen:
                continue
            log = hosted.online()
            if hosted.uncleanable:
                uncleanable_bytes += log.size_bytes
            elif hosted.cleaning.state is CleaningState.NONE and hosted.future is None:
                try:
                    logs.append(as_seen(hosted, log, wall_clock_ms()))
                except CorruptBatchError as error:
                    _leave_alone(hosted, error)
                except OSError as error:
                    self._unseen.add(hosted)
                    _log.error("%s cannot be looked at, it is tried again later: %s", hosted.directory, error)
                except Exception:
                    self._unseen.add(hosted)
                    raise
        self._metrics.seen(logs, sum(1 for hosted in self._logs if hosted.uncleanable), uncleanable_bytes)
        chosen = filthiest(log for log in logs if log.key not in self._failed)
        return None if chosen is None else chosen.key

    # -- a pass -------------------------------------------------------------------------------------------------------

    async def _clean(self, worker: CleanerWorker, hosted: HostedLog, log: Log) -> PassReport | None:
        """None where nothing is due any more. `hosted.cleaning` has begun: from here on nothing but a raised log start
        changes the log below its last segment."""
        due = due_job(log, wall_clock_ms())
        if due is None:
            return None
        job, present = await self._in_thread(due.complete), due.present
        await worker.start()
        _check_wanted(hosted)  # who needed the log before there was a process had none to kill
        try:
            async for answer in worker.run(job):
                match answer:
                    case CleanedGroup():
                        async with hosted.maintenance:
                            _check_wanted(hosted)
                            try:
                                swapped = await self._in_thread(swap_in, log, answer, present)
                            finally:
                                self._logs.due.touch(hosted)
                            if not swapped:
                                raise _StoppedError("the log starts behind a segment that was being cleaned")
                    case PassFailed(message, True, damaged):
                        if damaged is not None:
                            await self._report_damage(hosted, log, present[damaged], message)
                        raise UncleanableError(message)
                    case PassFailed(message):
                        raise OSError(message)
                    case PassReport():
                        _check_wanted(hosted)
                        log.offsets.cleaned_to = answer.cleaned_to
                        await self._in_thread(self._logs.write_checkpoint, hosted.log_dir, checkpoints.CLEANER_OFFSETS)
                        return answer
        except WorkerDiedError:
            _check_wanted(hosted)
            raise
        raise AssertionError("a pass ends with a report")

    async def _report_damage(self, hosted: HostedLog, log: Log, segment: Segment, problem: str) -> None:
        """Keeps what is damaged in the segment with the log, as scrubbing does, so that it is copied anew from the
        leader (RULES 7.6). It is read once more before: it may have been the way from the disk. Raises `OSError` where
        nothing is found: then the pass is tried again later."""
        await self._examiner.examine(hosted, log, segment)
        _check_wanted(hosted)
        if segment not in log.damage:
            raise OSError(f"a pass met damage that is not found again: {problem}")
        self._logs.count_offline()

    async def _in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await to_its_end(asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments))


class UncleanableError(Exception):
    """Raised where a log cannot be cleaned, with the reason."""


def _leave_alone(hosted: HostedLog, error: Exception) -> None:
    hosted.uncleanable = str(error)
    _log.error("%s is not cleaned until it is cut, configured anew or opened again: %s", hosted.directory, error)


def _wanted(hosted: HostedLog) -> bool:
    """Tells whether it is a log that is compacted, and can be used."""
    log = hosted.log
    return log is not None and not hosted.offline_reason and hosted.configured and log.config.compacts


async def _without_pause(_: int) -> None:
    """Does not pause: what is read again of one segment is not slowed down."""


def _check_wanted(hosted: HostedLog) -> None:
    """Raises `_StoppedError` where the log is wanted by somebody else, who has the process killed as well."""
    if hosted.cleaning.state is not CleaningState.IN_PROGRESS:
        raise _StoppedError("somebody else needs the log")


def _remove_cleaned_files(directory: Path) -> None:
    # Where that fails the next pass does it, or the next start.
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{CLEANED_SUFFIX}"):
            path.unlink(missing_ok=True)
