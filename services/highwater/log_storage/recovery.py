"""Opening a log's directory: left-overs, a walk over its batches, and the CRC scan after an unclean stop (invariant
7)."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage import checkpoints, producer_snapshots
from highwater.log_storage.checkpoints import CheckpointError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.durable import fsync_directory
from highwater.log_storage.epochs import LeaderEpochCache
from highwater.log_storage.errors import LogError
from highwater.log_storage.log import Log
from highwater.log_storage.log_core import new_segment
from highwater.log_storage.scan import scan_batches
from highwater.log_storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_name,
)
from highwater.records import BatchHeader, CorruptBatchError
from highwater.telemetry.log import get_logger, pairs

_NO_BOUND = 2**63 - 1

_log: logging.Logger = get_logger("log_storage.recovery")


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What the checkpoints of the log directory say of one log. `clean`: it was stopped cleanly, so every batch is on
    disk and nothing needs to be scanned."""

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0


def open_log(directory: Path, config: LogConfig, known: Checkpointed, now_ms: int = 0, wall_offset_ms: int = 0) -> Log:
    """Opens the log in `directory`, which exists.

    After an unclean stop every segment that ends above the recovery point is scanned: it is cut at the first batch
    that is damaged or does not continue the log, and later segments are dropped. Segments below the recovery point
    were on disk; damage there is not cut away but raised, because acknowledged records would be lost without a word
    (RULES 4.4).

    Raises `LogError` (LOG_STORAGE_ERROR), `OSError`.
    """
    _finish_interrupted(directory)
    segments = _open_segments(directory, config)
    first_offset = segments[0].base_offset if segments else known.log_start_offset
    walk = _Walk(directory, known, first_offset, now_ms, wall_offset_ms)
    walk.over(segments)
    if not segments:
        segments.append(new_segment(directory, known.log_start_offset, config))
    log_start_offset = max(known.log_start_offset, segments[0].base_offset)
    log_end_offset = segments[-1].end_offset
    if log_end_offset < walk.producers_from:  # the log has been cut below the snapshot
        producer_snapshots.remove_above(directory, log_end_offset)
        walk.producers = producer_snapshots.restore(directory, segments, log_end_offset, now_ms, wall_offset_ms)
    producer_snapshots.remove_needless(directory, segments)
    log = Log(
        directory,
        config,
        segments=segments,
        epochs=walk.epoch_cache(log_end_offset),
        producers=walk.producers,
        log_start_offset=min(log_start_offset, log_end_offset),
        high_watermark=known.high_watermark,
        recovery_point=log_end_offset if known.clean else known.recovery_point,
        wall_offset_ms=wall_offset_ms,
    )
    if log_end_offset < log_start_offset:
        _log.warning("%s ends below its log start: it starts anew there %s", directory, pairs(offset=log_start_offset))
        log.truncate_fully_and_start_at(log_start_offset)
    return log


class _Walk:
    """One pass over all batches: it checks what was not flushed, and collects epochs and producers."""

    def __init__(
        self, directory: Path, known: Checkpointed, first_offset: int, now_ms: int, wall_offset_ms: int
    ) -> None:
        # The last snapshot, to which the batches behind it are added.
        self.producers_from, self.producers = producer_snapshots.latest(
            directory, first_offset, _NO_BOUND, now_ms, wall_offset_ms
        )
        self._directory = directory
        self._known = known
        self._now_ms = now_ms
        self._found = LeaderEpochCache()
        self._file_epochs = _read_epochs(directory)
        self._last_epoch = 0

    def over(self, segments: list[Segment]) -> None:
        """Adopts the batches; drops from `segments` what must be dropped."""
        expected = segments[0].base_offset if segments else 0
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            flushed = self._known.clean or (following is not None and following <= self._known.recovery_point)
            try:
                if not flushed:
                    segment.begin_reindex()
                    if segment.base_offset != expected and segment.base_offset > self._known.recovery_point:
                        raise CorruptBatchError(0, f"the log ends at {expected}, the segment begins above it")
                self._adopt(segment, flushed)
            except CorruptBatchError as error:
                if flushed:
                    raise LogError(
                        ErrorCode.LOG_STORAGE_ERROR,
                        f"{segment.path} is damaged below the recovery point: {error}. Restore the file; or, "
                        f"once the partition's ISR does not list this broker, stop log-storage and remove the log's "
                        f"directory, to have the replica copied from its leader",
                    ) from None
                self._cut(segments, number, error)
                return
            except OSError as error:
                raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{segment.path} cannot be read: {error}") from error
            expected = segment.end_offset

    def _adopt(self, segment: Segment, flushed: bool) -> None:
        expected = segment.base_offset
        for position, header in segment.headers(0, checked=not flushed):
            self._check(position, header, expected, flushed)
            segment.adopt(position, header, reindex=not flushed)
            self._take(header)
            expected = header.next_offset

    def _check(self, position: int, header: BatchHeader, expected: int, flushed: bool) -> None:
        # Compaction leaves gaps, and only below the recovery point.
        gap = header.base_offset > expected and header.base_offset > self._known.recovery_point
        if header.base_offset < expected or gap:
            raise CorruptBatchError(position, f"base offset {header.base_offset}, the log goes on at {expected}")
        if header.partition_leader_epoch < self._last_epoch:
            raise CorruptBatchError(
                position, f"leader epoch {header.partition_leader_epoch} comes after {self._last_epoch}"
            )

    def _take(self, header: BatchHeader) -> None:
        if header.base_offset >= self.producers_from:
            self.producers.update(header, header.base_offset, self._now_ms)
        epoch = header.partition_leader_epoch
        if epoch != self._last_epoch or not self._found.entries:
            self._found.assign(epoch, header.base_offset)
            self._last_epoch = epoch

    def _cut(self, segments: list[Segment], number: int, error: CorruptBatchError) -> None:
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

    def epoch_cache(self, log_end_offset: int) -> LeaderEpochCache:
        """What the batches' headers say, and before it what only the file knows: epochs whose batches are gone. Without
        epochs that have written nothing."""
        found = self._found.entries
        first_epoch, first_offset = found[0] if found else (_NO_BOUND, log_end_offset)
        earlier = [
            entry
            for entry in (self._file_epochs.entries if self._file_epochs else ())
            if entry.start_offset < first_offset and entry.leader_epoch <= first_epoch
        ]
        if earlier and earlier[-1].leader_epoch == first_epoch:
            found = found[1:]  # its first batches are gone
        return LeaderEpochCache([*earlier, *found])


def _read_epochs(directory: Path) -> LeaderEpochCache | None:
    try:
        return checkpoints.read_epochs(directory / checkpoints.LEADER_EPOCHS)
    except CheckpointError as error:
        _log.warning("%s; it is made again from the batches", error)
        return None


def _open_segments(directory: Path, config: LogConfig) -> list[Segment]:
    bases = sorted(_base_offset(path) for path in directory.glob(f"*{LOG_SUFFIX}"))
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        for path in directory.glob(f"*{suffix}"):
            if _base_offset(path) not in bases:
                path.unlink()  # its segment is gone
    return [
        Segment(
            directory,
            base,
            index_interval_bytes=config.index_interval_bytes,
            index_max_bytes=config.index_max_bytes,
        )
        for base in bases
    ]


def _base_offset(path: Path) -> int:
    name = path.name.partition(".")[0]
    if not name.isdigit():
        raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{path} is not the name of a segment: remove or rename the file")
    return int(name)


def _finish_interrupted(directory: Path) -> None:
    """Removes what a stopped deletion or cleaning has left, and completes a swap that had begun (seeds §5.3, steps 2,
    4): `.swap` segments are whole, and take the place of the segments that their offsets cover. Unless the first of
    them is still `.cleaned`: then nothing has been replaced yet."""
    swaps: dict[int, Path] = {}
    first_cleaned = _NO_BOUND
    for path in sorted(directory.iterdir()):
        if path.name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            swaps[_base_offset(path)] = path
        elif path.name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")):
            # An index that was to be swapped in is made again.
            if path.name.endswith(LOG_SUFFIX + CLEANED_SUFFIX):
                first_cleaned = min(first_cleaned, _base_offset(path))
            else:
                path.unlink()
    if swaps and first_cleaned < min(swaps):
        for path in swaps.values():
            path.unlink()
        fsync_directory(directory)
    elif swaps:
        _swap_in(directory, swaps)
    for path in directory.glob(f"*{LOG_SUFFIX}{CLEANED_SUFFIX}"):
        path.unlink()


def _swap_in(directory: Path, swaps: Mapping[int, Path]) -> None:
    """What is renamed first is the last one, so that at each step the `.swap` that are left cover what they replace."""
    end_offset = 0
    for base_offset, path in swaps.items():
        try:
            end_offset = max(_end_of(path, base_offset), base_offset + 1)
        except CorruptBatchError as error:
            _drop_swaps(directory, swaps, f"{path} is damaged: {error}")
            return
    for covered in sorted(directory.glob(f"*{LOG_SUFFIX}"), reverse=True):
        if min(swaps) <= _base_offset(covered) < end_offset:
            for suffix in SEGMENT_SUFFIXES:
                (directory / file_name(_base_offset(covered), suffix)).unlink(missing_ok=True)
    for base_offset in sorted(swaps, reverse=True):
        os.replace(swaps[base_offset], directory / file_name(base_offset, LOG_SUFFIX))


def _drop_swaps(directory: Path, swaps: Mapping[int, Path], reason: str) -> None:
    if not (directory / file_name(min(swaps), LOG_SUFFIX)).exists():
        raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{reason}, and its original is gone")
    _log.warning("%s; the swap is dropped, its originals are still there", reason)
    for path in swaps.values():
        path.unlink()


def _end_of(path: Path, base_offset: int) -> int:
    end_offset = base_offset
    with path.open("rb", buffering=0) as file:
        for _, header in scan_batches(file.fileno(), 0, os.fstat(file.fileno()).st_size, verify=True):
            end_offset = header.next_offset
    return end_offset
