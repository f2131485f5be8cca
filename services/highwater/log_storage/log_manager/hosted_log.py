"""A log with its place, its name and what keeps the server's tasks from stepping on each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.log.log import Log
from highwater.log_storage.log_manager.cleaning_state import Cleaning, CleaningState
from highwater.log_storage.log_manager.log_dir import LogDir
from highwater.log_storage.segment.damage import DamagedRange
from highwater.model.partition import PartitionKey


@dataclass(slots=True, eq=False)
class FutureLog:
    """The copy in another directory that is to take a log's place."""

    log_dir: LogDir
    log: Log
    unflushed_bytes: int = 0  # that were copied since it was last flushed


class HostedLog:
    """`log` is None where it could not be opened; `failure` says why.

    Appends and reads run in the event loop and never interleave. What runs in a thread takes `maintenance` (one at a
    time: flush, truncation, deletion), and `alone` where appends and reads have to wait as well. Compaction reads files
    in a process of its own beside all that; it takes `maintenance` to put its segments into the log, and is stopped by
    who takes the log `alone`.
    """

    def __init__(self, key: PartitionKey, topic: str, log_dir: LogDir, directory: Path, log: Log | None) -> None:
        self.key = key
        self.topic = topic
        self.log_dir = log_dir
        self.directory = directory
        self.log = log
        self.failure = ""  # only where `log` is None
        self.future: FutureLog | None = None  # while it moves to another directory
        self.scrubbed_ms = -1  # ms since the epoch when a scrub of the whole log last ended; -1: not since the start
        self.busy = False
        self.high_watermark_written = -1  # in the checkpoint
        # Whether the topic's configuration has been given since the start. Before that nothing is deleted: what the
        # broker's defaults would let go of the topic may want to keep.
        self.configured = False
        self.topic_config: Mapping[str, str] = {}  # the topic's own keys, once it is configured
        self.flushed_ms = 0  # monotonic: when all that had been appended was last on disk
        self.touched = False  # `DueLogs` has yet to find out what is due of it
        self._idle = asyncio.Event()
        self._idle.set()
        self._fences_free = asyncio.Event()
        self._fences_free.set()
        self.maintenance = asyncio.Lock()
        self.cleaning = Cleaning()
        self.abort_cleaning: Callable[[], None] | None = None  # while the log is being cleaned
        self.uncleanable = ""  # why compaction leaves it alone, until it is cut or configured anew
        self._cleaning_stopped = asyncio.Event()

    @property
    def topic_partition(self) -> tuple[str, int]:
        return self.topic, self.key.partition

    @property
    def fence(self) -> Fence | None:
        return self.log_dir.fences.get(self.key)

    @property
    def misnamed(self) -> bool:
        """Tells whether its topic id cannot be the log's: nothing is appended without a fence (RULES 3.1), so one that
        has batches and none was found under an id that a damaged `partition.metadata` has made up."""
        return self.fence is None and (self.log is None or self.log.log_end_offset > 0)

    @property
    def offline_reason(self) -> str:
        """The reason why the log is offline; empty while it is not."""
        return self.log_dir.offline or (self.failure if self.log is None else self.log.failure or "")

    @property
    def known_damage(self) -> list[DamagedRange]:
        return [] if self.log is None else self.log.damage.of(self.log.segments)

    def online(self) -> Log:
        """Raises `LogError` (LOG_STORAGE_ERROR)."""
        if self.log is None:
            reason = self.log_dir.offline or self.failure
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {reason}")
        self.log.context.check_online()
        return self.log

    def configure(self, defaults: LogConfig, topic: Mapping[str, str]) -> None:
        """Takes the topic's own keys, over the broker's `defaults`. Raises `LogError` (INVALID_CONFIG,
        LOG_STORAGE_ERROR, STORAGE_FULL)."""
        config = defaults.with_topic(topic)
        log = self.online()
        self.allow_unflushed(config)
        if config != log.config:
            self.uncleanable = ""
        log.config = config
        self.topic_config = topic
        self.configured = True

    def allow_unflushed(self, config: LogConfig) -> None:
        """Writes to disk what `configure` has to write first (RULES 7.2). Raises `LogError` (LOG_STORAGE_ERROR,
        STORAGE_FULL)."""
        try:
            self.log_dir.may_hold_unflushed(config.flush_messages)
        except OSError as error:
            raise self.log_dir.disk.refusal(error, f"cannot write the boot record in {self.log_dir.path}") from error

    async def idle(self) -> None:
        """Waits until nobody has the log alone."""
        while self.busy:
            await self._idle.wait()

    @property
    def fences_held(self) -> bool:
        """Tells whether no fence of the log may be set now: it is about to go, or to another directory with its
        fence."""
        return not self._fences_free.is_set()

    def hold_fences(self) -> None:
        self._fences_free.clear()

    def free_fences(self) -> None:
        self._fences_free.set()

    async def fences_free(self) -> None:
        """Waits until its fence may be set."""
        await self._fences_free.wait()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nothing else happens to the log meanwhile."""
        async with self._uncleaned(), self.maintenance:
            self.busy = True
            self._idle.clear()
            try:
                yield
            finally:
                self.busy = False
                self._idle.set()

    @asynccontextmanager
    async def _uncleaned(self) -> AsyncIterator[None]:
        """Stops compaction, and keeps it from beginning."""
        self.cleaning.pause()
        try:
            while self.cleaning.state is CleaningState.ABORTED:
                if self.abort_cleaning is not None:
                    self.abort_cleaning()
                self._cleaning_stopped.clear()
                await self._cleaning_stopped.wait()
            yield
        finally:
            self.cleaning.resume()

    def end_cleaning(self) -> None:
        """Compaction writes nothing any more in the log's directory."""
        self.cleaning.end()
        self.abort_cleaning = None
        self._cleaning_stopped.set()
