"""The leader epochs of one log, and the file that keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from highwater.log_storage.files import checkpoints
from highwater.log_storage.log.log_context import LogContext
from highwater.model.leader_epochs import NO_EPOCH, LeaderEpochCache
from highwater.records import BatchHeader


class LeaderEpochFile:
    """`cache` is what is in memory, `last_epoch` that of the log's last batch (`NO_EPOCH` where it has had none). The
    file is written when the log is flushed, and before the only batches that tell of an epoch go."""

    def __init__(self, context: LogContext, cache: LeaderEpochCache, log_end_offset: int) -> None:
        self._context = context
        self.cache = cache
        self.last_epoch = cache.last_epoch_below(log_end_offset)
        self._filed = frozenset({NO_EPOCH})  # those that are known to be in the file
        self._writing = threading.Lock()

    def note(self, leader_epoch: int, base_offset: int) -> None:
        """A batch of that epoch has been appended."""
        if leader_epoch != self.last_epoch:
            self.cache.assign(leader_epoch, base_offset)
            self.last_epoch = leader_epoch

    def replace(self, cache: LeaderEpochCache, last_epoch: int) -> None:
        """The log has other batches now."""
        self.cache = cache
        self.last_epoch = last_epoch

    def forget_filed(self) -> None:
        """Forgets what the file says: it does not say what it has to."""
        self._filed = frozenset({NO_EPOCH})

    def truncate_from_end(self, cut: int, headers: Iterator[BatchHeader]) -> None:
        """The log has been cut there, and has these batches left. Raises what `headers` raises."""
        self.cache.truncate_from_end(cut)
        self.forget_filed()
        if not self.cache.entries:
            # Where all batches are below what was the log start, their epochs had been let go.
            for header in headers:
                if header.partition_leader_epoch > self.cache.latest_epoch:
                    self.cache.assign(header.partition_leader_epoch, header.base_offset)
        self.last_epoch = self.cache.last_epoch_below(cut)

    def write(self) -> None:
        """Puts the leader epochs as they are now into their file, durably. May be called from several threads: the last
        to write has the newest. Raises `OSError`; the file is the one of before then."""
        with self._writing:
            entries = self.cache.entries
            checkpoints.write_epochs(self._context.directory / checkpoints.LEADER_EPOCHS, entries)
            self._filed = frozenset({NO_EPOCH, *(entry.leader_epoch for entry in entries)})

    def write_before_start(self, log_start_offset: int) -> None:
        """Before the log starts there: a crash may take all batches behind it that were not flushed, and then only the
        file knows of which epoch the last one was. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        if self.cache.last_epoch_below(log_start_offset) in self._filed:
            return
        try:
            self._context.disk.using_reserve(self.write)
        except OSError as error:
            raise self._context.fail_unless_passing(error) from error
