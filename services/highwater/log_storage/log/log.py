"""One partition's log. Driven by one thread at a time; only a `Flush`, and what makes segments that are to replace
others (`replacing.py`), may run beside appends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.log import append_validation
from highwater.log_storage.log.append_validation import GivenBatch
from highwater.log_storage.log.copying import LogCopying
from highwater.log_storage.log.log_core import NO_OFFSET, NO_TIME
from highwater.log_storage.log.reading import LogReading
from highwater.log_storage.log.replacing import LogReplacing
from highwater.records import STAMP_BYTES, ReadableBuffer, stamp, with_log_append_time


class Appended(NamedTuple):
    """The answer to an append. With duplicates in front of new batches the range goes from the first duplicate's old
    base offset to the last new offset; `duplicate` is true only where nothing was written."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


class Log(LogReading, LogCopying, LogReplacing):
    """What leaders and followers do with a log: taking over, and appending."""

    def become_leader(self, leader_epoch: int) -> None:
        """Records (epoch, log end offset) even where the log is empty (RULES 3.2)."""
        self.check_online()
        try:
            self.epochs.assign(leader_epoch, self.log_end_offset)
        except ValueError as error:
            raise LogError(ErrorCode.STALE_FENCE, str(error)) from None

    def become_follower(self) -> None:
        """Drops the epochs that have written nothing (RULES 4.3)."""
        self.check_online()
        self.epochs.truncate_from_end(self.log_end_offset)

    def append_as_leader(
        self, records: bytes, leader_epoch: int, expected_offset: int, now_ms: int, wall_clock_ms: int = NO_TIME
    ) -> Appended:
        """Assigns offsets and leader epoch and writes. An append is taken or refused as a whole; `number_batches`
        says what happens to duplicates in it. `now_ms` is for the expiry of producers, `wall_clock_ms` for
        LogAppendTime.

        Raises `LogError`: OFFSET_MISMATCH, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD, what RULES 6.1 says of
        sequences, LOG_STORAGE_ERROR.
        """
        self.check_online()
        self._check_expected(expected_offset)
        batches = append_validation.read_given(records)
        for batch in batches:
            append_validation.check_produced(batch.header, self.config)
        append_time = NO_TIME
        if self.config.log_append_time and batches:
            append_time = wall_clock_ms
            records, batches = _with_append_time(records, batches, append_time)
        numbered = append_validation.number_batches(batches, self.log_end_offset, self.producers, now_ms)
        if not numbered.new:
            if not numbered.duplicates:
                return Appended(NO_OFFSET, NO_OFFSET, False, append_time)
            base, last = numbered.duplicates[0].base_offset, numbered.duplicates[-1].last_offset
            return Appended(base, last, True, append_time)
        view = memoryview(records)
        buffers: list[list[ReadableBuffer]] = [
            [
                stamp(batch.header, batch.base_offset, leader_epoch),
                view[batch.position + STAMP_BYTES : batch.position + batch.header.size_bytes],
            ]
            for batch in numbered.new
        ]
        self._write(numbered.new, buffers, now_ms)
        self._note_epoch(leader_epoch, numbered.new[0].base_offset)
        if numbered.producers is not None:
            self.producers.take(numbered.producers)
        else:
            self.producers.update(numbered.new[0].header, numbered.new[0].base_offset, now_ms)
        self.log_end_offset = numbered.new[-1].last_offset + 1
        base = numbered.duplicates[0].base_offset if numbered.duplicates else numbered.new[0].base_offset
        return Appended(base, self.log_end_offset - 1, False, append_time)

    def append_as_follower(
        self,
        records: bytes,
        fenced_epoch: int,
        expected_offset: int,
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> Appended:
        """Writes a leader's batches as they are, then takes its high watermark (RULES 4.6). Its log start is due then
        (`log_start_due`): once it is on disk, `reach_log_start` follows.

        Raises `LogError`: OFFSET_MISMATCH, CORRUPT_MESSAGE, LOG_STORAGE_ERROR.
        """
        self.check_online()
        self._check_expected(expected_offset)
        appended = Appended(NO_OFFSET, NO_OFFSET, False, NO_TIME)
        if records:
            given = append_validation.read_given(records)
            first_offset = self._first_offset(given)
            batches = append_validation.check_replicated(given, first_offset, self._last_epoch, fenced_epoch)
            if first_offset < self.log_end_offset:
                self._replace_segments(first_offset)
            view = memoryview(records)
            buffers: list[list[ReadableBuffer]] = [
                [view[batch.position : batch.position + batch.header.size_bytes]] for batch in batches
            ]
            self._write(batches, buffers, now_ms)
            for batch in batches:
                self._note_epoch(batch.header.partition_leader_epoch, max(batch.base_offset, self.log_start_offset))
                self.producers.update(batch.header, batch.base_offset, now_ms)  # RULES 6.2
            appended = Appended(self.log_end_offset, batches[-1].last_offset, False, NO_TIME)
            self.log_end_offset = batches[-1].last_offset + 1
        self.raise_high_watermark(leader_high_watermark)
        if leader_log_start_offset > self.log_start_offset:
            self.log_start_due = max(self.log_start_due, min(leader_log_start_offset, self.high_watermark))
        return appended

    def _first_offset(self, given: Sequence[append_validation.GivenBatch]) -> int:
        """Where a follower's batches have to begin: at the log end. Only where the leader's log starts inside a batch
        (after DeleteRecords) and so does this one, still without a batch, does the first one begin below it."""
        if given and len(self.segments) == 1 and not self.segments[0].size_bytes:
            header = given[0].header
            if header.base_offset < self.log_start_offset == self.log_end_offset <= header.last_offset:
                return header.base_offset
        return self.log_end_offset

    def _check_expected(self, expected_offset: int) -> None:
        if expected_offset != self.log_end_offset:  # RULES 3.4
            raise LogError(
                ErrorCode.OFFSET_MISMATCH,
                f"the append expects offset {expected_offset}, the log ends at {self.log_end_offset}",
            )


def _with_append_time(records: bytes, batches: list[GivenBatch], timestamp_ms: int) -> tuple[bytes, list[GivenBatch]]:
    stamped = b"".join(
        with_log_append_time(records[position : position + header.size_bytes], timestamp_ms)
        for position, header in batches
    )
    return stamped, append_validation.read_given(stamped)
