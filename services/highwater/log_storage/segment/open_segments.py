"""The sealed segments that have files open: a bounded number of them, however many are read."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Protocol

MAX_OPEN = 10_000
# A segment that is read has three files open. Others are those of the active ones, of which each log has one
# (`log_creation.most_logs`), and of those that are to be synced (`unsynced_segments`).
_SHARE = 16


class SealedSegment(Protocol):
    def close_files(self) -> None:
        """Lets go of them until they are used again."""


class OpenSegments:
    """A bound: where there are too many, the one that was opened first is closed, be it read or not. To open it again
    costs some ten microseconds, and to keep an order of use would cost each read. Used from any thread. It keeps no
    removed segment."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._changing = threading.Lock()
        self._in_order: deque[weakref.ref[SealedSegment]] = deque()

    def opened(self, segment: SealedSegment) -> None:
        """Takes one whose files have been opened; it may be there already."""
        closing = []
        with self._changing:
            self._in_order.append(weakref.ref(segment))
            while len(self._in_order) > self.limit:
                closing.append(self._in_order.popleft())
        for first in closing:
            found = first()
            if found is not None and found is not segment:
                found.close_files()

    def allow(self, descriptors: int) -> None:
        """Sets the limit by how many the process may have open; below 0: as many as it likes."""
        self.limit = max(1, min(MAX_OPEN, descriptors // _SHARE)) if descriptors >= 0 else MAX_OPEN


# The process's, as descriptors are.
open_segments = OpenSegments(limit=128)
