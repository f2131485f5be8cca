"""Cutting a log at its end, or replacing all of it (RULES 4.3, 4.4)."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.log_storage.epochs import NO_EPOCH, LeaderEpochCache
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log_core import NO_OFFSET, LogCore
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.records import CorruptBatchError


class LogTruncation(LogCore):
    def cut_for(self, offset: int, unclean_epoch: int) -> int:
        """Where truncation to `offset` really cuts: at the start of the batch that holds it, or at the log end.

        Raises `LogError`: TRUNCATION_BELOW_HIGH_WATERMARK unless `unclean_epoch` is above the last epoch (RULES 4.4).
        """
        self.check_online()
        cut = self.log_end_offset
        if offset < self.log_end_offset:
            cut = self._batch_start(offset)
        self._check_cut(cut, unclean_epoch)
        return cut

    def check_restart_at(self, offset: int, unclean_epoch: int) -> None:
        """Whether TruncateFullyAndStartAt may happen: the same bound (RULES 4.4)."""
        self.check_online()
        if offset < 0:
            raise LogError(ErrorCode.INVALID_REQUEST, f"a log cannot start at offset {offset}")
        self._check_cut(offset, unclean_epoch)

    def _check_cut(self, cut: int, unclean_epoch: int) -> None:
        if cut < self.high_watermark and unclean_epoch <= self._last_epoch:
            raise LogError(
                ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK,
                f"{self.directory}: truncation to {cut} would drop offsets below the high watermark "
                f"{self.high_watermark}, and the last unclean epoch {unclean_epoch} is not above the log's last epoch "
                f"{self._last_epoch}",
            )

    def _batch_start(self, offset: int) -> int:
        if offset <= self.segments[0].base_offset:
            return max(offset, 0)
        try:
            for segment in self._segments_from(offset):
                found = segment.position_of(offset)
                if found is not None:
                    return min(found[1].base_offset, offset)
        except CorruptBatchError as error:
            raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{self.directory}: {error}") from error
        except OSError as error:
            raise self._refusal(error) from error
        return self.log_end_offset

    def truncate_to(self, cut: int) -> None:
        """Drops every batch at or above `cut`, as `cut_for` gave it, and the epochs that then have written nothing
        (RULES 4.3). The checkpoints must not promise more than `cut` any more. Raises `LogError`
        (LOG_STORAGE_ERROR)."""
        if cut < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(cut)
            return
        try:
            if cut < self.log_end_offset:
                self._drop_batches(cut)
            self.epochs.truncate_from_end(cut)
        except (OSError, CorruptBatchError) as error:
            raise self.fail(error) from error

    def _drop_batches(self, cut: int) -> None:
        self.pending_snapshots.drop_above(cut)
        producer_snapshots.remove_above(self.directory, cut)
        # Newest first, so that a crash on the way leaves a prefix.
        while len(self.segments) > 1 and self.segments[-1].base_offset >= cut:
            self.segments.pop().remove()
        last = self.segments[-1]
        found = last.position_of(cut)
        if found is not None:
            last.truncate(found[0], cut)
        else:
            last.resume()
        if found is None and last.end_offset > cut:
            raise CorruptBatchError(last.size_bytes, f"no batch at offset {cut}")
        self._set_end(cut)
        self.damage.cut(cut)
        self.epochs.truncate_from_end(cut)
        self._filed_epochs = frozenset({NO_EPOCH})
        if not self.epochs.entries:
            self._find_epochs()
        self._last_epoch = self.epochs.last_epoch_below(cut)
        self.log_start_offset = min(self.log_start_offset, cut)
        self.log_start_due = min(self.log_start_due, cut)
        if not self.producers.outlives(cut):
            self._restore_producers(cut)

    def _find_epochs(self) -> None:
        """Of the batches that are left: where they are below what was the log start, their epochs had been let go."""
        for header in self.headers():
            if header.partition_leader_epoch > self.epochs.latest_epoch:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _restore_producers(self, cut: int) -> None:
        """Those that wrote above the cut are what they were below it; of the others all is known."""
        self.write_snapshots()  # those below the cut
        outlive = [(who, state) for who, state in self.producers.items() if state.batches[-1].last_offset < cut]
        now_ms = max(state.updated_ms for _, state in self.producers.items())
        self.producers = producer_snapshots.restore(self.directory, self.segments, cut, now_ms, self._wall_offset_ms)
        for who, state in outlive:
            self.producers.put(who, state)

    def promise_at_most(self, cut: int) -> bool:
        """Lowers recovery point and high watermark before a cut, so that the checkpoints can be written first: after a
        crash they must not speak for what was dropped. Whether they have to be written."""
        changed = cut < self.recovery_point or cut < self.high_watermark
        if self.cleaned_to is not None and cut < self.cleaned_to:
            self.cleaned_to = cut
            changed = True
        self.recovery_point = min(self.recovery_point, cut)
        self.synced_offset = min(self.synced_offset, cut)
        self.high_watermark = min(self.high_watermark, cut)
        self.log_start_offset = min(self.log_start_offset, cut)
        self.log_start_due = min(self.log_start_due, cut)
        self.log_start_filed = min(self.log_start_filed, cut)
        return changed

    def truncate_fully_and_start_at(
        self, offset: int, epochs: LeaderEpochCache | None = None, producers: ProducerStates | None = None
    ) -> None:
        """Drops everything; the log starts and ends at `offset`. `epochs` and `producers`: what is still known of the
        batches that were below, and of the latter the snapshot is there. Raises `LogError` (LOG_STORAGE_ERROR)."""
        self._replace_segments(offset, spared=NO_OFFSET if producers is None else offset)
        self.epochs = LeaderEpochCache() if epochs is None else epochs
        self._filed_epochs = frozenset({NO_EPOCH})
        self.producers = ProducerStates() if producers is None else producers
        self._last_epoch = self.epochs.latest_epoch
        self.log_start_offset = self.log_start_due = self.high_watermark = offset
        self.log_start_filed = NO_OFFSET
        self._set_end(offset)
        self.recovery_point = self.synced_offset = offset

    def _replace_segments(self, base_offset: int, spared: int = NO_OFFSET) -> None:
        try:
            self.damage.cut(NO_OFFSET)
            self.pending_snapshots.drop_above(NO_OFFSET)
            producer_snapshots.remove_above(self.directory, NO_OFFSET, spared)
            with self.structure:
                while self.segments:
                    self.segments[-1].remove()
                    self.segments.pop()
                self.segments.append(self._new_segment(base_offset))
        except OSError as error:
            raise self.fail(error) from error
