"""The segments of one log, and the files that go with one which joins or leaves it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log_context import LogContext
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import LOG_SUFFIX, OFFSET_GAPS, file_name
from highwater.records import BatchHeader


class SegmentList:
    """At least one, in the order of their offsets; the last one is active. Driven by the log's thread, but for what
    says that it may be called beside it."""

    def __init__(self, context: LogContext, segments: list[Segment], *, gaps: bool) -> None:
        assert segments
        self._context = context
        self.present = segments  # a thread may put another list in its place (`exchange`)
        self.changing = threading.Lock()  # held while a segment is taken into the log or out of it
        # While another thread renames the files of segments that have replaced others: those that the log lets go of,
        # which that thread then renames in their turn. None: at once.
        self._let_go_meanwhile: list[Segment] | None = None
        # Renamed to `.deleted`, to be removed. Another thread may add to it while it is taken from.
        self.removable: deque[Path] = deque()
        self._gaps = gaps
        self._names_synced = False  # of all segments' files, and of the mark of gaps

    @property
    def active(self) -> Segment:
        return self.present[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.present)

    def starting_with(self, offset: int) -> list[Segment]:
        """The one that holds the offset, and those behind it."""
        segments = self.present
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0) :]

    def up_to(self, offset: int) -> list[Segment]:
        """The segments below the one that holds the offset, and that one. May be called beside the log's thread."""
        with self.changing:  # other threads take segments out
            segments = self.present.copy()
        return segments[: max(bisect_right(segments, offset, key=_base_offset), 1)]

    def headers(self) -> Iterator[BatchHeader]:
        """Every batch of the log, oldest first. Raises `CorruptBatchError`, `OSError`."""
        for segment in self.present:
            for _, header in segment.headers(0):
                yield header

    # -- gaps between batches, and names on disk ----------------------------------------------------------------------

    @property
    def contiguous(self) -> bool:
        """Tells whether every offset from its first batch to its end has been written here: compaction has left no
        gaps. What is missing then has been lost."""
        return not self._gaps

    def note_gaps(self) -> None:
        """Before offsets are missing between two batches for the first time: recovery would take that for damage. On
        disk with the next sync. Raises `OSError`."""
        if not self._gaps:
            (self._context.directory / OFFSET_GAPS).touch()
            self._gaps = True
            self._names_synced = False

    def take_unsynced_directory(self) -> Path | None:
        """The directory, where its entries have changed since they were last on disk; the caller syncs it, or says that
        it has not. What is made from now on is for the next one."""
        directory = None if self._names_synced else self._context.directory
        self._names_synced = True
        return directory

    def names_are_not_synced(self) -> None:
        self._names_synced = False

    # -- joining ------------------------------------------------------------------------------------------------------

    def create(self, base_offset: int) -> Segment:
        """Makes the files of an empty segment, which is not in the log yet. Raises `OSError`; nothing is left of it
        then."""
        self._names_synced = False
        return new_segment(self._context.directory, base_offset, self._context.config)

    def append(self, segment: Segment) -> None:
        with self.changing:
            self.present.append(segment)

    def exchange(self, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Puts `new` in the place of `old`; False where one of these is not there any more. The files of what the log
        lets go of from now on are the caller's to rename, once `end_exchange` tells. May be called beside the log's
        thread."""
        with self.changing:
            place = self.present.index(old[0]) if old[0] in self.present else len(self.present)
            replaced = self.present[place:-1][: len(old)] == [*old]
            if replaced:
                new[0].producers_told, new[0].producers_kept = old[0].producers_told, old[0].producers_kept
                for segment in new:
                    segment.mark_sealed()
                # Another list: who walks over the present one beside this meets all of `old`.
                self.present = [*self.present[:place], *new, *self.present[place + len(old) :]]
                self._let_go_meanwhile = []
        return replaced

    def end_exchange(self) -> Sequence[Segment]:
        """Returns what the log has let go of since `exchange`. May be called beside the log's thread."""
        with self.changing:
            let_go, self._let_go_meanwhile = self._let_go_meanwhile, None
        return let_go or ()

    # -- leaving ------------------------------------------------------------------------------------------------------

    def undo_rolls(self, active: Segment) -> None:
        """Removes what was begun behind the segment that was active. Raises `OSError`."""
        with self.changing:
            while self.present[-1] is not active:
                self.present.pop().remove()
        active.mark_active()

    def remove_above(self, cut: int) -> None:
        """Removes the segments that begin at or above it, but for the first. Raises `OSError`."""
        # Newest first, so that a crash on the way leaves a prefix.
        while len(self.present) > 1 and self.present[-1].base_offset >= cut:
            self.present.pop().remove()

    def restart_at(self, base_offset: int) -> None:
        """Removes all, and begins one there. Raises `OSError`."""
        with self.changing:
            while self.present:
                self.present[-1].remove()
                self.present.pop()
            self.present.append(self.create(base_offset))

    def release_below(self, log_start_offset: int) -> bool:
        """Lets go of the segments below it: out of the log, then renamed to `.deleted`. Readers of one keep its file
        open. Whether there were any. Raises `OSError`."""
        released = False
        while True:
            with self.changing:  # cleaned segments may be about to replace these
                if len(self.present) < 2 or self.present[1].base_offset > log_start_offset:
                    return released
                segment = self.present.pop(0)
                being_renamed = self._let_go_meanwhile is not None
                if self._let_go_meanwhile is not None:
                    self._let_go_meanwhile.append(segment)
            if not being_renamed:
                self.mark_deleted(segment)
            released = True

    def mark_deleted(self, segment: Segment) -> None:
        """Renames the files of one that is not in the log any more to `.deleted`; may be repeated. Raises `OSError`."""
        self.removable.extend(segment.mark_deleted())

    def take_removable(self) -> list[Path]:
        """The files that were renamed to `.deleted` since this was last asked: the caller removes them."""
        paths = []
        while self.removable:
            paths.append(self.removable.popleft())
        return paths

    def move_to(self, directory: Path) -> None:
        """Takes note that the log's directory has been renamed."""
        self.removable = deque(directory / path.name for path in self.removable)
        self._context.directory = directory
        for segment in self.present:
            segment.move_to(directory)


def new_segment(directory: Path, base_offset: int, config: LogConfig) -> Segment:
    """Makes an empty segment. Raises `OSError`; nothing is left of it then."""
    try:
        return Segment(
            directory,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            index_max_bytes=config.index_max_bytes,
            create=True,
        )
    except FileExistsError:
        raise
    except OSError:
        with suppress(OSError):
            (directory / file_name(base_offset, LOG_SUFFIX)).unlink(missing_ok=True)
        raise


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
