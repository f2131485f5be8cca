"""Bringing a log to disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from highwater.log_storage.errors import LogError
from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.log.leader_epoch_file import LeaderEpochFile
from highwater.log_storage.log.log_context import LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.segment.segment import Segment


class RepeatableError(OSError):
    """No fdatasync of batches has failed: another flush may write them, or what can be made again from them (indexes,
    epochs)."""

    @classmethod
    def of(cls, error: OSError) -> RepeatableError:
        # A write that is cut short has no number: the disk had room for a part of it only.
        return cls(error.errno or errno.ENOSPC, error.strerror or str(error), error.filename)


@dataclass(frozen=True, slots=True)
class Sync:
    """The files that `begin_sync` found to be written. `Flusher.write_out` may run in a thread; then `finish_sync`."""

    segments: Sequence[Segment]
    directory: Path | None  # whose entries have changed since they were last on disk
    log_end_offset: int

    def run(self) -> None:
        """The batches to disk, and the names of the files that hold them. Raises `RepeatableError`, or another
        `OSError`: what is on disk is not known then."""
        try:
            directory = None if self.directory is None else Descriptor(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RepeatableError.of(error) from error
        for segment in self.segments:
            if _opened(segment):
                segment.sync_batches()
                if segment is not self.segments[-1]:
                    segment.mark_sealed()  # nothing more is added to it: its file may be closed
        if directory is not None:
            os.fsync(directory.number)


def _opened(segment: Segment) -> bool:
    """Tells whether it is there: a raised log start may let go of segments while they are flushed. Raises
    `RepeatableError`."""
    try:
        segment.open()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and segment.released:
            return False
        raise RepeatableError.of(error) from error
    return True


@dataclass(frozen=True, slots=True)
class Flush:
    """The files that `begin_flush` found to be written. `Flusher.write_out` may run in a thread; then
    `finish_flush`."""

    sync: Sync
    write_epochs: Callable[[], None]

    def run(self) -> None:
        """Raises `RepeatableError`, or another `OSError`: what is on disk is not known then."""
        self.sync.run()
        try:
            for segment in self.sync.segments:
                if not segment.released:
                    segment.write_indexes()
            self.write_epochs()
            for segment in self.sync.segments[:-1]:
                segment.release_indexes()  # nothing more is added to a sealed one
        except OSError as error:
            raise RepeatableError.of(error) from error


class Flusher:
    """Moves the synced offset and the recovery point up. A sync brings batches to disk, a flush their indexes and the
    leader epochs, too."""

    def __init__(
        self, context: LogContext, segments: SegmentList, epochs: LeaderEpochFile, offsets: LogOffsets
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._offsets = offsets

    @property
    def rolled(self) -> bool:
        """Tells whether a sealed segment is not flushed yet."""
        return self._segments.present[-1].base_offset > self._offsets.recovery_point

    def begin_flush(self, most: int | None = None) -> Flush:
        """`most`: sealed segments; those behind them are left to the next flush."""
        return Flush(self._begin_sync(self._offsets.recovery_point, most), self._epochs.write)

    def finish_flush(self, flush: Flush) -> None:
        """After it was written out; the log must not have been truncated in between."""
        sync, last = flush.sync, flush.sync.segments[-1]
        flushed = sync.log_end_offset
        if last is not self._segments.present[-1]:
            # It was rolled meanwhile, perhaps at the very end of what was flushed, and is not marked as sealed: the
            # next flush has to begin with it.
            flushed = min(flushed, last.base_offset)
        self._offsets.recovery_point = max(self._offsets.recovery_point, flushed)
        self.finish_sync(sync)

    def flush(self) -> None:
        """Raises `LogError`: LOG_STORAGE_ERROR, the log is offline then; STORAGE_FULL, to be tried again."""
        self._context.check_online()
        flush = self.begin_flush()
        self.write_out(flush)
        self.finish_flush(flush)

    def sync(self) -> None:
        """The batches alone. Raises `LogError` as `flush`."""
        sync = self.begin_sync()
        self.write_out(sync)
        self.finish_sync(sync)

    def write_out(self, due: Sync | Flush) -> None:
        """Runs it; may be called in a thread. A failure counts there and then, whether anybody still waits for it or
        not: the kernel tells of it once, and the next fdatasync would succeed. Raises `LogError` as `flush`."""
        try:
            due.run()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> LogError:
        """No space for an index, or no descriptor, is no reason to go offline: the recovery point stays, and the next
        flush writes it."""
        self._segments.names_are_not_synced()
        if isinstance(error, RepeatableError):
            return self._context.fail_unless_passing(error)
        # An fdatasync of batches that failed, for whatever reason: the kernel has dropped what it could not write, so
        # a start finds less than was appended, or what no disk has (RULES 7.2).
        self._context.disk.doubt_written(str(error))
        return self._context.fail(error)

    @property
    def must_sync(self) -> bool:
        """Tells whether an append has to wait for the disk (`flush.messages`)."""
        return self._offsets.log_end_offset - self._offsets.synced_offset >= self._context.config.flush_messages

    def begin_sync(self) -> Sync:
        """Of the batches that are not on disk yet."""
        return self._begin_sync(self._offsets.synced_offset)

    def _begin_sync(self, offset: int, most: int | None = None) -> Sync:
        directory = self._segments.take_unsynced_directory()
        segments, end_offset = self._segments.starting_with(offset), self._offsets.log_end_offset
        if most is not None and len(segments) > most + 1:
            segments = segments[: most + 1]
            end_offset = segments[-1].base_offset  # of that one nothing is promised
        return Sync(segments, directory, end_offset)

    def finish_sync(self, sync: Sync) -> None:
        """After it was written out."""
        self._offsets.synced_offset = max(self._offsets.synced_offset, sync.log_end_offset)
