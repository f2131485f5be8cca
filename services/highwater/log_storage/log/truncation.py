"""Cutting a log at its end, or replacing all of it (RULES 4.3, 4.4)."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.leader_epoch_file import LeaderEpochFile
from highwater.log_storage.log.log_context import NO_OFFSET, LogContext
from highwater.log_storage.log.log_offsets import LogOffsets
from highwater.log_storage.log.log_reader import LogReader
from highwater.log_storage.log.producer_state_manager import ProducerStateManager
from highwater.log_storage.log.segment_list import SegmentList
from highwater.log_storage.producers.producer_states import ProducerStates
from highwater.log_storage.segment.damage import KnownDamage
from highwater.model.leader_epochs import LeaderEpochCache
from highwater.records import CorruptBatchError


class Truncation:
    """Finds where a log may be cut, and cuts it: segments, snapshots, offsets, epochs and producers agree
    afterwards."""

    def __init__(
        self,
        context: LogContext,
        segments: SegmentList,
        epochs: LeaderEpochFile,
        producer_state: ProducerStateManager,
        offsets: LogOffsets,
        damage: KnownDamage,
        reader: LogReader,
    ) -> None:
        self._context = context
        self._segments = segments
        self._epochs = epochs
        self._producer_state = producer_state
        self._offsets = offsets
        self._damage = damage
        self._reader = reader

    def cut_for(self, offset: int, unclean_epoch: int) -> int:
        """The offset at which truncation to `offset` really cuts: at the start of the batch that holds it, or at the
        log end.

        Raises `LogError`: TRUNCATION_BELOW_HIGH_WATERMARK unless `unclean_epoch` is above the last epoch (RULES 4.4).
        """
        self._context.check_online()
        cut = self._offsets.log_end_offset
        if offset < self._offsets.log_end_offset:
            cut = self._reader.batch_start(offset)
        self._check_cut(cut, unclean_epoch)
        return cut

    def check_restart_at(self, offset: int, unclean_epoch: int) -> None:
        """Tells whether TruncateFullyAndStartAt may happen: the same bound (RULES 4.4)."""
        self._context.check_online()
        if offset < 0:
            raise LogError(ErrorCode.INVALID_REQUEST, f"a log cannot start at offset {offset}")
        self._check_cut(offset, unclean_epoch)

    def _check_cut(self, cut: int, unclean_epoch: int) -> None:
        if cut < self._offsets.high_watermark and unclean_epoch <= self._epochs.last_epoch:
            raise LogError(
                ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK,
                f"{self._context.directory}: truncation to {cut} would drop offsets below the high watermark "
                f"{self._offsets.high_watermark}, and the last unclean epoch {unclean_epoch} is not above the log's "
                f"last epoch {self._epochs.last_epoch}",
            )

    def truncate_to(self, cut: int) -> None:
        """Drops every batch at or above `cut`, as `cut_for` gave it, and the epochs that then have written nothing
        (RULES 4.3). The checkpoints must not promise more than `cut` any more. Raises `LogError`
        (LOG_STORAGE_ERROR)."""
        if cut < self._segments.present[0].base_offset:
            self.truncate_fully_and_start_at(cut)
            return
        try:
            if cut < self._offsets.log_end_offset:
                self._drop_batches(cut)
            self._epochs.cache.truncate_from_end(cut)
        except (OSError, CorruptBatchError) as error:
            raise self._context.fail(error) from error

    def _drop_batches(self, cut: int) -> None:
        """Raises `CorruptBatchError`, `OSError`."""
        self._producer_state.remove_above(cut)
        self._segments.remove_above(cut)
        last = self._segments.active
        found = last.position_of(cut)
        if found is not None:
            last.truncate(found[0], cut)
        else:
            last.resume()
        if found is None and last.end_offset > cut:
            raise CorruptBatchError(last.size_bytes, f"no batch at offset {cut}")
        self._offsets.end_at(cut)
        self._damage.cut(cut)
        self._epochs.truncate_from_end(cut, self._segments.headers())
        self._offsets.start_at_most(cut)
        self._producer_state.restore(cut)

    def truncate_fully_and_start_at(
        self, offset: int, epochs: LeaderEpochCache | None = None, producers: ProducerStates | None = None
    ) -> None:
        """Drops everything; the log starts and ends at `offset`. `epochs` and `producers`: what is still known of the
        batches that were below, and of the latter the snapshot is there. Raises `LogError` (LOG_STORAGE_ERROR)."""
        self.restart_segments_at(offset, spared=NO_OFFSET if producers is None else offset)
        cache = LeaderEpochCache() if epochs is None else epochs
        self._epochs.replace(cache, cache.latest_epoch)
        self._epochs.forget_filed()
        self._producer_state.states = ProducerStates(self._producer_state.limits) if producers is None else producers
        self._offsets.restart_at(offset)

    def restart_segments_at(self, base_offset: int, spared: int = NO_OFFSET) -> None:
        """Puts one empty segment in the place of all, and drops the snapshots of producers but for the one at `spared`;
        the offsets stay. Raises `LogError` (LOG_STORAGE_ERROR)."""
        try:
            self._damage.cut(NO_OFFSET)
            self._producer_state.remove_above(NO_OFFSET, spared)
            self._segments.restart_at(base_offset)
        except OSError as error:
            raise self._context.fail(error) from error
