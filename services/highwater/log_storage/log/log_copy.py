"""Making one log the exact copy of another: how a `-future` log catches up and takes over."""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log import append_validation
from highwater.log_storage.log.append_validation import NewBatch
from highwater.log_storage.log.log import Log
from highwater.model.leader_epochs import NO_EPOCH
from highwater.records import CorruptBatchError, ReadableBuffer


def append_copy(copy: Log, records: bytes, now_ms: int) -> None:
    """Writes batches of the log that is copied, as they are; between them may be the gaps of compaction.

    Raises `LogError`: CORRUPT_MESSAGE, LOG_STORAGE_ERROR, STORAGE_FULL."""
    copy.context.check_online()
    given = append_validation.read_given(records)
    batches = [NewBatch(position, header, header.base_offset) for position, header in given]
    if not batches:
        return
    if not copy.size_bytes and batches[0].base_offset < copy.segments[0].base_offset:
        copy.truncation.truncate_fully_and_start_at(batches[0].base_offset)
    _check_order(copy, batches)
    view = memoryview(records)
    buffers: list[list[ReadableBuffer]] = [
        [view[batch.position : batch.position + batch.header.size_bytes]] for batch in batches
    ]
    copy.writer.write(batches, buffers, now_ms)
    for batch in batches:
        copy.leader_epochs.note(batch.header.partition_leader_epoch, batch.base_offset)
        copy.producers.update(batch.header, batch.base_offset, now_ms)
    copy.offsets.log_end_offset = batches[-1].last_offset + 1
    if copy.producer_state.pending:
        copy.producer_state.write_snapshots()


def _check_order(copy: Log, batches: list[NewBatch]) -> None:
    next_offset, epoch = copy.log_end_offset, copy.last_epoch
    for batch in batches:
        header = batch.header
        if header.base_offset < next_offset or header.partition_leader_epoch < epoch:
            raise LogError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{copy.directory}: a batch at offset {header.base_offset} of epoch {header.partition_leader_epoch} "
                f"does not continue the copy, which ends at {next_offset} in epoch {epoch}",
            )
        next_offset, epoch = header.next_offset, header.partition_leader_epoch


def cut_copy(copy: Log, offset: int) -> None:
    """Drops what the copy has from `offset` on, committed or not. The checkpoints must not promise more any more
    (`promise_at_most`). Raises `LogError` (LOG_STORAGE_ERROR)."""
    if offset < copy.log_end_offset:
        copy.truncation.truncate_to(copy.truncation.cut_for(offset, copy.last_epoch + 1))


def agree_with(copy: Log, source: Log) -> None:
    """After a restart: drops what the source does not have (any more), found by epochs as between two replicas (RULES
    4.3). Raises `LogError` (LOG_STORAGE_ERROR)."""
    while copy.size_bytes:
        theirs = source.epochs.end_offset_for(copy.last_epoch, source.log_end_offset)
        ours = copy.epochs.end_offset_for(theirs.leader_epoch, copy.log_end_offset)
        if NO_EPOCH in (theirs.leader_epoch, ours.leader_epoch):
            break
        cut = min(theirs.end_offset, ours.end_offset)
        if cut >= copy.log_end_offset:
            return
        copy.offsets.promise_at_most(cut)
        cut_copy(copy, cut)
    copy.truncation.truncate_fully_and_start_at(source.segments[0].base_offset)


def take_over(copy: Log, source: Log) -> None:
    """Ends the copying: with all of the source's batches the copy becomes what the source is, on disk. The source
    stands still. Raises `LogError` (LOG_STORAGE_ERROR, STORAGE_FULL)."""
    _reach(copy, source.log_end_offset)
    copy.config = source.config
    copy.leader_epochs.replace(source.epochs.copy(), source.last_epoch)
    copy.offsets.log_start_offset = source.offsets.log_start_offset
    copy.offsets.log_start_due = source.offsets.log_start_due
    copy.offsets.high_watermark = source.offsets.high_watermark
    copy.producer_state.take_over(source.producer_state, copy.high_watermark)
    copy.log_start.release_segments()
    copy.close()
    assert copy.state == source.state  # invariant 4


def _reach(copy: Log, log_end_offset: int) -> None:
    """Moves the copy's end where the source's last batches were compacted away, or it has none."""
    if copy.log_end_offset == log_end_offset:
        return
    assert copy.log_end_offset < log_end_offset
    if not copy.size_bytes:
        copy.truncation.truncate_fully_and_start_at(log_end_offset)
        return
    try:
        copy.segment_list.note_gaps()
        copy.writer.roll(log_end_offset)
    except (OSError, CorruptBatchError) as error:
        raise copy.context.fail_unless_passing(error) from error
    copy.offsets.log_end_offset = log_end_offset
