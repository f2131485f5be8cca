"""What the offset index and the time index share: a sorted array of fixed-size big-endian entries.

Entries are appended in memory and written out when the segment is flushed, rolled or closed: an index can always be
made again from its segment, and is after an unclean stop (recovery.py).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt


class IndexFile:
    """One index. An index whose file has not been looked at yet is read when it is first used."""

    layout: ClassVar[struct.Struct]
    dtype: ClassVar[np.dtype[np.void]]

    __slots__ = ("_entries", "_written_bytes", "max_entries", "path")

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_entries = max_bytes // self.layout.size
        self._entries: bytearray | None = None
        self._written_bytes = 0

    @property
    def full(self) -> bool:
        return len(self) >= self.max_entries

    def __len__(self) -> int:
        return len(self._loaded()) // self.layout.size

    def entry(self, number: int) -> tuple[int, int]:
        first, second = self.layout.unpack_from(self._loaded(), number * self.layout.size)
        return first, second

    def columns(self) -> npt.NDArray[np.void]:
        """All entries as a structured array with the fields of `dtype`: a copy."""
        return np.frombuffer(bytes(self._loaded()), dtype=self.dtype)

    def load(self) -> bool:
        """Reads the file. Whether there was one of a whole number of entries; else the index is empty now."""
        self._entries = bytearray()
        self._written_bytes = 0
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return False
        if len(content) % self.layout.size:
            return False
        self._entries += content
        self._written_bytes = len(content)
        return True

    def reset(self) -> None:
        """Empties the index, to be made again."""
        self._entries = bytearray()
        self._written_bytes = 0
        self.path.unlink(missing_ok=True)

    def write_out(self, *, durable: bool = False) -> None:
        """Brings the file up to the entries in memory. Raises `OSError`; the index in memory stays good."""
        if self._entries is None or (len(self._entries) == self._written_bytes and self.path.exists() and not durable):
            return
        # A flush runs in a thread while the loop appends: what is written is what was there when it began.
        start, end = self._written_bytes, len(self._entries)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, start)
            written = os.pwrite(descriptor, self._entries[start:end], start)
            if written != end - start:
                raise OSError(f"wrote {written} of {end - start} bytes to {self.path}")
            if durable:
                os.fsync(descriptor)
            self._written_bytes = end
        finally:
            os.close(descriptor)

    def _append(self, first: int, second: int) -> None:
        entries = self._loaded()
        entries += self.layout.pack(first, second)

    def _keep(self, count: int) -> None:
        """Drops all but the first `count` entries."""
        entries = self._loaded()
        del entries[count * self.layout.size :]
        if self._written_bytes > len(entries):
            self._written_bytes = len(entries)
            os.truncate(self.path, len(entries))

    def _loaded(self) -> bytearray:
        if self._entries is None:
            self.load()
            assert self._entries is not None
        return self._entries

    def _search(self, first: int) -> int:
        """Number of the last entry whose first field is at or below `first`, -1 where there is none."""
        entries = self._loaded()
        unpack, size = self.layout.unpack_from, self.layout.size
        low, high = 0, len(entries) // size
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * size)[0] <= first:
                low = middle + 1
            else:
                high = middle
        return low - 1
