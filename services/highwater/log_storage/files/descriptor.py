"""An open file, closed when nobody refers to it any more: who still reads a removed segment has it open."""

from __future__ import annotations

import os
from pathlib import Path

from highwater.atomic_file import OWNERS


class Descriptor:
    """Keep the object while `number` is in use: another thread may let go of its owner's."""

    __slots__ = ("number",)

    def __init__(self, path: Path, flags: int) -> None:
        """Raises `OSError`."""
        self.number = -1
        self.number = os.open(path, flags | os.O_CLOEXEC, OWNERS)

    @property
    def size_bytes(self) -> int:
        """Raises `OSError`."""
        return os.fstat(self.number).st_size

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)
