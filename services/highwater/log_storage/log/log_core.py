"""What one partition's log is made of: its segments, offsets, epochs and producers, and whether it is online.

Offsets: log start ≤ high watermark ≤ log end, and recovery point ≤ log end: batches below the recovery point have been
fsynced.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.epochs import NO_EPOCH, LeaderEpochCache
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.files.disk import Disk, Trouble
from highwater.log_storage.log_state import LogState
from highwater.log_storage.producers.pending_snapshots import PendingSnapshots
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.segment.damage import KnownDamage
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import LOG_SUFFIX, OFFSET_GAPS, file_name
from highwater.records import BatchHeader, CorruptBatchError
from highwater.telemetry.log import get_logger

_log = get_logger("log_storage.log")

NO_OFFSET = -1
NO_TIME = -1


class LogCore:
    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        *,
        segments: list[Segment],
        epochs: LeaderEpochCache,
        producers: ProducerStates,
        log_start_offset: int,
        high_watermark: int,
        recovery_point: int,
        wall_offset_ms: int = 0,
        gaps: bool = False,
    ) -> None:
        """Takes over what `recovery.open_log` has found; `segments` has at least one. `wall_offset_ms`: from the time
        that is passed in as `now_ms` to ms since the epoch."""
        assert segments
        self.directory = directory
        self.config = config
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.log_end_offset = segments[-1].end_offset
        self.log_start_offset = log_start_offset
        # A follower's log start is to be here: on disk first, as the leader, once told of it, answers for it.
        self.log_start_due = log_start_offset
        self.log_start_filed = NO_OFFSET  # up to here the due one is known to be in the checkpoint
        self.high_watermark = max(log_start_offset, min(high_watermark, self.log_end_offset))  # RULES 4.6
        self._high_watermark_at_start = self.high_watermark
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.synced_offset = self.recovery_point  # batches below it are on disk, their indexes perhaps not
        self.cleaned_to: int | None = None  # compaction has made it clean up to here; None: it never was compacted
        self.failure: str | None = None  # why the log is offline
        self.damage = KnownDamage()  # as scrubbing, and reads that failed, have found it
        self.disk = Disk()  # of its log directory, once it is hosted in one
        self.structure = threading.Lock()  # held while a segment is taken into the log or out of it
        # While another thread renames the files of segments that have replaced others: those that the log lets go of,
        # which that thread then renames in their turn. None: at once.
        self.let_go_meanwhile: list[Segment] | None = None
        self.removable: list[Path] = []  # renamed to `.deleted`, to be removed
        self.pending_snapshots = PendingSnapshots()
        self._gaps = gaps
        self._last_epoch = epochs.last_epoch_below(self.log_end_offset)
        self._filed_epochs = frozenset({NO_EPOCH})  # those that are known to be in the file
        self._epochs_file = threading.Lock()  # held while it is written
        self._entries_synced = False  # the names of all segments' files, and of the mark of gaps, are on disk
        self._wall_offset_ms = wall_offset_ms

    @property
    def state(self) -> LogState:
        return LogState(self.log_end_offset, self._last_epoch, self.log_start_offset, self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def last_epoch(self) -> int:
        return self._last_epoch

    def check_online(self) -> None:
        failure = self.failure or self.disk.failure
        if failure:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {failure}")

    def fail(self, error: Exception | str) -> LogError:
        """Takes the log offline: what is on disk is not known to be what is in memory."""
        if isinstance(error, OSError):
            self.disk.note(error)
        self.failure = self.failure or str(error)
        return LogError(ErrorCode.LOG_STORAGE_ERROR, f"the log {self.directory} is offline: {self.failure}")

    def _refusal(self, error: OSError) -> LogError:
        """Where nothing has changed: the log stays online, unless the whole directory has failed."""
        return self.disk.refusal(error, str(self.directory))

    def _fail_unless_passing(self, error: OSError | CorruptBatchError) -> LogError:
        """Where a full disk, or a lack of descriptors, has left the log as it can go on from."""
        if isinstance(error, OSError) and self.disk.note(error) in (Trouble.FULL, Trouble.LACKING):
            return self._refusal(error)
        return self.fail(error)

    @property
    def contiguous(self) -> bool:
        """Whether every offset from its first batch to its end has been written here: compaction has left no gaps. What
        is missing then has been lost."""
        return not self._gaps

    def note_gaps(self) -> None:
        """Before offsets are missing between two batches for the first time: recovery would take that for damage. On
        disk with the next sync. Raises `OSError`."""
        if not self._gaps:
            (self.directory / OFFSET_GAPS).touch()
            self._gaps = True
            self._entries_synced = False

    def raise_high_watermark(self, offset: int) -> None:
        """To `min(offset, log end)` at most, never down (RULES 4.6)."""
        self.high_watermark = max(self.high_watermark, min(offset, self.log_end_offset))

    @property
    def high_watermark_to_checkpoint(self) -> int:
        """A log that ends below it after a start has lost something (RULES 7.2). So where appends wait for the disk,
        and the tail counts as whole after a power failure, it is not above what the disk has; a follower takes its
        leader's with a batch that still waits."""
        if self.config.flush_messages > 1:
            return self.high_watermark
        return min(self.high_watermark, max(self.synced_offset, self._high_watermark_at_start))

    def _new_segment(self, base_offset: int) -> Segment:
        self._entries_synced = False
        return new_segment(self.directory, base_offset, self.config)

    def _segments_from(self, offset: int) -> list[Segment]:
        """The one that holds the offset, and those behind it."""
        segments = self.segments  # a thread may put another list in its place (`log/replacing.py`)
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0) :]

    def _set_end(self, offset: int) -> None:
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.synced_offset = min(self.synced_offset, offset)

    def _note_epoch(self, leader_epoch: int, base_offset: int) -> None:
        if leader_epoch != self._last_epoch:
            self.epochs.assign(leader_epoch, base_offset)
            self._last_epoch = leader_epoch

    def write_epochs(self) -> None:
        """Puts the leader epochs as they are now into their file, durably. May be called from several threads: the last
        to write has the newest. Raises `OSError`; the file is the one of before then."""
        with self._epochs_file:
            entries = self.epochs.entries
            checkpoints.write_epochs(self.directory / checkpoints.LEADER_EPOCHS, entries)
            self._filed_epochs = frozenset({NO_EPOCH, *(entry.leader_epoch for entry in entries)})

    def headers(self) -> Iterator[BatchHeader]:
        """Every batch of the log, oldest first. Raises `CorruptBatchError`, `OSError`."""
        for segment in self.segments:
            for _, header in segment.headers(0):
                yield header

    def write_snapshots(self) -> None:
        """Brings the pending snapshots of producers to their files; in a thread, beside appends. One that cannot be
        written is tried again later: the log can do without, as long as no records go."""
        try:
            self.disk.using_reserve(lambda: self.pending_snapshots.write(self.directory, self._wall_offset_ms))
        except OSError as error:
            self.disk.note(error)
            _log.warning("%s: a snapshot of the producers is not written: %s", self.directory, error)

    def remove_deleted(self) -> None:
        """Removes the files that were renamed to `.deleted`."""
        paths, self.removable = self.removable, []
        for path in paths:
            path.unlink(missing_ok=True)


def new_segment(directory: Path, base_offset: int, config: LogConfig) -> Segment:
    """Makes an empty segment. Raises `OSError`; nothing is left of it then."""
    try:
        return Segment(
            directory,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            index_max_bytes=config.index_max_bytes,
            create=True,
        )
    except FileExistsError:
        raise
    except OSError:
        with suppress(OSError):
            (directory / file_name(base_offset, LOG_SUFFIX)).unlink(missing_ok=True)
        raise


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
