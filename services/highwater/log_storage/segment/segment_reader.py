"""A segment's file, read beside everything else that is done with it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.walk import DamagedBatch, WalkedBatch, walk


class SegmentReader:
    """The segment as it is when this is made, through a descriptor of its own: it opens the file that has the name now,
    and leaves none open behind it. Closed when nobody refers to it any more."""

    def __init__(self, segment: Segment) -> None:
        """`open` before anything is read."""
        self.path = segment.path
        self.base_offset = segment.base_offset
        self.end_offset = segment.end_offset
        self.size_bytes = segment.size_bytes
        self._file: Descriptor | None = None

    def open(self) -> None:
        """Raises `OSError`."""
        self._file = Descriptor(self.path, os.O_RDONLY)

    @property
    def _opened(self) -> Descriptor:
        assert self._file is not None
        return self._file

    def batches_and_damage(self, position: int, *, check_crcs: bool) -> Iterator[WalkedBatch | DamagedBatch]:
        """The batches from `position` on, damaged ones among them. Raises `OSError`."""
        return walk(self._opened, position, self.size_bytes, check_crcs=check_crcs, pass_over_damage=True)

    def let_go_of_cache(self, position: int, size_bytes: int) -> None:
        """Lets go of the page cache: what is read there next comes from the disk. Raises `OSError`."""
        os.posix_fadvise(self._opened.number, position, size_bytes, os.POSIX_FADV_DONTNEED)
