"""The offsets of one log."""

from __future__ import annotations

from highwater.log_storage.log.log_context import NO_OFFSET


class LogOffsets:
    """log start <= high watermark <= log end, and recovery point <= synced offset <= log end: batches below the
    recovery point have been fsynced with their indexes, those below the synced offset without."""

    def __init__(
        self,
        *,
        log_start_offset: int,
        high_watermark: int,
        log_end_offset: int,
        recovery_point: int,
        cleaned_to: int | None,
    ) -> None:
        self.log_end_offset = log_end_offset
        self.log_start_offset = log_start_offset
        # A follower's log start is to be here: on disk first, as the leader, once told of it, answers for it; and
        # before that the batches below it (`log_start_to_checkpoint`).
        self.log_start_due = log_start_offset
        self.log_start_filed = NO_OFFSET  # up to here the due one is known to be in the checkpoint
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))  # RULES 4.6
        self._high_watermark_at_start = self.high_watermark
        self.recovery_point = min(recovery_point, log_end_offset)
        self.synced_offset = self.recovery_point
        # Compaction has made the log clean up to here; None: it never was compacted.
        self.cleaned_to = None if cleaned_to is None else min(cleaned_to, log_end_offset)

    def raise_high_watermark(self, offset: int) -> None:
        """To `min(offset, log end)` at most, never down (RULES 4.6)."""
        self.high_watermark = max(self.high_watermark, min(offset, self.log_end_offset))

    def high_watermark_to_checkpoint(self, flush_messages: int) -> int:
        """A log that ends below it after a start has lost something (RULES 7.2). So where appends wait for the disk,
        and the tail counts as whole after a power failure, it is not above what the disk has; a follower takes its
        leader's with a batch that still waits."""
        if flush_messages > 1:
            return self.high_watermark
        return min(self.high_watermark, max(self.synced_offset, self._high_watermark_at_start))

    def raise_due_log_start(self, leader_log_start_offset: int) -> None:
        """A follower's log start is due to rise to its leader's, as far as is committed here."""
        if leader_log_start_offset > self.log_start_offset:
            self.log_start_due = max(self.log_start_due, min(leader_log_start_offset, self.high_watermark))

    @property
    def log_start_to_checkpoint(self) -> int:
        """As far as the batches below what is due are on disk: once the checkpoint says that the log starts there, a
        loss of power would take what they alone tell of their producers."""
        return max(self.log_start_offset, min(self.log_start_due, self.synced_offset))

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

    def end_at(self, offset: int) -> None:
        """The log has been cut there."""
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.synced_offset = min(self.synced_offset, offset)

    def start_at_most(self, offset: int) -> None:
        """The log has been cut there, perhaps below its start."""
        self.log_start_offset = min(self.log_start_offset, offset)
        self.log_start_due = min(self.log_start_due, offset)

    def restart_at(self, offset: int) -> None:
        """The log is empty, and begins and ends there."""
        self.log_start_offset = self.log_start_due = self.high_watermark = offset
        self.log_start_filed = NO_OFFSET
        self.end_at(offset)
        self.recovery_point = self.synced_offset = offset
