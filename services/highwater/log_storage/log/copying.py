"""Making one log the exact copy of another: how a `-future` log catches up and takes over."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.log_storage.epochs import NO_EPOCH
from highwater.log_storage.errors import LogError
from highwater.log_storage.log import append_validation
from highwater.log_storage.log.append_validation import NewBatch
from highwater.log_storage.log.flushing import LogFlushing
from highwater.log_storage.log.keeping import LogKeeping
from highwater.log_storage.log.log_core import LogCore
from highwater.log_storage.log.releasing import LogReleasing
from highwater.log_storage.log.truncation import LogTruncation
from highwater.records import CorruptBatchError, ReadableBuffer


class LogCopying(LogReleasing, LogTruncation, LogFlushing):
    def append_copy(self, records: bytes, now_ms: int) -> None:
        """Writes batches of the log that this one copies, as they are; between them may be the gaps of compaction.

        Raises `LogError`: CORRUPT_MESSAGE, LOG_STORAGE_ERROR, STORAGE_FULL."""
        self.check_online()
        given = append_validation.read_given(records)
        batches = [NewBatch(position, header, header.base_offset) for position, header in given]
        if not batches:
            return
        if not self.size_bytes and batches[0].base_offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(batches[0].base_offset)
        self._check_order(batches)
        view = memoryview(records)
        buffers: list[list[ReadableBuffer]] = [
            [view[batch.position : batch.position + batch.header.size_bytes]] for batch in batches
        ]
        self._write(batches, buffers, now_ms)
        for batch in batches:
            self._note_epoch(batch.header.partition_leader_epoch, batch.base_offset)
            self.producers.update(batch.header, batch.base_offset, now_ms)
        self.log_end_offset = batches[-1].last_offset + 1
        if self.pending_snapshots:
            self.write_snapshots()

    def _check_order(self, batches: list[NewBatch]) -> None:
        next_offset, epoch = self.log_end_offset, self._last_epoch
        for batch in batches:
            header = batch.header
            if header.base_offset < next_offset or header.partition_leader_epoch < epoch:
                raise LogError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{self.directory}: a batch at offset {header.base_offset} of epoch "
                    f"{header.partition_leader_epoch} does not continue the copy, which ends at {next_offset} in epoch "
                    f"{epoch}",
                )
            next_offset, epoch = header.next_offset, header.partition_leader_epoch

    def cut_copy(self, offset: int) -> None:
        """Drops what the copy has from `offset` on, committed or not. The checkpoints must not promise more any more
        (`promise_at_most`). Raises `LogError` (LOG_STORAGE_ERROR)."""
        if offset < self.log_end_offset:
            self.truncate_to(self.cut_for(offset, self._last_epoch + 1))

    def agree_with(self, source: LogCore) -> None:
        """After a restart: drops what the source does not have (any more), found by epochs as between two replicas
        (RULES 4.3). Raises `LogError` (LOG_STORAGE_ERROR)."""
        while self.size_bytes:
            theirs = source.epochs.end_offset_for(self._last_epoch, source.log_end_offset)
            ours = self.epochs.end_offset_for(theirs.leader_epoch, self.log_end_offset)
            if NO_EPOCH in (theirs.leader_epoch, ours.leader_epoch):
                break
            cut = min(theirs.end_offset, ours.end_offset)
            if cut >= self.log_end_offset:
                return
            self.promise_at_most(cut)
            self.cut_copy(cut)
        self.truncate_fully_and_start_at(source.segments[0].base_offset)

    def take_over(self, source: LogKeeping) -> None:
        """Ends the copying: with all of the source's batches this becomes what the source is, on disk. The source
        stands still. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
        self._reach(source.log_end_offset)
        self.config = source.config
        self.epochs = source.epochs.copy()
        self.producers = source.producers.copy()
        self._last_epoch = source.last_epoch
        self.log_start_offset, self.log_start_due = source.log_start_offset, source.log_start_due
        self.high_watermark = source.high_watermark
        self.keep_producers_of(source)
        self.release_segments()
        self.close()
        assert self.state == source.state  # DESIGN §6: 4

    def _reach(self, log_end_offset: int) -> None:
        """Where the source's last batches were compacted away, or it has none."""
        if self.log_end_offset == log_end_offset:
            return
        assert self.log_end_offset < log_end_offset
        if not self.size_bytes:
            self.truncate_fully_and_start_at(log_end_offset)
            return
        try:
            self.note_gaps()
            self.roll(log_end_offset, self.producers)
        except (OSError, CorruptBatchError) as error:
            raise self._fail_unless_passing(error) from error
        self.log_end_offset = log_end_offset
