"""Opening a log's directory. After a clean stop what the files say is believed, and looked into when it is used; after
any other everything above the recovery point is checked, and cut where it is damaged (invariant 7)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.files import checkpoints
from highwater.log_storage.files.boot_record import Cut, recovery_shows_loss
from highwater.log_storage.files.checkpoints import CheckpointError
from highwater.log_storage.files.disk import Disk
from highwater.log_storage.log.log import Log
from highwater.log_storage.log.segment_list import new_segment
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerLimits
from highwater.log_storage.recovery.found_segments import NO_BOUND, lost, open_segments, segment_sizes
from highwater.log_storage.recovery.interrupted_swaps import finish_interrupted
from highwater.log_storage.segment.offset_index import MAX_RELATIVE_OFFSET
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import (
    OFFSET_GAPS,
)
from highwater.log_storage.segment.unsynced_segments import unsynced_segments
from highwater.model.leader_epochs import EpochEntry, LeaderEpochCache
from highwater.records import BatchHeader, CorruptBatchError
from highwater.telemetry.log import get_logger, pairs

_TOLD_BYTES = 1 << 20  # of progress at once
_FAR = MAX_RELATIVE_OFFSET >> 1  # offsets; further apart than a batch reaches

_log: logging.Logger = get_logger("log_storage.recovery")


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The values of one log in the checkpoints of its log directory. `clean`: it was stopped cleanly, so every batch is
    on disk and nothing needs to be scanned."""

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    cleaned_to: int | None = None
    page_cache: bool = False  # the process was killed, and no more: what it had written is there (`boot_record.py`)


def open_log(
    directory: Path,
    config: LogConfig,
    known: Checkpointed,
    now_ms: int = 0,
    wall_offset_ms: int = 0,
    scanned: Callable[[int], None] | None = None,
    tail_lost: Callable[[str], None] | None = None,
    disk: Disk | None = None,
) -> Log:
    """Opens the log in `directory`, which exists.

    After an unclean stop every segment that ends above the recovery point is scanned: it is cut at the first batch
    that is damaged or does not continue the log, and later segments are dropped. Segments below the recovery point
    were on disk; damage there is not cut away, because acknowledged records would be lost without a word (RULES 4.4):
    whoever reads it is told. `scanned` is called with the bytes that have been checked since the last call, `tail_lost`
    with the reason where the log has lost more than the stop explains (RULES 7.2), before anything is cut: it makes
    that durable. `disk` is that of its log directory.

    Raises `LogError` (LOG_STORAGE_ERROR), `OSError`.
    """
    finish_interrupted(directory, os.listdir(directory))
    segments = open_segments(directory, config)
    first_offset = segments[0].base_offset if segments else known.log_start_offset
    first_unflushed = len(segments) if known.clean else _first_unflushed(segments, known.recovery_point)
    trusted = segments[:first_unflushed]
    for segment in trusted:
        segment.mark_sealed()
    if first_offset > known.log_start_offset:
        _log.warning(
            "%s begins at offset %d, and its log start was %d: files of segments below are gone, or the checkpoint of "
            "log starts is. Restore them if the records are wanted",
            directory,
            first_offset,
            known.log_start_offset,
        )
    walk = _Walk(
        directory,
        known,
        first_offset,
        now_ms,
        wall_offset_ms,
        scanned or _nobody_asks,
        tail_lost,
        config.producer_limits,
    )
    try:
        walk.trust(trusted)
        walk.check(segments, first_unflushed)
        if not segments:
            segments.append(new_segment(directory, known.log_start_offset, config))
        elif len(segments) <= len(trusted):
            segments[-1].resume()  # appends go on behind what was flushed
        log_end_offset = segments[-1].end_offset
        _check_flushed(directory, known, log_end_offset, walk)
        walk.judge(Cut.NOTHING, log_end_offset)
        log_start_offset = max(known.log_start_offset, segments[0].base_offset)
        known_to = max(log_end_offset, log_start_offset)  # what was below the log start was committed
        if known_to < walk.producers_from:  # the log has been cut below the snapshot
            producer_snapshots.remove_above(directory, known_to)
            walk.producers = producer_snapshots.restore(
                directory, segments, known_to, now_ms, wall_offset_ms, config.producer_limits
            )
        epochs = walk.epoch_cache(trusted, log_end_offset)
    except CorruptBatchError as error:
        raise lost(f"{directory} is damaged below the recovery point: {error}") from None
    for segment in trusted:
        if segment is not segments[-1]:
            segment.mark_sealed()  # again: one of them has been looked into from its end
    segments[-1].mark_active()
    producer_snapshots.remove_needless(directory, segments)
    log = Log(
        directory,
        config,
        segments=segments,
        epochs=epochs,
        producers=walk.producers,
        log_start_offset=min(log_start_offset, log_end_offset),
        high_watermark=known.high_watermark,
        recovery_point=log_end_offset if known.clean else known.recovery_point,
        cleaned_to=known.cleaned_to,
        wall_offset_ms=wall_offset_ms,
        gaps=walk.gaps,
        disk=disk,
    )
    if log_end_offset < log_start_offset:
        _log.warning("%s ends below its log start: it starts anew there %s", directory, pairs(offset=log_start_offset))
        _start_anew(log, log_start_offset, walk.epochs_on_file_below(log_start_offset), wall_offset_ms)
    return log


def _start_anew(log: Log, offset: int, epochs: LeaderEpochCache, wall_offset_ms: int) -> None:
    """Begins the log anew at `offset`. What is known of producers outlives their records: it is on disk before the
    segments go, where there is room. Raises `LogError` (LOG_STORAGE_ERROR), `OSError`."""
    producers = log.producers.copy()
    with suppress(OSError):
        producer_snapshots.write_durably(log.directory, offset, producers, wall_offset_ms)
    log.truncation.truncate_fully_and_start_at(offset, epochs, producers)
    if offset not in producer_snapshots.offsets(log.directory):
        log.producer_state.pending.add(offset, producers.copy())


def _check_flushed(directory: Path, known: Checkpointed, log_end_offset: int, walk: _Walk) -> None:
    """Checks that what was on disk, and not deleted, is there. The checkpoint that says how much that was has no CRC,
    so it is believed only where another file says so too. Raises `LogError` (LOG_STORAGE_ERROR)."""
    elsewhere = max(known.high_watermark, walk.producers_from)
    if walk.gaps or known.recovery_point <= max(log_end_offset, known.log_start_offset) or elsewhere <= log_end_offset:
        return
    raise lost(f"{directory} ends at offset {log_end_offset} and was on disk up to {known.recovery_point}")


def unflushed_bytes(directory: Path, known: Checkpointed) -> int:
    """Tells how many bytes `open_log` will scan. Raises `LogError` (LOG_STORAGE_ERROR), `OSError`."""
    if known.clean:
        return 0
    sizes = segment_sizes(directory)
    bases = sorted(sizes)
    return sum(sizes[base] for base in bases[_first_ending_above(bases, known.recovery_point) :])


def _first_unflushed(segments: Sequence[Segment], recovery_point: int) -> int:
    return _first_ending_above([segment.base_offset for segment in segments], recovery_point)


def _first_ending_above(bases: Sequence[int], recovery_point: int) -> int:
    """Of the first segment that reaches above the recovery point; the last one always may."""
    ends = (number for number, following in enumerate(bases[1:]) if following > recovery_point)
    return next(ends, max(len(bases) - 1, 0))


class _Walk:
    """Finds out about a log's batches: of those that are trusted as little as will do."""

    def __init__(
        self,
        directory: Path,
        known: Checkpointed,
        first_offset: int,
        now_ms: int,
        wall_offset_ms: int,
        scanned: Callable[[int], None],
        tail_lost: Callable[[str], None] | None,
        limits: ProducerLimits,
    ) -> None:
        self._known = known
        self._now_ms = now_ms
        self._scanned = scanned
        self._tail_lost = tail_lost
        self._directory = directory
        # The last snapshot, to which the batches behind it are added.
        self.producers_from, self.producers = producer_snapshots.latest(
            directory, first_offset, NO_BOUND, now_ms, wall_offset_ms, self._snapshot_damaged, limits=limits
        )
        self.gaps = (directory / OFFSET_GAPS).exists()
        self._found = LeaderEpochCache()  # of the batches that have been checked
        self._file_epochs = _read_epochs(directory)
        self._last_epoch = 0

    def _snapshot_damaged(self, offset: int) -> None:
        """A kill leaves none that is. Below what is flushed an earlier loss of power may have. Raises `OSError`."""
        if offset > self._known.recovery_point:
            self.judge(Cut.MORE, NO_BOUND)

    def trust(self, segments: Sequence[Segment]) -> None:
        """Replays what the last snapshot of the producers does not know of flushed segments."""
        producer_snapshots.replay(self.producers, segments, self.producers_from, self._now_ms)

    def check(self, segments: list[Segment], first: int) -> None:
        """Takes in the batches of the segments from the `first` on; drops from `segments` what must be dropped."""
        expected = segments[first].base_offset if first < len(segments) else 0
        for number in range(first, len(segments)):
            segment = segments[number]
            follows = segment.base_offset <= self._known.recovery_point or self._follows(segment, expected)
            try:
                segment.begin_reindex()
                if not follows:
                    raise CorruptBatchError(0, f"the log ends at {expected}, the segment begins above it")
                self._check_segment(segment)
            except CorruptBatchError as error:
                if segment.end_offset < self._known.recovery_point:
                    raise  # it was on disk: what is committed is not dropped without a word (RULES 7.6)
                # An empty one begins at the log's end, which a truncation may have left in a gap
                # (`LogStart.move_behind`).
                follows = follows or (self.gaps and not segment.size_bytes)
                torn = follows and number == len(segments) - 1 and segment.is_torn_at(error.position)
                self.judge(Cut.TORN if torn else Cut.MORE, NO_BOUND)  # where it ends is looked at when it is cut
                _cut(segments, number, error)
                return
            except OSError as error:
                raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{segment.path} cannot be read: {error}") from error
            segment.seal()
            if segment is not segments[-1]:
                _let_wait_for_sync(segment)
            expected = segment.end_offset

    def judge(self, cut: Cut, log_end_offset: int) -> None:
        """Tells that the tail is lost, where what was found shows it. Raises `OSError`."""
        known = self._known
        if known.clean or self._tail_lost is None:
            return
        reason = recovery_shows_loss(
            known.page_cache, cut, known.log_start_offset, known.high_watermark, log_end_offset
        )
        if reason:
            self._tail_lost(f"{self._directory}: {reason}")

    def _follows(self, segment: Segment, end_offset: int) -> bool:
        """Segments join, so that one which is missing shows; but for those between which compaction had left so much
        out that an index could not bridge it (`LogWriter`)."""
        return segment.base_offset == end_offset or (self.gaps and segment.base_offset - end_offset > _FAR)

    def _check_segment(self, segment: Segment) -> None:
        expected, scanned = segment.base_offset, 0
        for position, header in segment.headers(0, check_crcs=True):
            # A base offset is not under the CRC. Where batches may have gaps between them, only a lower one shows.
            gap = header.base_offset > expected and header.base_offset > self._known.recovery_point and not self.gaps
            if header.base_offset < expected or gap:
                raise CorruptBatchError(position, f"base offset {header.base_offset}, the log goes on at {expected}")
            if header.partition_leader_epoch < self._last_epoch:
                raise CorruptBatchError(
                    position, f"leader epoch {header.partition_leader_epoch} comes after {self._last_epoch}"
                )
            size, last_offset = header.size_bytes, header.last_offset
            segment.note(position, size, last_offset, header.max_timestamp)
            self._take(header)
            expected = last_offset + 1
            scanned += size
            if scanned >= _TOLD_BYTES:
                self._scanned(scanned)
                scanned = 0
        self._scanned(scanned)

    def _take(self, header: BatchHeader) -> None:
        if header.base_offset >= self.producers_from:
            self.producers.update(header, header.base_offset, self._now_ms)
        epoch = header.partition_leader_epoch
        if epoch != self._found.latest_epoch:
            self._found.assign(epoch, header.base_offset)
            self._last_epoch = epoch

    def epochs_on_file_below(self, log_start_offset: int) -> LeaderEpochCache:
        """Of a log whose batches have all gone: what is below the log start was committed, so its epochs stand."""
        file = self._file_epochs.entries if self._file_epochs is not None else ()
        return LeaderEpochCache(_before(file, (), log_start_offset))

    def epoch_cache(self, trusted: Sequence[Segment], log_end_offset: int) -> LeaderEpochCache:
        """Finds the epochs: what the batches that were checked say, and before it what the file knows; where there is
        none, or it does not fit, what the headers of all batches say, and the file of epochs whose batches are gone.
        Without epochs that have written nothing. Raises `CorruptBatchError`, `OSError`."""
        checked = self._found.entries
        file = self._file_epochs.entries if self._file_epochs is not None else ()
        holds_batches = [segment for segment in trusted if segment.size_bytes]
        earlier = _before(file, checked, log_end_offset)
        if not holds_batches or _fits(earlier, holds_batches):
            return _joined(earlier, checked)
        _log.info("%s: the leader epochs are found in the headers of all batches", holds_batches[0].path.parent)
        found = LeaderEpochCache()
        for segment in holds_batches:
            for _, header in segment.headers(0):
                if header.partition_leader_epoch > found.latest_epoch:
                    found.assign(header.partition_leader_epoch, header.base_offset)
        all_found = _joined(_before(found.entries, checked, log_end_offset), checked).entries
        return _joined(_before(file, all_found, log_end_offset), all_found)


def _fits(epochs: Sequence[EpochEntry], segments: Sequence[Segment]) -> bool:
    """Tells whether they can be all the epochs of these segments: by the first batch and the last one."""
    if not epochs or epochs[0].start_offset > segments[0].base_offset:
        return False
    return epochs[-1].leader_epoch == segments[-1].resume()


def _before(entries: Sequence[EpochEntry], following: Sequence[EpochEntry], log_end_offset: int) -> list[EpochEntry]:
    """Those of `entries` that may stand in front of `following`."""
    epoch, offset = following[0] if following else (NO_BOUND, log_end_offset)
    return [entry for entry in entries if entry.start_offset < offset and entry.leader_epoch <= epoch]


def _joined(earlier: Sequence[EpochEntry], following: Sequence[EpochEntry]) -> LeaderEpochCache:
    if earlier and following and earlier[-1].leader_epoch == following[0].leader_epoch:
        following = following[1:]  # it began before
    return LeaderEpochCache([*earlier, *following])


def _cut(segments: list[Segment], number: int, error: CorruptBatchError) -> None:
    dropped = segments[number + 1 :]
    lost_bytes = segments[number].size_bytes - error.position + sum(segment.size_bytes for segment in dropped)
    _log.warning(
        "%s: recovery cuts the log: %s %s",
        segments[number].path,
        error.reason,
        pairs(position=error.position, bytes=lost_bytes, segments_dropped=len(dropped)),
    )
    for segment in reversed(dropped):
        segment.remove()
    del segments[number + 1 :]
    segments[number].undo(error.position)
    if error.position == 0 and number > 0:
        segments.pop().remove()


def _let_wait_for_sync(segment: Segment) -> None:
    """Of a log that has rolled often before it was killed there may be many. Raises `OSError`."""
    if unsynced_segments.room:
        unsynced_segments.add(segment)
    else:
        segment.sync_batches()
        segment.mark_sealed()


def _nobody_asks(_: int) -> None:
    pass


def _read_epochs(directory: Path) -> LeaderEpochCache | None:
    try:
        return checkpoints.read_epochs(directory / checkpoints.LEADER_EPOCHS)
    except CheckpointError as error:
        _log.warning("%s; it is made again from the batches", error)
        return None
