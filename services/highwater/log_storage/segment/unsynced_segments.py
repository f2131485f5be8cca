"""The sealed segments that are not on disk yet: their files stay open until they are synced, so a bounded number waits
for that."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highwater.log_storage.segment.segment import Segment

# Of what the process may have open. Each of these has one file open: the kernel tells of what it could not write to
# those who have the file open, so it cannot be closed to be opened again for the sync.
_SHARE = 5


class UnsyncedSegments:
    """A count, and a bound to it: where there is no room logs do not roll. Used from any thread. It keeps no removed
    segment."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._changing = threading.Lock()
        self._segments: weakref.WeakSet[Segment] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def room(self) -> bool:
        return len(self._segments) < self.limit

    def add(self, segment: Segment) -> None:
        """Takes one that nothing more is written to."""
        with self._changing:
            self._segments.add(segment)

    def discard(self, segment: Segment) -> None:
        """Lets go of one that has been synced, or that is written to again."""
        with self._changing:
            self._segments.discard(segment)

    def allow(self, descriptors: int) -> None:
        """Sets the limit by how many the process may have open; below 0: as many as it likes."""
        self.limit = max(1, descriptors // _SHARE) if descriptors >= 0 else 2**31 - 1


# The process's, as descriptors are.
unsynced_segments = UnsyncedSegments(limit=200)
