"""The part that the offset index and the time index share: a sorted array of fixed-size big-endian entries.

Entries are appended in memory and written out when the segment is flushed, rolled or closed: an index can always be
made again from its segment, and is after an unclean stop (recovery.py). One that is not appended to is left on disk
(index_pages.py).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.index_pages import IndexPages, search
from highwater.records import HEADER_BYTES

# Of the batches of a segment of 2 GiB each at most, and the largest timestamp at its end.
_MOST_ENTRIES = 2**31 // HEADER_BYTES + 1


class IndexFile:
    """One index: in memory (`_entries`), on disk (`_pages`), or not looked at yet."""

    layout: ClassVar[struct.Struct]
    dtype: ClassVar[np.dtype[np.void]]

    __slots__ = ("_entries", "_pages", "_written_bytes", "max_entries", "path")

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_entries = max_bytes // self.layout.size
        self._entries: bytearray | None = None
        self._pages: IndexPages | None = None
        self._written_bytes = 0

    @property
    def full(self) -> bool:
        return len(self) >= self.max_entries

    def __len__(self) -> int:
        held = self._held()
        return held.entries if isinstance(held, IndexPages) else len(held) // self.layout.size

    def entry(self, number: int) -> tuple[int, int]:
        """Raises `OSError`."""
        held = self._held()
        if isinstance(held, IndexPages):
            return held.entry(number)
        first, second = self.layout.unpack_from(held, number * self.layout.size)
        return first, second

    def columns(self) -> npt.NDArray[np.void]:
        """All entries as a structured array with the fields of `dtype`: a copy. Raises `OSError`."""
        return np.frombuffer(self._content(), dtype=self.dtype)

    def _last(self) -> tuple[int, int] | None:
        """The last entry; of an index that has not been loaded it is all that is read. Raises `OSError`,
        `FileNotFoundError` only then."""
        if self._entries is None and self._pages is None:
            file = Descriptor(self.path, os.O_RDONLY)
            count = file.size_bytes // self.layout.size
            content = os.pread(file.number, self.layout.size, (count - 1) * self.layout.size) if count else b""
            first, second = self.layout.unpack(content) if count else (0, 0)
            return (first, second) if count else None
        count = len(self)
        return self.entry(count - 1) if count else None

    def load(self) -> bool:
        """Opens the file. Whether there is one of a whole number of entries, and no more than a segment can have; else
        the index is empty now."""
        return isinstance(self._open(), IndexPages)

    def _open(self) -> bytearray | IndexPages:
        try:
            file = Descriptor(self.path, os.O_RDONLY)
            size = file.size_bytes
        except FileNotFoundError:
            size = -1
        if size < 0 or size % self.layout.size or size > _MOST_ENTRIES * self.layout.size:
            self._entries, self._pages, self._written_bytes = (empty := bytearray()), None, 0
            return empty
        return self._take(file)

    def _take(self, file: Descriptor) -> IndexPages:
        # In this order: another thread that searches meanwhile finds one of the two.
        self._pages = pages = IndexPages(file, self.dtype, self.layout)
        self._written_bytes = pages.entries * self.layout.size
        self._entries = None
        return pages

    def close(self) -> None:
        """Lets go of the file, where the entries are on disk; it is opened again when it is used. Another thread may
        search it meanwhile."""
        if self._entries is None:
            self._pages = None

    def reset(self) -> None:
        """Empties the index, to be made again."""
        self._entries, self._pages, self._written_bytes = bytearray(), None, 0
        self.path.unlink(missing_ok=True)

    def write_out(self, *, sync: bool = False) -> None:
        """Brings the file up to the entries in memory. Raises `OSError`; the index in memory stays good."""
        entries = self._entries
        if entries is None or (len(entries) == self._written_bytes and self.path.exists() and not sync):
            return  # what was not changed since it was opened is on disk
        # A flush runs in a thread while the loop appends: what is written is what was there when it began.
        start, end = self._written_bytes, len(entries)
        file = Descriptor(self.path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(file.number, start)
        written = os.pwrite(file.number, entries[start:end], start)
        if written != end - start:
            raise OSError(f"wrote {written} of {end - start} bytes to {self.path}")
        if sync:
            os.fsync(file.number)
        self._written_bytes = end

    def release(self) -> None:
        """Leaves the entries on disk, once they have been written out and nothing more is appended. Raises
        `OSError`."""
        if self._entries is not None and len(self._entries) == self._written_bytes:
            self._take(Descriptor(self.path, os.O_RDONLY))

    def _append(self, first: int, second: int) -> None:
        entries = self._in_memory()
        entries += self.layout.pack(first, second)

    def _keep(self, count: int) -> None:
        """Drops all but the first `count` entries."""
        entries = self._in_memory()
        del entries[count * self.layout.size :]
        if self._written_bytes > len(entries):
            self._written_bytes = len(entries)
            os.truncate(self.path, len(entries))

    def _held(self) -> bytearray | IndexPages:
        """The entries where they are; read if they have not been."""
        entries = self._entries
        if entries is not None:
            return entries
        pages = self._pages  # in this order: see `_take`
        return self._open() if pages is None else pages

    def _content(self) -> bytes:
        held = self._held()
        return held.content() if isinstance(held, IndexPages) else bytes(held)

    def _in_memory(self) -> bytearray:
        if self._entries is None:
            self._entries = bytearray(self._content())
            self._pages = None
        return self._entries

    def _at_or_below(self, first: int) -> tuple[int, int] | None:
        """The last entry whose first field is at or below `first`. Raises `OSError`."""
        held = self._held()
        if isinstance(held, IndexPages):
            return held.at_or_below(first)
        number = search(held, self.layout, first)
        return self.entry(number) if number >= 0 else None
