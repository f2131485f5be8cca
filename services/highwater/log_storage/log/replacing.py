"""One segment, or a few, in the place of a run of sealed ones: how compaction ends (seeds §5.4)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from highwater.atomic_file import fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.files.disk import Trouble
from highwater.log_storage.log.keeping import LogKeeping
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX, SWAP_SUFFIX


class LogReplacing(LogKeeping):
    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Puts `new` in the place of `old`, a run of sealed segments. `new` are whole, sealed and on disk, their files
        named `.cleaned`; together they hold what is kept of `old`, and the first has its base offset. False, with
        `new` removed, where one of `old` is not in the log any more: a fetcher's append may raise the log start at any
        time.

        The recovery point must be at or above the end of `old`. After a crash at any point the log opens with all of
        `old` or all of `new`. Who reads one of `old` still has its file open. Appends and reads may go on meanwhile, in
        another thread; a flush, truncation or retention may not (`HostedLog.maintenance`).

        Raises `LogError`: LOG_STORAGE_ERROR, the log is offline then unless descriptors were lacking; STORAGE_FULL,
        where nothing has been replaced. `new` are removed where the log stays online."""
        assert new[0].base_offset == old[0].base_offset
        assert old[-1].end_offset <= self.recovery_point
        self.check_online()
        try:
            self.keep_producers(old[-1].end_offset)
            self.disk.using_reserve(lambda: self._prepare(new))
        except OSError as error:
            raise self._give_up(new, error) from error
        try:
            replaced = self._exchange(old, new)
            self.disk.using_reserve(lambda: fsync_directory(self.directory))
        except OSError as error:
            raise self.fail(error) from error
        return replaced

    def _prepare(self, new: Sequence[Segment]) -> None:
        """May be repeated. Raises `OSError`."""
        self.note_gaps()
        self._remove_earlier_cleaned(new)
        # The first one last: while it is `.cleaned`, recovery knows that nothing has been replaced.
        for segment in reversed(new):
            if segment.path.name.endswith(CLEANED_SUFFIX):
                segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        fsync_directory(self.directory)

    def _give_up(self, new: Sequence[Segment], error: OSError) -> LogError:
        """Nothing has been replaced: as long as no `.swap` is left the log goes on as it is."""
        refusal = self._fail_unless_passing(error)
        if self.failure is None:
            try:
                self._take_back(new)
            except OSError as again:
                return self.fail(again)
        return refusal

    def _take_back(self, new: Sequence[Segment]) -> None:
        """Removes `new`, so that a crash on the way leaves all of `old`. Raises `OSError`."""
        first = new[0]
        if first.path.name.endswith(SWAP_SUFFIX):
            first.change_suffix(SWAP_SUFFIX, CLEANED_SUFFIX)
            try:
                fsync_directory(self.directory)
            except OSError as error:
                if self.disk.note(error) not in (Trouble.FULL, Trouble.LACKING):
                    raise
                self._entries_synced = False  # the next flush does it
        for segment in new[1:]:
            segment.remove()
        first.remove()

    def _exchange(self, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        with self.structure:
            place = self.segments.index(old[0]) if old[0] in self.segments else len(self.segments)
            replaced = self.segments[place:-1][: len(old)] == [*old]
            if replaced:
                new[0].producers_told, new[0].producers_kept = old[0].producers_told, old[0].producers_kept
                # Another list: who walks over the present one beside this meets all of `old`.
                self.segments = [*self.segments[:place], *new, *self.segments[place + len(old) :]]
                self.let_go_meanwhile = []
        if not replaced:  # a raised log start has taken the first ones
            for segment in new:
                segment.remove()
            return False
        # There may be many, and an append that rolls is not to wait for them. Each may be repeated.
        for segment in old:
            self.removable += self.disk.using_reserve(segment.mark_deleted)
        for segment in reversed(new):
            self.disk.using_reserve(partial(segment.change_suffix, SWAP_SUFFIX, ""))
        with self.structure:
            let_go, self.let_go_meanwhile = self.let_go_meanwhile, None
        for segment in let_go or ():
            self.removable += self.disk.using_reserve(segment.mark_deleted)
        return True

    def _remove_earlier_cleaned(self, new: Sequence[Segment]) -> None:
        """What a cleaning that failed has left, which would tell that this one has not come to its end. Later ones are
        being written."""
        first = min(path.name for path in new[0].paths())
        for path in self.directory.glob(f"*{CLEANED_SUFFIX}"):
            if path.name < first:
                path.unlink(missing_ok=True)

    def move_to(self, directory: Path) -> None:
        """Renames the log's directory, within one file system: how a `-future` log takes its place. Nothing else may
        happen to the log meanwhile. Raises `LogError` (LOG_STORAGE_ERROR)."""
        try:
            os.rename(self.directory, directory)
            fsync_directory(directory.parent)
        except OSError as error:
            raise LogError(
                ErrorCode.LOG_STORAGE_ERROR, f"cannot rename {self.directory} to {directory}: {error}"
            ) from error
        self.removable = [directory / path.name for path in self.removable]
        self.directory = directory
        for segment in self.segments:
            segment.move_to(directory)
