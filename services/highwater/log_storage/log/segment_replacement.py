"""One segment, or a few, in the place of a run of sealed ones: how compaction ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from highwater.atomic_file import fsync_directory
from highwater.log_storage.errors import LogError
from highwater.log_storage.files.disk import DiskErrorKind
from highwater.log_storage.log.log_context import LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.producer_state_manager import ProducerStateManager
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.segment_files import CLEANED_SUFFIX, SWAP_SUFFIX


class SegmentReplacement:
    """The files of the new segments are `.cleaned`, then `.swap`, then have their names: a crash at any point leaves
    all of the old segments or all of the new ones."""

    def __init__(
        self, context: LogContext, segments: SegmentList, producer_state: ProducerStateManager, offsets: LogOffsets
    ) -> None:
        self._context = context
        self._segments = segments
        self._producer_state = producer_state
        self._offsets = offsets

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        """Puts `new` in the place of `old`, a run of sealed segments. `new` are whole, sealed and on disk, their files
        named `.cleaned`; together they hold what is kept of `old`, and the first has its base offset. False, with
        `new` removed, where one of `old` is not in the log any more: a fetcher's append may raise the log start at any
        time.

        The recovery point must be at or above the end of `old`. After a crash at any point the log opens with all of
        `old` or all of `new`. Readers of `old` keep their descriptors. Appends and reads may go on meanwhile, in
        another thread; a flush, truncation or retention may not (`HostedLog.maintenance`).

        Raises `LogError`: LOG_STORAGE_ERROR, the log is offline then unless descriptors were lacking; STORAGE_FULL,
        where nothing has been replaced. `new` are removed where the log stays online."""
        assert new[0].base_offset == old[0].base_offset
        assert old[-1].end_offset <= self._offsets.recovery_point
        context = self._context
        context.check_online()
        try:
            self._producer_state.keep(old[-1].end_offset)
            context.disk.using_reserve(lambda: self._prepare(new))
        except OSError as error:
            raise self._give_up(new, error) from error
        try:
            replaced = self._exchange(old, new)
            context.disk.using_reserve(lambda: fsync_directory(context.directory))
        except OSError as error:
            raise context.fail(error) from error
        return replaced

    def _prepare(self, new: Sequence[Segment]) -> None:
        """May be repeated. Raises `OSError`."""
        self._segments.note_gaps()
        self._remove_earlier_cleaned(new)
        # The first one last: while it is `.cleaned`, recovery knows that nothing has been replaced.
        for segment in reversed(new):
            if segment.path.name.endswith(CLEANED_SUFFIX):
                segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        fsync_directory(self._context.directory)

    def _give_up(self, new: Sequence[Segment], error: OSError) -> LogError:
        """Nothing has been replaced: as long as no `.swap` is left the log goes on as it is."""
        refusal = self._context.fail_unless_passing(error)
        if self._context.failure is None:
            try:
                self._take_back(new)
            except OSError as again:
                return self._context.fail(again)
        return refusal

    def _take_back(self, new: Sequence[Segment]) -> None:
        """Removes `new`, so that a crash on the way leaves all of `old`. Raises `OSError`."""
        first = new[0]
        if first.path.name.endswith(SWAP_SUFFIX):
            first.change_suffix(SWAP_SUFFIX, CLEANED_SUFFIX)
            try:
                fsync_directory(self._context.directory)
            except OSError as error:
                if self._context.disk.note(error) not in (DiskErrorKind.FULL, DiskErrorKind.LACKING):
                    raise
                self._segments.names_are_not_synced()  # the next flush does it
        for segment in new[1:]:
            segment.remove()
        first.remove()

    def _exchange(self, old: Sequence[Segment], new: Sequence[Segment]) -> bool:
        if not self._segments.exchange(old, new):  # a raised log start has taken the first ones
            for segment in new:
                segment.remove()
            return False
        # There may be many, and an append that rolls is not to wait for them. Each may be repeated.
        using_reserve = self._context.disk.using_reserve
        for segment in old:
            using_reserve(partial(self._segments.mark_deleted, segment))
        for segment in reversed(new):
            using_reserve(partial(segment.change_suffix, SWAP_SUFFIX, ""))
        for segment in self._segments.end_exchange():
            using_reserve(partial(self._segments.mark_deleted, segment))
        return True

    def _remove_earlier_cleaned(self, new: Sequence[Segment]) -> None:
        """Removes what a cleaning that failed has left, which would tell that this one has not come to its end. Later
        ones are being written."""
        first = min(path.name for path in new[0].paths())
        for path in self._context.directory.glob(f"*{CLEANED_SUFFIX}"):
            if path.name < first:
                path.unlink(missing_ok=True)
