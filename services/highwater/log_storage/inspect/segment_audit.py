"""A walk over one segment of a replica: its batches in place, and what is damaged or missing of it below the high
watermark. Files are opened for reading only and may grow, or go, meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from highwater.log_storage.segment.walk import WalkedBatch, checked_batches

__all__ = ["Damage", "Damaged", "SegmentTask", "WalkedBatch", "walk_open_segment", "walk_segment"]


class Damage(StrEnum):
    CORRUPT = "corrupt"  # it is there, and is not what was written
    MISSING = "missing"  # it is not there
    DIFFERS = "differs"  # it is whole, and not what other replicas have


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """What is known of a segment before it is read. Batches are judged that end above `log_start_offset` and at or
    below `high_watermark`; what is outside may be deleted, or half written."""

    path: str
    base_offset: int
    until: int | None  # where the next segment begins; None: this is the last
    log_start_offset: int
    high_watermark: int
    compacted_to: int = 0  # compaction may have left gaps below
    size_bytes: int = 0  # when it was listed

    @property
    def end(self) -> int:
        """How far the segment has to go."""
        return self.high_watermark if self.until is None else min(self.until, self.high_watermark)


@dataclass(frozen=True, slots=True)
class Damaged:
    """Offsets `first` to `last` of a segment, and what is wrong with them."""

    kind: Damage
    first: int
    last: int
    problem: str


def walk_segment(task: SegmentTask) -> Iterator[WalkedBatch | Damaged]:
    """The judged batches in order, and between them what is wrong. Raises `OSError` where the file cannot be opened."""
    try:
        descriptor = os.open(task.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield from _Walk(task).gap(task.end, "the segment's file is gone")
        return
    try:
        yield from walk_open_segment(task, descriptor)
    finally:
        os.close(descriptor)


def walk_open_segment(task: SegmentTask, descriptor: int) -> Iterator[WalkedBatch | Damaged]:
    """The same of a file that the caller has opened. What the disk does not give back is corrupt."""
    walk = _Walk(task)
    try:
        yield from walk.over(descriptor, os.fstat(descriptor).st_size)
    except OSError as error:
        yield from walk.unreadable(error)


class _Walk:
    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._next = task.base_offset
        self._broken = ""  # a damaged batch whose header says nothing that can be believed

    def over(self, descriptor: int, size: int) -> Iterator[WalkedBatch | Damaged]:
        task = self._task
        for batch in checked_batches(descriptor, size):
            where = f"position {batch.position}"
            header = batch.header
            if header is None:
                self._broken = f"{where}: {batch.problem}; nothing behind it can be read"
                break
            if batch.problem:
                if header.base_offset == self._next and self._next < header.next_offset <= (task.until or task.end):
                    yield from self._damaged(header.next_offset, f"{where}: {batch.problem}")
                else:
                    self._broken = self._broken or f"{where}: {batch.problem}"
                continue
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
                yield WalkedBatch(batch.position, header)
        yield from self.gap(task.end, f"the file ends after {size} bytes")

    def unreadable(self, error: OSError) -> Iterator[Damaged]:
        yield from self._damaged(self._task.end, f"the file cannot be read: {error.strerror}")

    def gap(self, offset: int, problem: str) -> Iterator[Damaged]:
        """What lies between the batches so far and `offset`."""
        if self._broken:
            yield from self._damaged(offset, self._broken)
            self._broken = ""
        first = max(self._next, self._task.log_start_offset, self._task.compacted_to)
        if first < offset:
            yield Damaged(Damage.MISSING, first, offset - 1, problem)
        self._next = max(self._next, offset)

    def _damaged(self, offset: int, problem: str) -> Iterator[Damaged]:
        """Up to `offset` there is something, and it is not what was written."""
        task = self._task
        first, last = max(self._next, task.log_start_offset), min(offset, task.end) - 1
        if first <= last:
            yield Damaged(Damage.CORRUPT, first, last, problem)
        self._next = max(self._next, offset)
