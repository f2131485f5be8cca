"""One pass of compaction over the files of a log: the map of the dirty part's keys, then each group of
segments into one `.cleaned` segment. It reads files and writes files beside them; the log is not touched. It runs in a
process of its own (`cleaner_process.py`).

Of each key the last record stays. Offsets never change (invariant 8): batches keep their place and their header, and
lose records. A batch that has lost all of them goes, unless something is to be read from its header:

- it is the first of its leader epoch (RULES 4.3),
- or the last of its producer, whose sequence would be forgotten with it,
- or the last of its group, without which nobody could tell how far the segment reaches.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from highwater.log_storage.compaction.cleaner_batches import DecodedBatch, decode_batch, read_chunks
from highwater.log_storage.compaction.cleaner_job import CleanedGroup, CleanJob, PassLimits, SegmentFile
from highwater.log_storage.compaction.cleaner_selection import SegmentSizes, group_segments
from highwater.log_storage.compaction.key_hash import hash_keys
from highwater.log_storage.compaction.offset_map import NOT_FOUND, OffsetMap
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    file_name,
)
from highwater.records import BatchHeader, CorruptBatchError, ReadableBuffer, read_header, verify
from highwater.records.compaction import retain_decoded

# Decoded batches that are looked up together; one may be larger by itself.
_DECODED_BYTES = 32 << 20
_NO_EPOCH = -1


class CleanerError(Exception):
    """A log that cannot be cleaned as it is. The message says which file, and why."""


class DamagedSegmentError(CleanerError):
    """A batch of the segment with this base offset is not what was written, or not where it was written."""

    def __init__(self, base_offset: int, message: str) -> None:
        super().__init__(message)
        self.base_offset = base_offset


@dataclass(slots=True)
class PassCounts:
    """The work that a pass has done so far. Records are those of batches that it had to decode."""

    records_read: int = 0
    records_dropped: int = 0
    keyless_dropped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class _Output(NamedTuple):
    """A batch of the cleaned segment, not written yet."""

    content: ReadableBuffer
    header: BatchHeader


class Cleaner:
    """`build_map`, then `clean` for each of `groups`, oldest first: a tombstone goes only when what it covers has
    gone."""

    def __init__(
        self,
        job: CleanJob,
        limits: PassLimits,
        *,
        moved: Callable[[int], None] = lambda size_bytes: None,
        seed: int | None = None,
    ) -> None:
        """`moved` is told of bytes that were read or written, and may wait. Raises `ValueError` where the map has no
        room for a single key."""
        self._job = job
        self._directory = Path(job.directory)
        self._io_bytes = limits.io_bytes
        self._moved = moved
        self._seed = secrets.randbits(128) if seed is None else seed
        self._map = OffsetMap(limits.map_bytes, limits.load_factor, max(1, job.end_offset - job.first_dirty_offset))
        self._last_offsets = dict(np.frombuffer(job.producers, dtype="<i8").reshape(-1, 2).tolist())
        self._epoch = _NO_EPOCH  # of the batch before, in the log as it was
        self._file_position = 0  # of the present chunk
        self.counts = PassCounts()

    # -- the map ------------------------------------------------------------------------------------------------------

    def build_map(self) -> int:
        """Puts the keys of the dirty part into the map, as far as there is room; the offset up to which the log is
        clean after this pass. Raises `CleanerError`, `OSError`."""
        for segment in self._job.segments:
            if segment.next_offset > self._job.first_dirty_offset and not self._map_segment(segment):
                break
        else:
            self._map.latest_offset = self._job.end_offset - 1
        return self._map.latest_offset + 1

    @property
    def keys(self) -> int:
        """In the map."""
        return len(self._map)

    def _map_segment(self, segment: SegmentFile) -> bool:
        """Tells whether the map had room for all of it."""
        first_dirty = self._job.first_dirty_offset
        for chunk, batches in self._chunks(segment):
            columns: list[pa.Array] = []
            offsets: list[npt.NDArray[np.int64]] = []
            for position, header in batches:
                if header.last_offset < first_dirty or not header.record_count:
                    continue
                batch = self._decode(segment, chunk, position)
                wanted = batch.has_key & (batch.offsets >= first_dirty)
                columns.append(batch.keys if wanted.all() else batch.keys.filter(pa.array(wanted)))
                offsets.append(batch.offsets if wanted.all() else batch.offsets[wanted])
            last_offset = batches[-1][1].last_offset
            if columns:
                all_offsets = np.concatenate(offsets)
                taken = self._map.put(hash_keys(pa.concat_arrays(columns), self._seed), all_offsets)
                if taken < len(all_offsets):
                    # What lies between the last key taken and the first one left out has no key.
                    self._map.latest_offset = max(int(all_offsets[taken]) - 1, first_dirty - 1)
                    return False
            self._map.latest_offset = max(last_offset, first_dirty - 1)
        return True

    # -- the segments -------------------------------------------------------------------------------------------------

    def groups(self) -> Sequence[Sequence[SegmentFile]]:
        """The runs of segments of which each becomes one, up to the offset that `build_map` returned."""
        clean = [segment for segment in self._job.segments if segment.base_offset <= self._map.latest_offset]
        sizes = [
            SegmentSizes(
                segment.base_offset,
                segment.next_offset,
                segment.size_bytes,
                self._size_of(segment.base_offset, INDEX_SUFFIX),
                self._size_of(segment.base_offset, TIME_INDEX_SUFFIX),
            )
            for segment in clean
        ]
        groups = []
        rest = iter(clean)
        for group in group_segments(sizes, self._job.segment_bytes, self._job.index_max_bytes):
            groups.append([next(rest) for _ in group])
        return groups

    def _size_of(self, base_offset: int, suffix: str) -> int:
        try:
            return (self._directory / file_name(base_offset, suffix)).stat().st_size
        except FileNotFoundError:
            return 0

    def clean(self, group: Sequence[SegmentFile]) -> CleanedGroup | None:
        """Writes what is kept of a group's segments, with indexes, all on disk when it returns, and as old as the last
        of them. None where nothing would change: nothing is left behind then. Raises `CleanerError`, `OSError`."""
        base_offset = group[0].base_offset
        for suffix in SEGMENT_SUFFIXES:
            (self._directory / file_name(base_offset, suffix + CLEANED_SUFFIX)).unlink(missing_ok=True)
        cleaned = Segment(
            self._directory,
            base_offset,
            index_interval_bytes=self._job.index_interval_bytes,
            index_max_bytes=self._job.index_max_bytes,
            create=True,
            suffix=CLEANED_SUFFIX,
        )
        try:
            changed = len(group) > 1
            for segment in group:
                changed |= self._clean_into(cleaned, segment, last=segment is group[-1])
            if not changed:
                cleaned.remove()
                return None
            cleaned.seal()
            cleaned.flush()
            modified = (self._directory / file_name(group[-1].base_offset, LOG_SUFFIX)).stat()
            os.utime(cleaned.path, ns=(modified.st_atime_ns, modified.st_mtime_ns))
        except BaseException:
            cleaned.remove()
            raise
        return CleanedGroup(tuple(segment.base_offset for segment in group), cleaned.size_bytes, cleaned.end_offset)

    def _clean_into(self, cleaned: Segment, segment: SegmentFile, *, last: bool) -> bool:
        """Tells whether anything of the segment has changed."""
        changed = False
        for chunk, batches in self._chunks(segment):
            ends_group = last and self._file_position + len(chunk) >= segment.size_bytes
            pending: list[tuple[int, BatchHeader, DecodedBatch | None]] = []
            decoded_bytes = 0
            for number, (position, header) in enumerate(batches):
                decoded = None
                if header.base_offset <= self._map.latest_offset and header.record_count:
                    decoded = self._decode(segment, chunk, position)
                    decoded_bytes += decoded.size_bytes
                pending.append((position, header, decoded))
                at_end = number == len(batches) - 1
                if at_end or decoded_bytes >= _DECODED_BYTES:
                    changed |= self._clean_batches(cleaned, chunk, pending, ends_group and at_end)
                    pending, decoded_bytes = [], 0
        return changed

    def _clean_batches(
        self,
        cleaned: Segment,
        chunk: bytes,
        pending: Sequence[tuple[int, BatchHeader, DecodedBatch | None]],
        ends_group: bool,
    ) -> bool:
        keeps = iter(self._keeps([decoded for _, _, decoded in pending if decoded is not None]))
        output: list[_Output] = []
        changed = False
        view = memoryview(chunk)
        for number, (position, header, decoded) in enumerate(pending):
            first_of_epoch = header.partition_leader_epoch != self._epoch
            self._epoch = header.partition_leader_epoch
            raw = view[position : position + header.size_bytes]
            last_of_group = ends_group and number == len(pending) - 1
            keep = None if decoded is None else next(keeps)
            if header.base_offset <= self._map.latest_offset and (keep is None or not keep.any()):
                last_of_producer = self._last_offsets.get(header.producer_id) == header.last_offset
                if not (first_of_epoch or last_of_producer or last_of_group):
                    changed = True
                    continue
            kept = None
            if decoded is not None and keep is not None:
                kept = retain_decoded(decoded.batch, keep, delete_horizon_ms=self._new_horizon(decoded, keep))
            if kept is None:
                output.append(_Output(raw, header))
            else:
                output.append(_Output(kept, read_header(kept)))
                changed = True
        self._write(cleaned, output)
        return changed

    def _keeps(self, batches: Sequence[DecodedBatch]) -> list[npt.NDArray[np.bool_]]:
        """Tells which records stay, batch by batch."""
        if not batches:
            return []
        hashes = hash_keys(pa.concat_arrays([batch.keys for batch in batches]), self._seed)
        latest = self._map.get(hashes)
        keeps = []
        start = 0
        for batch in batches:
            count = len(batch.offsets)
            keep = self._keep(batch, latest[start : start + count])
            start += count
            self.counts.records_read += count
            self.counts.records_dropped += count - int(np.count_nonzero(keep))
            keeps.append(keep)
        return keeps

    def _keep(self, batch: DecodedBatch, latest: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Behind the map's latest offset everything stays. Below it: the last record of each key, unless it has none
        (RULES 10.3) or is a tombstone whose time has come."""
        behind = batch.offsets > self._map.latest_offset
        current = batch.has_key & ((latest == NOT_FOUND) | (batch.offsets >= latest))
        self.counts.keyless_dropped += int(np.count_nonzero(~batch.has_key & ~behind))
        horizon = batch.batch.header.delete_horizon_ms
        if horizon is not None and horizon <= self._job.wall_clock_ms:
            current &= batch.has_value
        keep: npt.NDArray[np.bool_] = behind | current
        return keep

    def _new_horizon(self, batch: DecodedBatch, keep: npt.NDArray[np.bool_]) -> int | None:
        """The time from which its tombstones may go, told where the cleaner first passes over all of them: of a batch
        in which the map ends some have a key that has not been cleaned yet."""
        header = batch.batch.header
        if header.delete_horizon_ms is not None or header.last_offset > self._map.latest_offset:
            return None
        passed = keep & ~batch.has_value
        return self._job.wall_clock_ms + self._job.delete_retention_ms if passed.any() else None

    # -- files --------------------------------------------------------------------------------------------------------

    def _chunks(self, segment: SegmentFile) -> Iterator[tuple[bytes, list[tuple[int, BatchHeader]]]]:
        """Every batch is checked, whatever will become of it: a damaged one must not get a sound place in a new
        segment, nor be taken for one that has nothing to keep."""
        path = self._directory / file_name(segment.base_offset, LOG_SUFFIX)
        expected = segment.base_offset
        with path.open("rb", buffering=0) as file:
            try:
                for file_position, chunk, batches in read_chunks(file.fileno(), segment.size_bytes, self._io_bytes):
                    self._file_position = file_position
                    self.counts.bytes_read += len(chunk)
                    self._moved(len(chunk))
                    for position, header in batches:
                        self._check(segment, chunk, position, header, expected)
                        expected = header.next_offset
                    yield chunk, batches
                if self._job.contiguous and expected < segment.next_offset:
                    raise CorruptBatchError(
                        segment.size_bytes, f"no batch has the offsets {expected} to {segment.next_offset - 1}"
                    )
            except CorruptBatchError as error:
                raise DamagedSegmentError(segment.base_offset, f"{path} is damaged: {error}") from None

    def _check(
        self, segment: SegmentFile, chunk: bytes, position: int, header: BatchHeader, expected_offset: int
    ) -> None:
        """Its CRC, and its offsets, which are not under the CRC. Raises `CorruptBatchError`."""
        try:
            verify(chunk, position, header)
        except CorruptBatchError as error:
            raise CorruptBatchError(self._file_position + position, error.reason) from None
        misplaced = header.base_offset < expected_offset or header.next_offset > segment.next_offset
        if misplaced or (self._job.contiguous and header.base_offset > expected_offset):
            raise CorruptBatchError(
                self._file_position + position,
                f"offsets {header.base_offset} to {header.last_offset} stand where {expected_offset} is expected",
            )

    def _decode(self, segment: SegmentFile, chunk: bytes, position: int) -> DecodedBatch:
        try:
            return decode_batch(chunk, position)
        except CorruptBatchError as error:
            path = self._directory / file_name(segment.base_offset, LOG_SUFFIX)
            raise DamagedSegmentError(
                segment.base_offset, f"{path} is damaged: position {self._file_position + position}: {error}"
            ) from None

    def _write(self, cleaned: Segment, output: Sequence[_Output]) -> None:
        if not output:
            return
        total = sum(len(batch.content) for batch in output)
        if cleaned.size_bytes + total > MAX_SEGMENT_BYTES:
            raise CleanerError(f"{cleaned.path} would exceed 2 GiB: give the topic a smaller segment.bytes")
        position = cleaned.append([batch.content for batch in output], total)
        for batch in output:
            size = len(batch.content)
            cleaned.note(position, size, batch.header.last_offset, batch.header.max_timestamp)
            position += size
        self.counts.bytes_written += total
        self._moved(total)


MAX_SEGMENT_BYTES = (1 << 31) - 1  # positions in an index are 31 bits
