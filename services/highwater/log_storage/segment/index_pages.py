"""An index that stays on disk: the first entry of each of its pages is in memory, so that a search reads one page."""

from __future__ import annotations

import os
import struct

import numpy as np

from highwater.log_storage.files.descriptor import Descriptor

PAGE_BYTES = 4096


class IndexPages:
    """`entries` entries of an open index file, which does not change any more.

    An entry that lies across two pages is kept in memory itself."""

    __slots__ = ("_file", "_first", "_layout", "_numbers", "_second", "entries")

    def __init__(self, file: Descriptor, dtype: np.dtype[np.void], layout: struct.Struct) -> None:
        """Reads the file once, to its last whole entry. Raises `OSError`."""
        self._file = file
        self._layout = layout
        self.entries = file.size_bytes // layout.size
        content = np.frombuffer(self.content(), dtype=dtype)
        starts = np.arange(0, self.entries * layout.size, PAGE_BYTES)
        self._numbers = np.unique(np.concatenate((starts // layout.size, -(-starts // layout.size))))
        self._numbers = self._numbers[self._numbers < self.entries]
        first, second = dtype.names or ()
        self._first = content[first][self._numbers].astype(np.int64)
        self._second = content[second][self._numbers].astype(np.int64)

    def content(self) -> bytes:
        """All entries. Raises `OSError`."""
        wanted = self.entries * self._layout.size
        content = os.pread(self._file.number, wanted, 0)
        if len(content) < wanted:
            raise OSError(f"an index has {len(content)} of {wanted} bytes")
        return content

    def entry(self, number: int) -> tuple[int, int]:
        """Raises `OSError`."""
        content = os.pread(self._file.number, self._layout.size, number * self._layout.size)
        first, second = self._layout.unpack(content)
        return first, second

    def at_or_below(self, first: int) -> tuple[int, int] | None:
        """The last entry whose first field is at or below `first`. Raises `OSError`."""
        held = int(np.searchsorted(self._first, first, side="right")) - 1
        if held < 0:
            return None
        start = int(self._numbers[held])
        end = int(self._numbers[held + 1]) if held + 1 < len(self._numbers) else self.entries
        if end - start == 1:
            return int(self._first[held]), int(self._second[held])
        size = self._layout.size
        content = os.pread(self._file.number, (end - start) * size, start * size)
        number = search(content, self._layout, first)
        found, second = self._layout.unpack_from(content, number * size)
        return found, second


def search(entries: bytes | bytearray, layout: struct.Struct, first: int) -> int:
    """Number of the last entry whose first field is at or below `first`, -1 where there is none."""
    unpack, size = layout.unpack_from, layout.size
    low, high = 0, len(entries) // size
    while low < high:
        middle = (low + high) // 2
        if unpack(entries, middle * size)[0] <= first:
            low = middle + 1
        else:
            high = middle
    return low - 1
