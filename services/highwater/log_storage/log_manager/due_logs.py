"""The logs of which something is due, or will be by time: log-storage's rounds look at these alone, however many others
there are.

Whoever changes a log says so (`touch`); the next round finds out what that makes due. A log leaves when a round has
looked at it and found nothing: what fails, or is cut short, is due in the next one still.
"""

from __future__ import annotations

from collections import deque

from highwater.log_storage.log_manager.flush_times import FlushTimes
from highwater.log_storage.log_manager.hosted_log import HostedLog


class DueLogs:
    """Invariant: a log of which something is due is noted for that, or is touched. `touch` may be called from any
    thread, everything else in the event loop, where nobody changes a log that is not `busy` but by appends and under
    its `maintenance`."""

    def __init__(self) -> None:
        self._touched: deque[HostedLog] = deque()
        self._flush_times = FlushTimes()
        # In the order of their coming.
        self._with_chores: dict[HostedLog, None] = {}
        self._unfiled: dict[HostedLog, None] = {}

    def touch(self, hosted: HostedLog) -> None:
        """Something of the log changes: its end, its segments, what of it is on disk, its configuration, or where it
        is. To be called after the change, but for one in this turn of the event loop, or by whoever has the log
        `alone`."""
        if not hosted.touched:
            hosted.touched = True
            self._touched.append(hosted)

    def to_flush(self, now_ms: int) -> list[HostedLog]:
        """Returns those to which `flush.ms` is over at `now_ms` (monotonic)."""
        self._note_touched()
        return self._flush_times.due(now_ms)

    def with_chores(self) -> list[HostedLog]:
        """Returns those that have `chores`, and that nobody has alone."""
        self._note_touched()
        for hosted in [each for each in self._with_chores if not each.busy and not has_chores(each)]:
            del self._with_chores[hosted]
        return [hosted for hosted in self._with_chores if not hosted.busy]

    def with_high_watermark(self) -> list[tuple[HostedLog, int]]:
        """Returns those whose high watermark is another than in the checkpoint, with the one to be written."""
        self._note_touched()
        found = []
        for hosted in list(self._unfiled):
            high_watermark = unfiled_high_watermark(hosted)
            if high_watermark is None:
                del self._unfiled[hosted]
            else:
                found.append((hosted, high_watermark))
        return found

    def look_at(self, hosted: HostedLog) -> None:
        """Finds out what is due of a log that nobody has alone, touched or not."""
        if hosted.log is None:
            self._flush_times.forget(hosted)
            return
        self._flush_times.note(hosted)
        if has_chores(hosted):
            self._with_chores[hosted] = None
        if unfiled_high_watermark(hosted) is not None:
            self._unfiled[hosted] = None

    def _note_touched(self) -> None:
        for _ in range(len(self._touched)):
            hosted = self._touched.popleft()
            if hosted.busy:  # a thread changes it: while it is cut it may have no segment
                self._touched.append(hosted)
                continue
            hosted.touched = False  # first: what changes from here on touches it again
            self.look_at(hosted)


def has_chores(hosted: HostedLog) -> bool:
    """Tells whether segments that the log has let go of are to be removed, or one that was rolled is to be flushed. Not
    where the log is offline, which it stays until the next start. Nobody has the log alone."""
    log = hosted.log
    if log is None or hosted.offline_reason:
        return False
    return bool(log.segment_list.removable) or log.flusher.rolled


def unfiled_high_watermark(hosted: HostedLog) -> int | None:
    """The high watermark to be written; None where the checkpoint has it, or never will."""
    log = hosted.log
    if log is None or hosted.log_dir.offline:
        return None
    high_watermark = log.high_watermark_to_checkpoint
    return None if high_watermark == hosted.high_watermark_written else high_watermark
