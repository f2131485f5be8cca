"""One segment: `<base offset, 20 digits>.log` and its two indexes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from highwater.log_storage.segment.open_segments import open_segments
from highwater.log_storage.segment.segment_files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
    mark_deleted,
    rename,
)
from highwater.log_storage.segment.time_index import TimeIndex
from highwater.log_storage.segment.unsynced_segments import unsynced_segments
from highwater.log_storage.segment.walk import (
    LOOKUP_BYTES,
    SCAN_BYTES,
    DamagedBatch,
    WalkedBatch,
    only_begins,
    walk,
)
from highwater.records import BatchHeader, CorruptBatchError, ReadableBuffer, iter_batches, read_header, verify

NO_TIMESTAMP = -1
# A position has 31 bits in an index (Kafka's `segment.bytes` goes no further either).
MAX_SEGMENT_BYTES = 2**31 - 1
_MAX_BUFFERS = 1024  # IOV_MAX


class _WrongIndexError(Exception):
    """An index is not this segment's."""


class Segment:
    """The file, its size, and what is known of its batches. `size_bytes` is where the next batch goes; it never exceeds
    what has been written. A segment that was on disk at start is not looked into before it is used."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        index_max_bytes: int,
        create: bool = False,
        suffix: str = "",
        size_bytes: int | None = None,
        end_offset: int | None = None,
    ) -> None:
        """Opens the file, or makes it; `suffix` stands behind the names of its files while it is not part of the log
        (`.cleaned`). Where its size is given, it is opened when it is first used. `end_offset`: at or above which it
        has no batch. Raises `OSError`."""
        self.base_offset = base_offset
        self.path = directory / file_name(base_offset, LOG_SUFFIX + suffix)
        # Closed when nobody refers to it any more: a flush or a read may still use the file of a removed segment.
        self._file: Descriptor | None = None
        self.producers_told = False  # the snapshot at its beginning, written or pending, is of all producers below
        self.producers_kept = False  # and on disk for good
        self.released = False  # its files may be gone: it is not part of the log any more
        # Nothing is written to it any more: its files are open while they are among those read last (`close_files`).
        self.sealed = False
        if create:
            self._file = Descriptor(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.size_bytes = self._opened().size_bytes if size_bytes is None else size_bytes
        self.offset_index = OffsetIndex(
            directory / file_name(base_offset, INDEX_SUFFIX + suffix), base_offset, index_max_bytes
        )
        self.time_index = TimeIndex(
            directory / file_name(base_offset, TIME_INDEX_SUFFIX + suffix), base_offset, index_max_bytes
        )
        self.index_interval_bytes = index_interval_bytes
        # Behind the last batch; of a sealed segment it may be the offset at which the next one begins.
        self.end_offset = base_offset if end_offset is None else end_offset
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._first_timestamp: int | None = None
        self._learned = end_offset is None  # whether these are known
        self._bytes_since_entry = 0
        self.cuts = 0  # how often bytes were cut off its end: who reads it beside that has read what is no batch
        self._indexes_checked = create
        if create:
            self.offset_index.reset()
            self.time_index.reset()

    @property
    def max_timestamp(self) -> int:
        """`NO_TIMESTAMP` where no batch has one. Raises `CorruptBatchError`, `OSError`."""
        self._learn()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the first batch that has the largest timestamp. Raises `CorruptBatchError`, `OSError`."""
        self._learn()
        return self._max_timestamp_offset

    @property
    def first_timestamp(self) -> int:
        """The first batch's largest: the age of the segment counts from it. Raises `CorruptBatchError`, `OSError`."""
        if self._first_timestamp is None and self.size_bytes:
            for _, header in walk(self._opened(), 0, self.size_bytes, chunk_bytes=LOOKUP_BYTES):
                self._first_timestamp = header.max_timestamp
                break
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    def _learn(self) -> None:
        """From the last entries of the indexes and the batches behind them: the indexes are not read as a whole."""
        if self._learned:
            return
        end_offset = self.end_offset
        try:
            self._walk_tail()
        except (_WrongIndexError, FileNotFoundError):
            sealed = self.sealed
            try:
                self.resume()
            finally:
                if sealed:  # it is looked into, not appended to
                    self.mark_sealed()
        finally:  # also where a batch cannot be read: it ends where it did
            self.end_offset = end_offset

    @property
    def newest_ms(self) -> int:
        """The age of the segment counts from here: its largest timestamp, else (no batch has one, or not all can be
        read) when its file was last written. Raises `OSError`."""
        with suppress(CorruptBatchError):
            if self.max_timestamp >= 0:
                return self.max_timestamp
        file = self._opened()
        return os.fstat(file.number).st_mtime_ns // 1_000_000

    @property
    def full(self) -> bool:
        return self.offset_index.full or self.time_index.full

    def takes(self, last_offset: int) -> bool:
        """Tells whether the offset still has a relative offset of 31 bits here."""
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def _opened(self) -> Descriptor:
        file = self._file
        if file is None:
            file = Descriptor(self.path, os.O_RDWR)
            self._check_not_released()
            self._file = file
            if self.sealed:
                open_segments.opened(self)
        return file

    def mark_sealed(self) -> None:
        """Nothing is written to it any more, unless it is resumed, and all of it is on disk: who has a file open is
        told of an error in writing it out."""
        if not self.sealed:
            self.sealed = True
            unsynced_segments.discard(self)
            if self._file is not None:
                open_segments.opened(self)

    def mark_active(self) -> None:
        """It is written to, or will be: its file stays open."""
        self.sealed = False
        unsynced_segments.discard(self)

    def close_files(self) -> None:
        """Lets go of the files of a sealed segment: who uses one just now has it open. Any thread may call this."""
        if self.sealed:
            self._file = None
            self.offset_index.close()
            self.time_index.close()

    def _check_not_released(self) -> None:
        """Its names may be those of another segment's files by now. Raises `FileNotFoundError`."""
        if self.released:
            raise FileNotFoundError(errno.ENOENT, "not part of the log any more", str(self.path))

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[ReadableBuffer], total_bytes: int) -> int:
        """Writes whole batches at the end; the position they begin at. `note` each of them afterwards.

        Raises `OSError`; the segment is then as it was, unless `undo` raises as well."""
        self.sealed = False
        if not self._indexes_checked:
            self._check_indexes()
        file = self._opened()
        position = self.size_bytes
        written = 0
        for first in range(0, len(buffers), _MAX_BUFFERS):
            some = buffers[first : first + _MAX_BUFFERS]
            done = os.pwritev(file.number, some, position + written)
            expected = total_bytes if len(buffers) <= _MAX_BUFFERS else sum(map(len, some))
            if done < expected:
                done += self._write_rest(b"".join(some)[done:], position + written + done)
            written += done
        self.size_bytes = position + total_bytes
        return position

    def _write_rest(self, rest: bytes, position: int) -> int:
        file, done = self._opened(), 0
        while done < len(rest):
            done += os.pwrite(file.number, rest[done:], position + done)
        return done

    def undo(self, size_bytes: int) -> None:
        """Cuts off what a failed append may have left behind `size_bytes`. Raises `OSError`."""
        self.cuts += 1
        file = self._opened()
        os.ftruncate(file.number, size_bytes)
        self.size_bytes = size_bytes
        if not size_bytes:
            self._first_timestamp = None

    def is_torn_at(self, position: int) -> bool:
        """Tells whether behind `position` there is no more than the beginning of one batch: all that a write leaves
        that was ended in its midst. Raises `OSError`."""
        file = self._opened()
        return only_begins(file.number, position, self.size_bytes)

    def note(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Takes a batch at `position` into the indexes."""
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_entry > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            if self._max_timestamp >= 0:
                self.time_index.append(self._max_timestamp, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes
        self.end_offset = last_offset + 1

    def seal(self) -> None:
        """Ends the time index with the largest timestamp: at roll and at close."""
        self._check_indexes()
        if self.max_timestamp >= 0:
            self.time_index.append(self._max_timestamp, self._max_timestamp_offset)

    def flush(self) -> None:
        """Everything to disk. May run in a thread beside appends: it covers those that had returned. Raises
        `OSError`."""
        self.sync_batches()
        self.write_indexes()

    def write_indexes(self) -> None:
        """Both indexes to disk, as they are now. Raises `OSError`."""
        self.offset_index.write_out(sync=True)
        self.time_index.write_out(sync=True)

    def open(self) -> None:
        """Has the file open, if it has not been used yet. Raises `OSError`."""
        self._opened()

    def sync_batches(self) -> None:
        """The batches to disk, without the indexes. Raises `OSError`."""
        file = self._opened()
        os.fdatasync(file.number)

    def release_indexes(self) -> None:
        """Leaves them on disk, once the segment is sealed and flushed, which it is from now on. Raises `OSError`."""
        self.mark_sealed()
        try:
            self.offset_index.release()
            self.time_index.release()
        except FileNotFoundError:
            if not self.released:
                raise
        finally:
            open_segments.opened(self)

    def truncate(self, position: int, end_offset: int) -> None:
        """Cuts off everything from `position` on, where the batch at `end_offset` begins. Raises `OSError`."""
        self.mark_active()
        self._check_indexes()
        self.undo(position)
        self.offset_index.truncate(position)
        self.time_index.truncate(end_offset)
        self.resume()
        self.end_offset = end_offset

    def resume(self) -> int:
        """Makes a segment that was sealed, or on disk at start, one to append to: where it ends, its largest timestamp
        and the distance from the last index entry are found in the indexes and the batches behind them. The leader
        epoch of its last batch, -1 where it has none. Raises `CorruptBatchError`, `OSError`."""
        self.mark_active()
        self._check_indexes()
        try:
            return self._walk_tail()
        except _WrongIndexError:
            self.rebuild_indexes()
            return self._walk_tail()

    def _walk_tail(self) -> int:
        """See `resume`. Raises `_WrongIndexError`, `CorruptBatchError`, `OSError`."""
        last_entry, last_time = self.offset_index.last(), self.time_index.last()
        self._max_timestamp, self._max_timestamp_offset = last_time or (NO_TIMESTAMP, self.base_offset)
        self._bytes_since_entry = 0
        self.end_offset = self.base_offset
        epoch = -1
        try:
            for position, header in self.headers(last_entry[1] if last_entry else 0):
                if last_entry is not None and position == last_entry[1] and header.last_offset != last_entry[0]:
                    raise _WrongIndexError
                if header.max_timestamp > self._max_timestamp:
                    self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
                self._bytes_since_entry += header.size_bytes
                self.end_offset = header.next_offset
                epoch = header.partition_leader_epoch
        except CorruptBatchError:
            if last_entry is None:
                raise
            raise _WrongIndexError from None
        if last_time is not None and last_time[1] >= self.end_offset:
            raise _WrongIndexError
        self._learned = True
        return epoch

    def rebuild_indexes(self) -> None:
        """Makes both indexes from the batches. Raises `CorruptBatchError`, `OSError`."""
        self._check_not_released()
        self.offset_index.reset()
        self.time_index.reset()
        self._forget_notes()
        end_offset = self.end_offset
        expected = self.base_offset
        try:
            for position, header in self.headers(0):
                if header.base_offset < expected or not self.takes(header.last_offset):
                    raise CorruptBatchError(
                        position, f"offsets {header.base_offset} to {header.last_offset} cannot be here"
                    )
                expected = header.next_offset
                self.note(position, header.size_bytes, header.last_offset, header.max_timestamp)
        finally:  # also where a batch is damaged: it ends where it did
            self.end_offset = max(self.end_offset, end_offset)
        if self._max_timestamp >= 0:
            self.time_index.append(self._max_timestamp, self._max_timestamp_offset)
        with suppress(OSError):  # then they are in memory only, until the next start
            self.write_indexes()

    def _forget_notes(self) -> None:
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._first_timestamp = None
        self._learned = self._indexes_checked = True
        self._bytes_since_entry = 0

    def _check_indexes(self) -> None:
        """On first use: an index that cannot be this segment's is made again."""
        if self._indexes_checked:
            return
        present = self.offset_index.load() and self.time_index.load()
        if present and self.offset_index.valid(self.size_bytes) and self.time_index.valid(self.end_offset):
            self._indexes_checked = True
        else:
            self.rebuild_indexes()

    # -- walking and reading ------------------------------------------------------------------------------------------

    def headers(
        self, position: int, *, check_crcs: bool = False, chunk_bytes: int = SCAN_BYTES
    ) -> Iterator[WalkedBatch]:
        """The batches from `position` on; reads `chunk_bytes` at once. Raises `CorruptBatchError` at the
        first damaged one, `OSError`."""
        return walk(self._opened(), position, self.size_bytes, check_crcs=check_crcs, chunk_bytes=chunk_bytes)

    def batches_and_damage(self, position: int, *, check_crcs: bool) -> Iterator[WalkedBatch | DamagedBatch]:
        """The batches from `position` on, damaged ones among them. Raises `OSError`."""
        return walk(self._opened(), position, self.size_bytes, check_crcs=check_crcs, pass_over_damage=True)

    def begin_reindex(self) -> None:
        """Empties the indexes: every batch will be noted anew."""
        self.offset_index.reset()
        self.time_index.reset()
        self._forget_notes()
        self.end_offset = self.base_offset

    def position_of(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends at or above `offset`; None where there is none.

        Raises `CorruptBatchError`, `OSError`."""
        self._check_indexes()
        start = self.offset_index.lookup(offset)
        try:
            return self._find(start, offset)
        except CorruptBatchError:
            if start == 0:
                raise
        # The entry does not lead to a batch: the index is wrong, or the batch damaged. A walk from the start tells.
        self.rebuild_indexes()
        return self._find(self.offset_index.lookup(offset), offset)

    def _find(self, start: int, offset: int) -> tuple[int, BatchHeader] | None:
        first, expected = True, self.base_offset
        for position, header in walk(self._opened(), start, self.size_bytes, chunk_bytes=LOOKUP_BYTES):
            if first and start and header.base_offset > offset:
                raise CorruptBatchError(start, f"the index leads to offset {header.base_offset} for {offset}")
            if header.base_offset < expected:  # it is not under the CRC
                raise CorruptBatchError(position, f"base offset {header.base_offset}, the log goes on at {expected}")
            first, expected = False, header.next_offset
            if header.last_offset >= offset:
                return position, header
        return None

    def opened_file(self) -> Descriptor:
        """For a `read` that follows: it stays open, whatever becomes of the segment. Raises `OSError`."""
        return self._opened()

    def read(self, position: int, max_bytes: int, max_offset: int, file: Descriptor | None = None) -> bytes:
        """Whole batches from `position` on, at least one, below `max_offset` and up to `max_bytes`; their CRCs have
        been checked (invariant 7). Batches behind a damaged one are not returned; a damaged first one raises.

        Raises `CorruptBatchError`, `OSError`."""
        file, available = file or self._opened(), self.size_bytes - position
        content = os.pread(file.number, min(max(max_bytes, LOOKUP_BYTES), available), position)
        end = 0
        try:
            first = read_header(content)
            if len(content) < first.size_bytes <= available:
                content = os.pread(file.number, first.size_bytes, position)
            for inside, header in iter_batches(content, partial_ok=True):
                after = inside + header.size_bytes
                if inside and (header.base_offset >= max_offset or after > max_bytes):
                    break
                verify(content, inside, header)
                end = after
        except CorruptBatchError as error:
            if end == 0:
                raise CorruptBatchError(position, error.reason) from None
        if end == 0:
            raise CorruptBatchError(position, f"truncated: {len(content)} of {first.size_bytes} bytes")
        return content if end == len(content) else content[:end]

    def batch_at(self, position: int, header: BatchHeader) -> bytes:
        """One whole batch, its CRC checked. Raises `CorruptBatchError`, `OSError`."""
        file = self._opened()
        content = os.pread(file.number, header.size_bytes, position)
        try:
            verify(content, 0, header)
        except CorruptBatchError as error:
            raise CorruptBatchError(position, error.reason) from None
        return content

    def first_at_or_after(self, timestamp: int) -> Iterator[tuple[int, BatchHeader]]:
        """The batches whose largest timestamp is at or above `timestamp`, in order. Raises `CorruptBatchError`,
        `OSError`."""
        if self.max_timestamp < timestamp:
            return
        self._check_indexes()
        found = self.position_of(self.time_index.offset_before(timestamp))
        if found is None:
            return
        for position, header in walk(self._opened(), found[0], self.size_bytes, chunk_bytes=LOOKUP_BYTES):
            if header.max_timestamp >= timestamp:
                yield position, header

    def indexed_below(self, offset: int) -> tuple[int, int]:
        """Of the batches that end below `offset`, as far as the indexes tell: their largest timestamp (`NO_TIMESTAMP`
        where they tell none), and the position from which on the others stand. Raises `CorruptBatchError`,
        `OSError`."""
        self._check_indexes()
        last_offset, position = self.offset_index.entry_at_or_below(offset - 1)
        return self.time_index.timestamp_up_to(last_offset), position

    # -- files --------------------------------------------------------------------------------------------------------

    def paths(self) -> tuple[Path, Path, Path]:
        return self.path, self.offset_index.path, self.time_index.path

    def mark_deleted(self) -> list[Path]:
        """Renames the files to `.deleted`; the new paths, to be removed later. Raises `OSError`."""
        self.released = True
        return mark_deleted(self.paths())

    def change_suffix(self, present: str, wanted: str) -> None:
        """Renames the files, whose names end with `present`. Nothing may write to them meanwhile. Raises `OSError`."""
        targets = [path.with_name(path.name.removesuffix(present) + wanted) for path in self.paths()]
        rename(self.paths(), targets)
        self.path, self.offset_index.path, self.time_index.path = targets

    def move_to(self, directory: Path) -> None:
        """Takes note that the directory has been renamed."""
        self.path, self.offset_index.path, self.time_index.path = (directory / path.name for path in self.paths())

    def remove(self) -> None:
        """Raises `OSError`."""
        for path in self.paths():
            path.unlink(missing_ok=True)
