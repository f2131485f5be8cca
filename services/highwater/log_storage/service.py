"""The log-storage process: opens the logs, serves them, and does what is due from time to time."""

from __future__ import annotations

import asyncio
import resource
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from highwater.log_storage.clock import monotonic_ms
from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_scheduler import CleanerSettings, LogCleaner
from highwater.log_storage.config import LogConfig, cleanup_policies
from highwater.log_storage.errors import LogError
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_creation import most_logs
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.log_sizes import LogSizes
from highwater.log_storage.producers.producer_states import ProducerLimits
from highwater.log_storage.scrubbing.scrubber import Scrubber
from highwater.log_storage.server.append_socket import AppendSocket
from highwater.log_storage.server.gate import REFUSAL, SERVICE_NAME, Gate
from highwater.log_storage.server.log_access import for_each_log
from highwater.log_storage.server.servicer import LogStorageServicer
from highwater.log_storage.settings import LogStorageSettings
from highwater.rpc.connections.tls import server_credentials
from highwater.rpc.dynamic_settings import static_settings, take_log_level, with_dynamic
from highwater.rpc.measured_calls import MeasuredCalls
from highwater.rpc.process.loop_turn import LoopTurn
from highwater.rpc.server import PEERS, RpcServer
from highwater.security.call_shares import peers_shares
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.loop_delay import LoopDelay
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.otlp.start import service_tracer
from highwater.telemetry.politely import politely
from highwater.telemetry.request_times import RequestMetrics
from highwater.v1 import log_storage_pb2_grpc

THREADS = 8  # for fsync, recovery and large reads
HOUSEKEEPING_MS = 1_000
LEAST_PATIENCE_S = 1.0  # at a stop, for what is under way, and then for the logs

_log = get_logger("log_storage")


class LogStorageService:
    """`start`, then `addresses`; `stop` is a clean stop. `incarnation` is new with every object (RULES 3.1).

    `interrupt` ends a start that is under way, be it a recovery of hours."""

    def __init__(self, settings: LogStorageSettings) -> None:
        self.incarnation = secrets.token_hex(8)
        self.metrics = Metrics("log-storage")
        self._settings = settings
        self._manager = LogManager(
            settings.log_dirs,
            _log_config(settings),
            broker_id=settings.broker_id,
            recovery_threads=settings.num_recovery_threads_per_data_dir,
            most_logs=most_logs(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        )
        self._threads = ThreadPoolExecutor(THREADS, "log-storage")
        self._tracer = service_tracer(
            settings.tracing,
            "log-storage",
            settings.broker_id,
            self.metrics.counter("spans", "Spans of traces, by what became of them", ("outcome",)),
        )
        self._servicer = LogStorageServicer(
            self._manager,
            self.incarnation,
            self._threads,
            self.metrics,
            self._take_config,
            static_settings(settings, "log-storage"),
            self._tracer,
        )
        self._servicer.moves.limit_rate(settings.replica_alter_log_dirs_io_max_bytes_per_second)
        self._scrubber = Scrubber(
            self._manager.logs,
            self._threads,
            self.metrics,
            bytes_per_second=settings.log_scrub_bytes_per_second,
            interval_ms=settings.log_scrub_interval_ms,
        )
        self._cleaner = LogCleaner(
            self._manager.logs,
            self._threads,
            self.metrics,
            _cleaner_settings(settings),
            cleaned=self._servicer.flushes.retain_log,
        )
        self._cleaners = 0  # tasks
        self._server = RpcServer(
            settings.listen,
            health_listen=settings.health_listen,
            interceptors=[
                peers_shares(),
                *settings.guard(settings.broker_id),
                Gate(self._manager),
                MeasuredCalls(RequestMetrics(self.metrics)),
            ],
            limits=PEERS,
            credentials=server_credentials(settings.certificates(), require=settings.requires_certificates),
        )
        self._tasks = TaskSupervisor(
            self.metrics.counter("task_failures", "Times that a long-lived task failed and was begun anew", ("task",))
        )
        self._append_socket = AppendSocket(
            partial(self._servicer.append_and_read.Append, None),
            self.incarnation,
            lambda: "" if self._manager.loaded else REFUSAL,
            self._tasks,
            self.metrics,
        )
        self._count_opening()
        self._to_remove: list[tuple[int, list[Path]]] = []  # (when, in monotonic ms; what)
        self._opened = False  # else the directories may be another's: a start that fails lets go of them

    @property
    def addresses(self) -> list[str]:
        return self._server.addresses

    async def start(self) -> None:
        """Listens, locks the log directories, opens the logs, then serves. Until then only DescribeLogs is answered,
        with how far that is. Raises `UserError`, `AddressInUseError`, and `OpeningStopped` after `interrupt`."""
        settings, manager, servicer = self._settings, self._manager, self._servicer
        log_storage_pb2_grpc.add_LogStorageServicer_to_server(servicer, self._server.grpc)
        self._server.bind([SERVICE_NAME])
        try:
            # Before gRPC answers: a client that finds none then takes it that there is none.
            await self._append_socket.start(self.addresses)
            await self._server.serve()
            await self._open_logs()
        except BaseException:
            await self._stop_serving()
            raise
        self._opened = True
        LogSizes(manager.logs, max_topics=settings.metrics_topics, max_partitions=settings.metrics_partitions).export(
            self.metrics
        )
        self.metrics.gauge("logs", "Logs hosted").set_function(lambda: len(manager.logs))
        self.metrics.gauge("producer_ids", "Idempotent producers that logs know of").set_function(
            lambda: sum(len(hosted.log.producers) for hosted in politely(list(manager.logs)) if hosted.log is not None)
        )
        self.metrics.gauge("offline_logs", "Logs that take no requests").set_function(
            lambda: sum(1 for hosted in politely(list(manager.logs)) if hosted.offline_reason)
        )
        self.metrics.gauge("unidentified_logs", "Logs whose partition.metadata is damaged or missing").set_function(
            lambda: manager.logs.unidentified_logs
        )
        self.metrics.gauge("offline_log_dirs", "Log directories that have failed").set_function(
            lambda: sum(1 for log_dir in manager.logs.log_dirs if log_dir.offline)
        )
        self.metrics.gauge("full_log_dirs", "Log directories whose logs take no appends").set_function(
            lambda: sum(1 for log_dir in manager.logs.online_dirs if log_dir.disk.full)
        )
        for name, interval_ms, work in (
            (
                "high-watermarks",
                settings.replica_high_watermark_checkpoint_interval_ms,
                servicer.flushes.checkpoint_high_watermarks,
            ),
            ("recovery-points", settings.log_flush_offset_checkpoint_interval_ms, self._checkpoint),
            ("flushes", settings.log_flush_scheduler_interval_ms, servicer.flushes.flush_due),
            ("retention", settings.log_retention_check_interval_ms, servicer.flushes.retain),
            ("housekeeping", HOUSEKEEPING_MS, self._housekeep),
            ("directories", HOUSEKEEPING_MS, self._look_after_dirs),
        ):
            self._tasks.run_every(name, interval_ms / 1000, work, expected=(LogError, OSError))
        self._tasks.run_forever("loop-delay", LoopDelay(self.metrics).watch)
        self._tasks.run_forever("moves", servicer.moves.move_logs)
        self.metrics.gauge("damaged_logs", "Logs in which scrubbing or compaction has found damage").set_function(
            lambda: manager.logs.damaged_logs
        )
        self._tasks.run_forever("scrubber", self._scrubber.run)
        self._run_cleaners(settings.log_cleaner_threads)
        await self._server.set_serving(True)
        _log.info("serving %s", pairs(addresses=",".join(self.addresses), incarnation=self.incarnation))

    def _count_opening(self) -> None:
        """Tells how far the opening of the logs is."""
        manager = self._manager

        def left(what: str) -> Callable[[], float]:
            def read() -> float:
                known = [log_dir.recovery for log_dir in manager.logs.log_dirs if log_dir.recovery is not None]
                if what == "logs":
                    return float(sum(each.total_logs - each.opened_logs for each in known))
                return float(sum(each.total_bytes - each.scanned_bytes for each in known))

            return read

        gauge = self.metrics.gauge
        gauge("opening", "1 while the logs are being opened").set_function(lambda: not manager.loaded)
        gauge("remaining_logs_to_open", "Logs that are to be opened yet").set_function(left("logs"))
        gauge("remaining_bytes_to_recover", "Bytes that recovery has to read yet").set_function(left("bytes"))

    def _run_cleaners(self, count: int) -> None:
        """Has so many tasks at least; the cleaner knows how many of them are to do something."""
        while self._settings.log_cleaner_enable and self._cleaners < count:
            self._tasks.run_forever("cleaner", partial(self._cleaner.run, self._cleaners))
            self._cleaners += 1

    async def _take_config(self, values: Mapping[str, str]) -> None:
        """Takes what is set while the broker runs in place of the settings of the start. Logs have the new defaults
        where their topics set nothing themselves."""
        settings = with_dynamic(self._settings, values)
        take_log_level(settings)
        _log.info("set while running %s", pairs(**values))
        self._scrubber.configure(settings.log_scrub_bytes_per_second, settings.log_scrub_interval_ms)
        self._servicer.moves.limit_rate(settings.replica_alter_log_dirs_io_max_bytes_per_second)
        self._cleaner.configure(_cleaner_settings(settings))
        self._run_cleaners(settings.log_cleaner_threads)
        defaults = _log_config(settings)
        async with self._servicer.access.lifecycle_lock:  # what is being made is there after it, with those of before
            self._manager.logs.config = defaults
        await for_each_log(self._manager.logs, partial(self._take_defaults, defaults))

    async def _take_defaults(self, defaults: LogConfig, hosted: HostedLog) -> None:
        await asyncio.sleep(0)  # there may be thousands
        await hosted.idle()
        if not _takes_defaults(hosted):
            return
        config = defaults.with_topic(hosted.topic_config)
        if hosted.log is not None and config != hosted.log.config:
            run = asyncio.get_running_loop().run_in_executor
            await run(self._threads, hosted.allow_unflushed, config)  # it may write to disk
            if _takes_defaults(hosted):  # it may have been deleted meanwhile
                hosted.configure(defaults, hosted.topic_config)
                self._manager.logs.due.touch(hosted)

    async def _stop_serving(self) -> None:
        await asyncio.gather(self._server.stop(), self._append_socket.stop())

    async def _open_logs(self) -> None:
        """In threads: a disk may take its time, and signals and health are to be heard meanwhile."""
        run = asyncio.get_running_loop().run_in_executor
        await run(self._threads, self._manager.lock)
        try:
            await run(self._threads, self._manager.load)
        except BaseException:
            self._manager.unlock()
            raise

    def interrupt(self) -> None:
        """The process is to end: a start that is under way raises `OpeningStopped`, soon, and leaves everything as a
        kill would."""
        self._manager.stop_loading()

    async def stop(self) -> bool:
        """Stops serving, writes everything to disk and marks the directories as cleanly stopped; within
        `log.close.max.wait.ms` and some seconds, whatever was reached by then.

        False: a disk has not answered what had been begun before. It is left as a kill leaves it, and stays locked.
        The threads that wait for it would keep the process from its end: the caller has to end it."""
        run, within_s = asyncio.get_running_loop().run_in_executor, self._settings.log_close_max_wait_ms / 1000
        await self._stop_serving()
        until_s = time.monotonic() + within_s
        ending = asyncio.create_task(self._end_work())
        await asyncio.wait((ending,), timeout=max(within_s / 2, LEAST_PATIENCE_S))
        ended = ending.done()
        if ended:
            await ending
        if self._opened:
            unanswered = frozenset() if ended else self._at_work()
            closer = ThreadPoolExecutor(1, "closing")  # those of `_threads` may all be waiting for the disk
            left_s = max(until_s - time.monotonic(), LEAST_PATIENCE_S)
            await run(closer, partial(self._manager.close, left_s, unanswered))
            closer.shutdown()
        self._threads.shutdown(wait=ended, cancel_futures=not ended)
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        return ended

    async def _end_work(self) -> None:
        await self._tasks.stop()
        await self._servicer.access.stop()
        if self._opened:
            run = asyncio.get_running_loop().run_in_executor
            try:
                await run(self._threads, _remove, self._take_due(everything=True))
            except OSError as error:  # the next start removes them; the logs are to be closed all the same
                _log.warning("segments that were let go are not removed: %s", error)

    def _at_work(self) -> frozenset[LogDir]:
        """Directories in which something may still be written by what has been begun."""
        if self._servicer.access.writes_fences:
            return frozenset(self._manager.logs.log_dirs)
        found = set[LogDir]()
        for hosted in self._manager.logs:
            if hosted.maintenance.locked():  # by what runs in a thread
                found.add(hosted.log_dir)
                if hosted.future is not None:
                    found.add(hosted.future.log_dir)
        return frozenset(found)

    async def _checkpoint(self) -> None:
        before_ms = monotonic_ms() - self._settings.producer_id_expiration_ms
        turn = LoopTurn()
        for hosted in self._manager.logs:
            if turn.over():
                await turn.give_way()
            if hosted.log is not None and not hosted.busy:
                hosted.log.producers.expire(before_ms)
                self._manager.logs.due.look_at(hosted)  # should anybody have changed it without a word
        await self._servicer.flushes.checkpoint_recovery_points()

    async def _look_after_dirs(self) -> None:
        """Notices a directory that is gone, and one that was full and has space again."""
        for log_dir in self._manager.logs.online_dirs:
            run = asyncio.get_running_loop().run_in_executor
            if await run(self._threads, log_dir.disk.present) and log_dir.disk.full:
                await run(self._threads, log_dir.disk.keep_reserve)
        self._manager.logs.recount()

    async def _housekeep(self) -> None:
        """Flushes logs that have rolled, and removes segments some time after they were let go."""
        try:
            await for_each_log(self._manager.logs.due.with_chores(), self._look_after)
        finally:
            if due := self._take_due():
                # A large file is not gone in a moment.
                await asyncio.get_running_loop().run_in_executor(self._threads, _remove, due)

    async def _look_after(self, hosted: HostedLog) -> None:
        log = hosted.log
        if log is None or hosted.offline_reason or hosted.busy:
            return
        if log.segment_list.removable:
            due_ms = monotonic_ms() + log.config.file_delete_delay_ms
            self._to_remove.append((due_ms, log.segment_list.take_removable()))
        if log.flusher.rolled and not hosted.log_dir.disk.full:
            try:
                await self._servicer.flushes.flush(hosted)
            except LogError as error:
                _log.error("%s", error)

    def _take_due(self, *, everything: bool = False) -> list[Path]:
        now_ms = monotonic_ms()
        due = [path for when_ms, paths in self._to_remove if everything or when_ms <= now_ms for path in paths]
        self._to_remove = [] if everything else [item for item in self._to_remove if item[0] > now_ms]
        return due


def _takes_defaults(hosted: HostedLog) -> bool:
    """False: it takes them when it is configured."""
    return hosted.log is not None and not hosted.offline_reason and hosted.configured


def _remove(paths: Sequence[Path]) -> None:
    """All that can be removed. Raises `OSError` where one cannot."""
    failed: OSError | None = None
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _log_config(settings: LogStorageSettings) -> LogConfig:
    """The configuration of logs whose topics set nothing else."""
    deletes, compacts = cleanup_policies(settings.log_cleanup_policy)
    return LogConfig(
        segment_bytes=settings.log_segment_bytes,
        index_interval_bytes=settings.log_index_interval_bytes,
        index_max_bytes=settings.log_index_size_max_bytes,
        roll_ms=settings.log_roll_ms,
        roll_jitter_ms=settings.log_roll_jitter_ms,
        message_max_bytes=settings.message_max_bytes,
        flush_messages=settings.flush_after_messages,
        flush_ms=settings.log_flush_interval_ms,
        producer_limits=ProducerLimits(settings.max_producer_ids_per_log, settings.min_producer_id_eviction_ms),
        retention_ms=settings.retention_ms,
        retention_bytes=settings.log_retention_bytes,
        file_delete_delay_ms=settings.file_delete_delay_ms,
        deletes=deletes,
        compacts=compacts,
        min_cleanable_ratio=settings.log_cleaner_min_cleanable_ratio,
        min_compaction_lag_ms=settings.log_cleaner_min_compaction_lag_ms,
        max_compaction_lag_ms=settings.log_cleaner_max_compaction_lag_ms,
        delete_retention_ms=settings.log_cleaner_delete_retention_ms,
    )


def _cleaner_settings(settings: LogStorageSettings) -> CleanerSettings:
    """Makes the settings of one process. What is for all processes together is shared out equally."""
    processes = settings.log_cleaner_threads
    limits = PassLimits(
        map_bytes=settings.log_cleaner_dedupe_buffer_size // processes,
        load_factor=settings.log_cleaner_io_buffer_load_factor,
        io_bytes=settings.log_cleaner_io_buffer_size // processes,
        bytes_per_second=settings.log_cleaner_io_max_bytes_per_second / processes,
    )
    return CleanerSettings(processes, limits, settings.log_cleaner_backoff_ms)
