"""`<base offset>.index`: where in the segment to begin looking for an offset. Kafka's layout, 8 bytes an entry:

int32  offset of a batch's last record, relative to the segment's base offset
int32  position of that batch in the segment
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar

import numpy as np

from highwater.log_storage.segment.index_file import IndexFile

MAX_RELATIVE_OFFSET = 2**31 - 1


class OffsetIndex(IndexFile):
    """Sparse: an entry every `index.interval.bytes`. Offsets and positions both strictly increase."""

    layout: ClassVar[struct.Struct] = struct.Struct(">ii")
    dtype: ClassVar[np.dtype[np.void]] = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])

    __slots__ = ("base_offset",)

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, max_bytes)
        self.base_offset = base_offset

    def append(self, last_offset: int, position: int) -> None:
        self._append(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`: of the last entry at or below it, else 0."""
        found = self._at_or_below(offset - self.base_offset)
        return 0 if found is None else found[1]

    def entry_at_or_below(self, offset: int) -> tuple[int, int]:
        """(last offset, position) of the last entry at or below `offset`; what is in front of the first batch where
        there is none. Raises `OSError`."""
        found = self._at_or_below(offset - self.base_offset)
        return (self.base_offset - 1, 0) if found is None else (self.base_offset + found[0], found[1])

    def last(self) -> tuple[int, int] | None:
        """(last offset, position) of the last entry. Raises `OSError`, `FileNotFoundError` where it has not been
        loaded."""
        entry = self._last()
        return None if entry is None else (self.base_offset + entry[0], entry[1])

    def valid(self, segment_bytes: int) -> bool:
        """Tells whether the entries can be those of a segment of this size: a zeroed or torn one is found here."""
        entries = self.columns()
        if not len(entries):
            return True
        offsets, positions = entries["relative_offset"], entries["position"]
        return bool(
            offsets[0] >= 0
            and positions[0] > 0
            and positions[-1] < segment_bytes
            and np.all(offsets[1:] > offsets[:-1])
            and np.all(positions[1:] > positions[:-1])
        )

    def truncate(self, position: int) -> None:
        """Keeps the entries of batches that start before `position`."""
        positions = self.columns()["position"]
        self._keep(int(np.searchsorted(positions, position, side="left")))
