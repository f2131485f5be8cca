"""The hosted partitions of which time changes something, by when: a tick looks at these alone.

Pure. What changes by an event is told to its partition by whoever brings the event.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from highwater.replica_manager.partition.actions import FAR_MS
from highwater.replica_manager.replicas.hosted_partition import HostedPartition


class DuePartitions:
    """A heap by time. Invariant: a partition with a `tick_from_ms` before FAR_MS has an entry at that time or earlier,
    which is its `due_ms`; other entries of it are void, and are dropped when they are met or are the most."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, HostedPartition]] = []
        self._pushed = 0  # makes the order of equals that of their coming
        self._valid = 0

    def note(self, hosted: HostedPartition) -> None:
        """After each event of the partition. Costs a comparison where its time has not come nearer."""
        due_ms = hosted.partition.tick_from_ms
        if due_ms >= hosted.due_ms:
            return
        self._valid += hosted.due_ms == FAR_MS
        hosted.due_ms = due_ms
        self._pushed += 1
        heappush(self._entries, (due_ms, self._pushed, hosted))
        if len(self._entries) > 64 + 2 * self._valid:
            self._entries = [entry for entry in self._entries if entry[0] == entry[2].due_ms]
            heapify(self._entries)

    def take(self, now_ms: int) -> list[HostedPartition]:
        """Returns those whose time has come, by time; they are to be noted again once they are ticked."""
        due = []
        while self._entries and self._entries[0][0] <= now_ms:
            due_ms, _, hosted = heappop(self._entries)
            if due_ms == hosted.due_ms:
                hosted.due_ms = FAR_MS
                self._valid -= 1
                due.append(hosted)
        return due
