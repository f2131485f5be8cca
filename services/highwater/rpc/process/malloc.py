"""The C allocator's settings for a process that moves large messages."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

KEPT_BYTES = 64 << 20
"""What the heap may keep of freed memory."""


def keep_freed_memory() -> None:
    """Lets the heap keep up to 64 MiB of what is freed, instead of giving it back to the kernel message by message: a
    page that comes back has to be cleared and mapped again, 10-20 % of the CPU of a fetcher and a replica-manager with
    250 KB messages. Does nothing where the C library is not glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, 1 << 20)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
