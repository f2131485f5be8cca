"""One partition's position, and its batches that were fetched and not handed out yet. Pure.

`fetch_offset` runs ahead of `position` by what is buffered. A `generation` counts seeks: an answer that was asked for
under an earlier one is dropped, as is one whose offset is no longer the one to fetch (RULES 4.7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from highwater.client.consumer.consumer_record import (
    ConsumerRecord,
    columns_of_records,
    consumer_columns,
    consumer_records,
)
from highwater.client.consumer.corrupt_batches import CorruptBatches, untrusted
from highwater.client.exceptions import AuthorizationError, HighwaterError
from highwater.client.topic_partition import TopicPartition
from highwater.records import Batch, BatchHeader, CorruptBatchError, decode, iter_batches, verify

_ENOUGH_RECORDS = 500  # decoded at a time: a loop over records looks for the next ones so much more rarely


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch in the bytes of an answer; decoded when it is handed out."""

    buffer: bytes
    start: int
    header: BatchHeader


class FetchBuffer:
    """`on_change` is told what may make it ready, or have more fetched, or less. `corrupt` decides on batches that
    cannot be read; None: each is an error."""

    def __init__(
        self,
        partition: TopicPartition,
        on_change: Callable[[FetchBuffer], None],
        *,
        check_crcs: bool = True,
        corrupt: CorruptBatches | None = None,
    ) -> None:
        self.partition = partition
        self._on_change = on_change
        self.topic_id: bytes | None = None  # of the only topic to read, where another one may have the same name by now
        self.until: int | None = None  # what stands at this offset or behind it is not fetched; None: there is no end
        self.generation = 0
        self.fetch_offset: int | None = None  # None: the position is not known yet
        self.reset_timestamp: int | None = None  # where the position is to come from: a time, earliest or latest
        self.paused = False
        self.busy = False  # somebody finds out where to fetch from
        self.error: HighwaterError | None = None  # raised once what is before it was handed out
        self.retry_at_ms = 0.0
        self.failures = 0
        self.high_watermark = -1
        self.log_start_offset = -1
        self.highest_epoch = -1  # of the batches seen
        self.buffered_bytes = 0
        self._check_crcs = check_crcs
        self._corrupt = corrupt or CorruptBatches()
        self._batches: deque[FetchedBatch] = deque()
        self._decoded: tuple[FetchedBatch, Batch] | None = None  # the batch decoded last; some of it may be left
        self._records: list[ConsumerRecord] = []  # of the batches decoded last
        self._index = 0  # into it: the next record
        self._next_position: int | None = None  # where the position is once `_records` is done

    # Position

    @property
    def position(self) -> int | None:
        """Offset of the next record to hand out; None: not known yet."""
        index, records = self._index, self._records  # a loop in another thread may be handing them out
        return records[index].offset if index < len(records) else self._next_position

    def seek(self, offset: int) -> None:
        """Goes on from `offset`; whatever was buffered, asked for or wrong is dropped."""
        self._drop()
        self.fetch_offset = self._next_position = offset
        self._on_change(self)

    def reset(self, timestamp: int) -> None:
        """The position is looked up: the first offset at or after `timestamp`, or `EARLIEST_TIMESTAMP`, ..."""
        self._drop()
        self.fetch_offset = self._next_position = None
        self.reset_timestamp = timestamp
        self._on_change(self)

    def fail(self, error: HighwaterError) -> None:
        """Ends the fetching until a seek, or see `told`; `error` is raised behind what is buffered."""
        self.error = error
        self._on_change(self)

    def told(self) -> None:
        """The caller has been raised the error. What it may not read it may read later, as ACLs change: its next call
        has it fetched again. All else needs a seek."""
        if isinstance(self.error, AuthorizationError):
            self.error = None
            self._on_change(self)

    def pause(self) -> None:
        self.paused = True
        self._on_change(self)

    def resume(self) -> None:
        self.paused = False
        self._on_change(self)

    def _drop(self) -> None:
        self.generation += 1
        self.reset_timestamp = None
        self.error = None
        self.busy = False
        self.retry_at_ms = 0.0
        self.failures = 0
        self.buffered_bytes = 0
        self._batches.clear()
        self._records = []
        self._index = 0

    # Fetching

    def fetchable(self, now_ms: float, enough_bytes: int) -> bool:
        return (
            self.fetch_offset is not None
            and (self.until is None or self.fetch_offset < self.until)
            and not (self.paused or self.busy)
            and self.error is None
            and self.buffered_bytes < enough_bytes
            and now_ms >= self.retry_at_ms
        )

    def wants(self, generation: int, fetch_offset: int) -> bool:
        """True where an answer for this is still of use."""
        return self.generation == generation and self.fetch_offset == fetch_offset and self.error is None

    def accept(self, buffer: bytes, high_watermark: int, log_start_offset: int) -> None:
        """An answer that `wants` said yes to. A broken batch header becomes `error`, behind the batches before it; so
        does one that begins within the batch before it, or ends below what was asked for, where no answer begins (RULES
        4.8): one of them is not what was written, and base offsets are not in the CRC."""
        assert self.fetch_offset is not None
        self.failures = 0
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        end = -1  # of the batch before
        try:
            for start, header in iter_batches(buffer, partial_ok=True):
                if header.base_offset < end:
                    raise CorruptBatchError(start, f"begins at {header.base_offset}, in a batch that ends at {end - 1}")
                end = header.next_offset
                if end <= self.fetch_offset:
                    raise CorruptBatchError(start, f"ends at {end - 1}, below the offset that was asked for")
                self.highest_epoch = max(self.highest_epoch, header.partition_leader_epoch)
                if self.until is not None and self.fetch_offset >= self.until:
                    break
                self._batches.append(FetchedBatch(buffer, start, header))
                self.buffered_bytes += header.size_bytes
                self.fetch_offset = header.next_offset
        except CorruptBatchError as error:
            self.error = untrusted(self.partition, self.fetch_offset, error.reason)
        self._on_change(self)

    def hold(self) -> None:
        """Fetches no more before `release`, or a seek."""
        self.busy = True
        self._on_change(self)

    def release(self) -> None:
        self.busy = False
        self._on_change(self)

    def back_off(self, retry_at_ms: float) -> None:
        self.failures += 1
        self.retry_at_ms = retry_at_ms
        self._on_change(self)

    # Handing out

    @property
    def ready(self) -> bool:
        return not self.paused and (self._index < len(self._records) or bool(self._batches) or self.error is not None)

    def current(self) -> tuple[list[ConsumerRecord], int]:
        """Decoded records and the index of the first that was not handed out; empty: none at hand.

        Raises:
            HighwaterError: what stands at the position cannot be read, or fetched.
        """
        if self._index >= len(self._records):
            self._records, self._index = self._next_records(), 0
        return self._records, self._index

    def handed_out(self, index: int) -> None:
        """Counts the `current` records before `index` as handed out."""
        self._index = index

    def hand_out(self, records: list[ConsumerRecord], index: int) -> bool:
        """Counts this one of the records that were `current` as handed out. False: it is not the next one any more."""
        if self._records is not records or self._index != index:
            return False
        self._index = index + 1
        return True

    def _next_records(self) -> list[ConsumerRecord]:
        """Of the next batch, and of those behind it where it is a small one."""
        found: list[ConsumerRecord] = []
        while len(found) < _ENOUGH_RECORDS:
            try:
                batch = self._next_batch()
                if batch is None:
                    break
                position = self._next_position
                assert position is not None
                found += consumer_records(batch, *self.partition, position)
            except Exception:  # memory may be short, too
                if found:
                    break  # it comes again once these were handed out
                raise
            self._remove_first()
            self._next_position = batch.header.next_offset
        return found

    def take_columns(self, max_records: int, *, include_headers: bool) -> pa.RecordBatch | None:
        """One batch as columns, or its first `max_records` records; None: none at hand. Raises as `current`."""
        while True:
            position = self.position
            if self._index < len(self._records):
                # A batch that was handed out record by record up to here.
                rest = self._records[self._index : self._index + max_records]
                columns = columns_of_records(rest, include_headers=include_headers)
                self._index += len(rest)
                return columns
            batch = self._next_batch()
            if batch is None:
                return None
            assert position is not None
            columns = consumer_columns(batch, *self.partition, position, include_headers=include_headers)
            if columns.num_rows > max_records:
                self._next_position = columns.column(2)[max_records].as_py()
                return columns.slice(0, max_records)
            self._remove_first()
            self._next_position = batch.header.next_offset
            if columns.num_rows:
                return columns

    def take_encoded(self) -> tuple[FetchedBatch, int] | None:
        """One batch and the first offset of it to look at; None: none at hand. Raises `error`.

        For readers that take whole batches and decode them (`decoded`) where and when they need them: what `current`
        gave and was not handed out is passed over.
        """
        self._decoded = None
        while self._batches:
            position = self.position
            assert position is not None
            fetched = self._batches[0]
            self._remove_first()
            self._next_position = fetched.header.next_offset
            if not fetched.header.control:
                return fetched, position
        if self.error is not None:
            raise self.error
        return None

    def decoded(self, fetched: FetchedBatch) -> Batch | None:
        """Decodes a batch, in any thread; None: it cannot be read, and is passed over. Raises `CorruptRecordError`."""
        try:
            return decode(fetched.buffer, fetched.start, verify_crc=self._check_crcs)
        except CorruptBatchError as error:
            self._met_corrupt(fetched, error)
            return None

    def check(self, fetched: FetchedBatch) -> bool:
        """Checks a batch of which no more than the header is wanted. False: it is passed over. Raises
        `CorruptRecordError`."""
        if self._check_crcs:
            try:
                verify(fetched.buffer, fetched.start, fetched.header)
            except CorruptBatchError as error:
                self._met_corrupt(fetched, error)
                return False
        return True

    def _met_corrupt(self, fetched: FetchedBatch, error: CorruptBatchError) -> None:
        """The CRC covers the last offset. Where it is wrong, that is believed if it agrees with the number of records:
        no damage of one of the two leaves them so. (Compaction does: then it is not.)"""
        header = fetched.header
        try:
            verify(fetched.buffer, fetched.start, header)
            trusted = True
        except CorruptBatchError:
            trusted = header.record_count == header.last_offset_delta + 1
        try:
            self._corrupt.met(self.partition, header, error.reason, trusted=trusted)
        except HighwaterError as refusal:
            raise refusal from error

    def _next_batch(self) -> Batch | None:
        """The first batch, decoded and left where it is. Raises `CorruptRecordError`, or `error` where none is left."""
        while self._batches:
            fetched = self._batches[0]
            if fetched.header.control:
                self._remove_first()  # markers of transactions are not for users
                self._next_position = fetched.header.next_offset
                continue
            if self._decoded is None or self._decoded[0] is not fetched:
                batch = self.decoded(fetched)
                if batch is None:
                    self._remove_first()
                    self._next_position = fetched.header.next_offset
                    continue
                self._decoded = (fetched, batch)
            return self._decoded[1]
        self._decoded = None
        if self.error is not None:
            raise self.error
        return None

    def _remove_first(self) -> None:
        fetched = self._batches.popleft()
        self.buffered_bytes -= fetched.header.size_bytes
        self._on_change(self)
