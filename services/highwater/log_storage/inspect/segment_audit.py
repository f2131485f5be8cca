"""Audits one segment of a replica: its batches in place, and what is damaged or missing of it below the high watermark.
The file is opened for reading only and may grow, or go, meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.damage import Damage, DamagedRange
from highwater.log_storage.segment.walk import DamagedBatch, WalkedBatch, walk

__all__ = ["Damage", "DamagedRange", "Descriptor", "SegmentTask", "WalkedBatch", "audit_open_segment", "audit_segment"]


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """The facts of a segment that are known before it is read. Batches are judged that end above `log_start_offset` and
    at or below `high_watermark`; what is outside may be deleted, or half written."""

    path: str
    base_offset: int
    until: int | None  # where the next segment begins; None: this is the last
    log_start_offset: int
    high_watermark: int
    compacted_to: int = 0  # compaction may have left gaps below
    size_bytes: int = 0  # when it was listed

    @property
    def end(self) -> int:
        """The offset up to which the segment has to go."""
        return self.high_watermark if self.until is None else min(self.until, self.high_watermark)


def audit_segment(task: SegmentTask) -> Iterator[WalkedBatch | DamagedRange]:
    """Yields the judged batches in order, and between them what is wrong: behind a batch that cannot be believed the
    next one in its place counts again, for all of it is read anyhow (a log-storage that meets one gives up the rest of
    the segment, `check_segment`). Raises `OSError` where the file cannot be opened."""
    try:
        file = Descriptor(Path(task.path), os.O_RDONLY)
    except FileNotFoundError:
        yield from _Audit(task).gap(task.end, "the segment's file is gone")
        return
    yield from audit_open_segment(task, file)


def audit_open_segment(task: SegmentTask, file: Descriptor) -> Iterator[WalkedBatch | DamagedRange]:
    """Yields the same of a file that the caller has opened. What the disk does not give back is corrupt."""
    audit = _Audit(task)
    try:
        yield from audit.over(file, file.size_bytes)
    except OSError as error:
        yield from audit.unreadable(error)


class _Audit:
    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._next = task.base_offset
        self._broken = ""  # a damaged batch whose header says nothing that can be believed

    def over(self, file: Descriptor, size: int) -> Iterator[WalkedBatch | DamagedRange]:
        task = self._task
        for found in walk(file, 0, size, check_crcs=True, pass_over_damage=True):
            where = f"position {found.position}"
            header = found.header
            if isinstance(found, DamagedBatch):
                if header is None:
                    self._broken = f"{where}: {found.problem}; nothing behind it can be read"
                    break
                if header.base_offset == self._next and self._next < header.next_offset <= (task.until or task.end):
                    yield from self._damaged(header.next_offset, f"{where}: {found.problem}")
                else:
                    self._broken = self._broken or f"{where}: {found.problem}"
                continue
            header = found.header
            if header.base_offset < self._next or header.next_offset > (task.until or header.next_offset):
                self._broken = f"{where}: base offset {header.base_offset}, where the log goes on at {self._next}"
                continue
            if header.next_offset > task.high_watermark:
                # What is not committed is nobody's loss. A gap in front of it may be.
                yield from self.gap(min(header.base_offset, task.end), f"{where}: {header.base_offset} comes next")
                self._next = max(self._next, header.next_offset)
                return
            yield from self.gap(header.base_offset, f"{where}: {header.base_offset} comes next")
            self._next = header.next_offset
            if header.next_offset > task.log_start_offset:
                yield found
        yield from self.gap(task.end, f"the file ends after {size} bytes")

    def unreadable(self, error: OSError) -> Iterator[DamagedRange]:
        yield from self._damaged(self._task.end, f"the file cannot be read: {error.strerror}")

    def gap(self, offset: int, problem: str) -> Iterator[DamagedRange]:
        """Yields what lies between the batches so far and `offset`."""
        if self._broken:
            yield from self._damaged(offset, self._broken)
            self._broken = ""
        first = max(self._next, self._task.log_start_offset, self._task.compacted_to)
        if first < offset:
            yield DamagedRange(first, offset - 1, problem, Damage.MISSING)
        self._next = max(self._next, offset)

    def _damaged(self, offset: int, problem: str) -> Iterator[DamagedRange]:
        """Up to `offset` there is something, and it is not what was written."""
        task = self._task
        first, last = max(self._next, task.log_start_offset), min(offset, task.end) - 1
        if first <= last:
            yield DamagedRange(first, last, problem)
        self._next = max(self._next, offset)
