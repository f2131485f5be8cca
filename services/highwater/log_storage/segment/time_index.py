"""`<base offset>.timeindex`: where in the segment to begin looking for a timestamp. Kafka's layout, 12 bytes an entry:

int64  largest timestamp so far in the segment, ms since the epoch
int32  last offset of the first batch that reached it, relative to the segment's base offset
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar

import numpy as np

from highwater.log_storage.segment.index_file import IndexFile


class TimeIndex(IndexFile):
    """Sparse, written together with the offset index, and at roll and close with the segment's largest timestamp.
    Timestamps strictly increase, offsets do not decrease."""

    layout: ClassVar[struct.Struct] = struct.Struct(">qi")
    dtype: ClassVar[np.dtype[np.void]] = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

    __slots__ = ("base_offset",)

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, max_bytes)
        self.base_offset = base_offset

    def append(self, timestamp: int, last_offset: int) -> None:
        """Unless the timestamp is not above the last entry's."""
        last = self.last()
        if last is None or timestamp > last[0]:
            self._append(timestamp, last_offset - self.base_offset)

    def offset_before(self, timestamp: int) -> int:
        """An offset with nothing at or after `timestamp` in front of its batch: the last entry's below it, else the
        segment's base offset."""
        found = self._at_or_below(timestamp - 1)
        return self.base_offset if found is None else self.base_offset + found[1]

    def timestamp_up_to(self, offset: int) -> int:
        """Of the last entry whose batch ends at or below `offset`; -1 where there is none. Raises `OSError`."""
        entries = self.columns()
        count = int(np.searchsorted(entries["relative_offset"], offset - self.base_offset, side="right"))
        return int(entries["timestamp"][count - 1]) if count else -1

    def last(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry. Raises `OSError`, `FileNotFoundError` where it has not been loaded."""
        entry = self._last()
        return None if entry is None else (entry[0], self.base_offset + entry[1])

    def valid(self, end_offset: int) -> bool:
        """Tells whether the entries can be those of a segment that ends at this offset."""
        entries = self.columns()
        if not len(entries):
            return True
        timestamps, offsets = entries["timestamp"], entries["relative_offset"]
        return bool(
            offsets[0] >= 0
            and self.base_offset + int(offsets[-1]) < end_offset
            and np.all(timestamps[1:] > timestamps[:-1])
            and np.all(offsets[1:] >= offsets[:-1])
        )

    def truncate(self, offset: int) -> None:
        """Keeps the entries of batches below `offset`."""
        offsets = self.columns()["relative_offset"]
        self._keep(int(np.searchsorted(offsets, offset - self.base_offset, side="left")))
