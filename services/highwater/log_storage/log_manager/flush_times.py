"""The logs that are not wholly on disk, by when `flush.ms` wants them to be. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from highwater.log_storage.log_manager.hosted_log import HostedLog


class FlushTimes:
    """A heap by time. Invariant: a log that was noted, and is not wholly on disk, has an entry at the time when its
    flush is due or earlier, that of `_noted_ms`; its other entries are void, and are dropped when they are met or are
    the most."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, HostedLog]] = []
        self._noted_ms: dict[HostedLog, int] = {}
        self._pushed = 0  # makes the order of equals that of their coming

    def note(self, hosted: HostedLog) -> None:
        """After whatever may have brought its flush nearer."""
        due_ms = flush_due_ms(hosted)
        if due_ms is not None and due_ms < self._noted_ms.get(hosted, due_ms + 1):
            self._push(due_ms, hosted)
            if len(self._entries) > 64 + 2 * len(self._noted_ms):
                self._entries = [entry for entry in self._entries if self._noted_ms.get(entry[2]) == entry[0]]
                heapify(self._entries)

    def forget(self, hosted: HostedLog) -> None:
        """The log is gone."""
        self._noted_ms.pop(hosted, None)

    def due(self, now_ms: int) -> list[HostedLog]:
        """Returns those to be flushed by now, longest due first. Each stays noted until it is met and need not be."""
        found: dict[HostedLog, int] = {}
        while self._entries and self._entries[0][0] <= now_ms:
            noted_ms, _, hosted = heappop(self._entries)
            if noted_ms != self._noted_ms.get(hosted):
                continue
            del self._noted_ms[hosted]
            due_ms = flush_due_ms(hosted)
            if due_ms is not None and due_ms <= now_ms:
                found[hosted] = due_ms
            elif due_ms is not None:
                self._push(due_ms, hosted)
        for hosted, due_ms in found.items():
            self._push(due_ms, hosted)
        return list(found)

    def _push(self, due_ms: int, hosted: HostedLog) -> None:
        self._noted_ms[hosted] = due_ms
        self._pushed += 1
        heappush(self._entries, (due_ms, self._pushed, hosted))


def flush_due_ms(hosted: HostedLog) -> int | None:
    """The monotonic time, in ms, at which `flush.ms` wants the log flushed; None where all of it is on disk, or it is
    offline, which it stays until the next start."""
    log = hosted.log
    if log is None or log.offsets.synced_offset == log.offsets.log_end_offset or hosted.offline_reason:
        return None
    return hosted.flushed_ms + log.config.flush_ms
