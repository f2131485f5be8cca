"""Bringing a log to disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highwater.log_storage import checkpoints, producer_snapshots
from highwater.log_storage.durable import fsync_directory
from highwater.log_storage.epochs import NO_EPOCH, EpochEntry
from highwater.log_storage.errors import LogError
from highwater.log_storage.log_core import LogCore
from highwater.log_storage.segment import Segment
from highwater.records import CorruptBatchError


class RemakableError(OSError):
    """The batches are on disk; what can be made again from them (indexes, epochs) is not."""


@dataclass(frozen=True, slots=True)
class Flush:
    """What `begin_flush` found to be written. `run` may be called in a thread; then `finish_flush`."""

    directory: Path
    segments: Sequence[Segment]
    epochs: Sequence[EpochEntry]
    log_end_offset: int

    def run(self) -> None:
        """Raises `RemakableError`, or another `OSError`: what is on disk is not known then."""
        for segment in self.segments:
            segment.sync_batches()
        try:
            for segment in self.segments:
                segment.offset_index.write_out(durable=True)
                segment.time_index.write_out(durable=True)
            checkpoints.write_epochs(self.directory / checkpoints.LEADER_EPOCHS, self.epochs)
            fsync_directory(self.directory)
            for segment in self.segments[:-1]:
                segment.release_indexes()  # nothing more is added to a sealed one
        except OSError as error:
            # A write that is cut short has no number: the disk had room for a part of it only.
            raise RemakableError(error.errno or errno.ENOSPC, error.strerror or str(error), error.filename) from error


class LogFlushing(LogCore):
    def begin_flush(self) -> Flush:
        return Flush(self.directory, self._segments_from(self.recovery_point), self.epochs.entries, self.log_end_offset)

    def finish_flush(self, flush: Flush) -> None:
        """After `flush.run`; the log must not have been truncated in between."""
        self.recovery_point = max(self.recovery_point, flush.log_end_offset)
        self.synced_offset = max(self.synced_offset, flush.log_end_offset)
        self._filed_epochs = {NO_EPOCH, *(entry.leader_epoch for entry in flush.epochs)}

    def flush(self) -> None:
        """Raises `LogError`: LOG_STORAGE_ERROR, the log is offline then; STORAGE_FULL, to be tried again."""
        self.check_online()
        flush = self.begin_flush()
        try:
            flush.run()
        except OSError as error:
            raise self.flush_failed(error) from error
        self.finish_flush(flush)

    def flush_failed(self, error: OSError) -> LogError:
        """What `Flush.run` ended with. No space for an index is no reason to go offline: the recovery point stays, and
        the next flush writes it."""
        return self._fail_unless_full(error) if isinstance(error, RemakableError) else self.sync_failed(error)

    def sync_failed(self, error: OSError) -> LogError:
        """An fdatasync of batches that failed, for whatever reason: the kernel has dropped what it could not write, so
        a start finds less than was appended, or what no disk has (RULES 7.2)."""
        self.disk.doubt_written(str(error))
        return self.fail(error)

    @property
    def must_sync(self) -> bool:
        """Whether an append has to wait for the disk (`flush.messages`)."""
        return self.log_end_offset - self.synced_offset >= self.config.flush_messages

    def begin_sync(self) -> tuple[Sequence[Segment], int]:
        """The segments to `sync_batches`, and the log end that `finish_sync` may then be told of."""
        return self._segments_from(self.synced_offset), self.log_end_offset

    def finish_sync(self, log_end_offset: int) -> None:
        self.synced_offset = max(self.synced_offset, log_end_offset)

    def close(self) -> None:
        """Ends the indexes and writes everything to disk. Raises `LogError` (LOG_STORAGE_ERROR)."""
        try:
            self.segments[-1].seal()
            producer_snapshots.write(
                self.directory, self.log_end_offset, self.producers, self._wall_offset_ms, durable=True
            )
        except (OSError, CorruptBatchError) as error:
            raise self.fail(error) from error
        self.flush()
