"""Results of `send` and `send_table`: small awaitables, one future a batch and not one a record."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from highwater.client.exceptions import HighwaterError
from highwater.telemetry.application_span import Parent


class RecordMetadata(NamedTuple):
    """The place of a record. `offset` is -1 where the broker did not say (`acks=0`)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """The place of a batch: `records` records from `base_offset` on; -1 where the broker did not say (`acks=0`)."""

    topic: str
    partition: int
    base_offset: int
    records: int


class TableMetadata(NamedTuple):
    """The places of a table's rows, in the order in which each partition got them."""

    records: int
    batches: tuple[BatchMetadata, ...]


class BatchDelivery:
    """The outcome of one batch, shared by the deliveries of its records.

    A batch that was too large is split: it then has several parts, each with its first index and its base offset.
    """

    __slots__ = (
        "_future",
        "_outstanding",
        "error",
        "failed_records",
        "parent",
        "partition",
        "parts",
        "retrieved",
        "topic",
    )

    def __init__(self, topic: str, partition: int, parent: Parent | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.parent = parent  # the application's span when the batch was begun
        self.parts: list[tuple[int, int, int, int]] = []  # (first index, records, base offset, log append time or -1)
        self.error: HighwaterError | None = None
        self.failed_records = 0
        self.retrieved = False  # somebody was told of `error`
        self._outstanding = 1
        self._future: asyncio.Future[None] | None = None

    def split(self, pieces: int) -> None:
        """Counts `pieces` parts for one that is outstanding."""
        self._outstanding += pieces - 1

    def succeed(self, first_index: int, records: int, base_offset: int, log_append_time_ms: int) -> None:
        self.parts.append((first_index, records, base_offset, log_append_time_ms))
        self._settle()

    def fail(self, error: HighwaterError, records: int) -> None:
        """A part of so many records failed."""
        if self.error is None:
            self.error = error
        self.failed_records += records
        self._settle()

    def _settle(self) -> None:
        self._outstanding -= 1
        if self._outstanding == 0:
            self.parts.sort()
            if self._future is not None and not self._future.done():
                self._future.set_result(None)

    @property
    def done(self) -> bool:
        return self._outstanding == 0

    async def wait(self) -> None:
        """Waits until the outcome is known; never raises it."""
        if self._outstanding:
            if self._future is None:
                self._future = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._future)

    def outcome(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """The outcome of the record at `index`. Raises the part's error: with a split batch only what failed, fails."""
        position = bisect_right(self.parts, index, key=lambda part: part[0]) - 1
        if position >= 0:
            first, records, base_offset, log_append_time_ms = self.parts[position]
            if index < first + records:
                offset = base_offset + index - first if base_offset >= 0 else -1
                return RecordMetadata(
                    self.topic,
                    self.partition,
                    offset,
                    timestamp_ms if log_append_time_ms < 0 else log_append_time_ms,
                )
        assert self.error is not None
        self.retrieved = True
        raise self.error

    def batches(self, first_index: int, records: int) -> list[BatchMetadata]:
        """The places of so many records from `first_index` on. Raises the part's error where some of them failed."""
        end = first_index + records
        found = []
        for first, count, base_offset, _ in self.parts:
            begin, records_here = max(first, first_index), min(first + count, end) - max(first, first_index)
            if records_here > 0:
                offset = base_offset + begin - first if base_offset >= 0 else -1
                found.append(BatchMetadata(self.topic, self.partition, offset, records_here))
        if sum(batch.records for batch in found) < records:
            assert self.error is not None
            self.retrieved = True
            raise self.error
        return found


class Delivery:
    """The delivery of one record: `await` it for its `RecordMetadata`, or drop it and let `flush` speak for all.

    Awaiting raises `DeliveryTimeoutError`, `RecordTooLargeError` or another `HighwaterError` where the record was not
    acknowledged.
    """

    __slots__ = ("_batch", "_timestamp_ms", "index")

    def __init__(self, batch: BatchDelivery, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self.index = index  # within the batch
        self._timestamp_ms = timestamp_ms

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.done:
            yield from self._batch.wait().__await__()
        return self._batch.outcome(self.index, self._timestamp_ms)

    def done(self) -> bool:
        return self._batch.done

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def partition(self) -> int:
        return self._batch.partition


class TablePart(NamedTuple):
    """Rows of a table in one batch, which others may share with them: `records` from `first_index` on."""

    batch: BatchDelivery
    first_index: int
    records: int


class TableDelivery:
    """The delivery of a table: `await` it for its `TableMetadata`. Raises the first error of its rows that there is."""

    __slots__ = ("_parts", "_records")

    def __init__(self, parts: Sequence[TablePart], records: int) -> None:
        self._parts = parts
        self._records = records

    def __await__(self) -> Generator[Any, None, TableMetadata]:
        for part in self._parts:
            if not part.batch.done:
                yield from part.batch.wait().__await__()
        found = [metadata for batch, first, records in self._parts for metadata in batch.batches(first, records)]
        return TableMetadata(self._records, tuple(found))

    def done(self) -> bool:
        return all(part.batch.done for part in self._parts)
