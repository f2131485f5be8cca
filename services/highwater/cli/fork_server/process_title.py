"""The command line that `ps` and `top` show of this process: it stands in its memory, where it may write another."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

ROOM = " " * 4096
"""An argument of whatever is to `show` more than its own: the new line takes the place of its arguments. The kernel
reads no more than a page of it."""
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46  # of the fields after the name


def show(command: Sequence[str]) -> None:
    """Does nothing where the kernel does not tell where the arguments are."""
    with contextlib.suppress(OSError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
        room = end - begin
        if room:
            line = b" ".join(map(os.fsencode, command))[: room - 1]
            # By the last byte, which is no 0, the kernel sees that this is one line, which ends at the first 0.
            ctypes.memmove(begin, line.ljust(room - 1, b"\0") + b" ", room)
