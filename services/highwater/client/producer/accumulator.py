"""Records that wait for others to share a batch with: one open batch a partition, plain lists of Python objects, or
few rows of tables.

`append` is the hot path of `send`: some ten operations a record, no future, no per-record object but its `Delivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index as as_int
from time import time

import pyarrow as pa

from highwater.client.exceptions import InvalidRequestError, InvalidTimestampError, RecordTooLargeError
from highwater.client.producer.buffer_memory import BufferMemory
from highwater.client.producer.delivery import BatchDelivery, Delivery
from highwater.client.producer.encoding import BatchFormat
from highwater.client.producer.partition_queue import PartitionQueue, ProducerBatch
from highwater.client.producer.partitioner import partition_for_key
from highwater.records import RecordHeader
from highwater.records.timestamps import MAX_TIMESTAMP_MS, writable
from highwater.telemetry.application_span import Parent, no_span

Headers = Sequence[tuple[str, bytes | None]]

# What a record costs beside key and value: its timestamp and Arrow's offsets.
RECORD_OVERHEAD_BYTES = 16
MAX_CACHED_KEYS = 16_384
# A batch is filled by its expected size on the wire. This bounds how far the expectation is trusted: what a
# broker lets a batch expand to (`records.limits`) is well above it.
MAX_EXPECTED_RATIO = 10.0
NEVER_DUE = float("inf")


class OpenBatch:
    """Records that wait. The lists are parallel; `headers` is None until a record has some."""

    __slots__ = ("delivery", "headers", "keys", "opened_ms", "size_bytes", "timestamps", "values")

    def __init__(self, delivery: BatchDelivery, opened_ms: float) -> None:
        self.delivery = delivery
        self.opened_ms = opened_ms
        self.size_bytes = 0
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[tuple[RecordHeader, ...]] | None = None

    @property
    def records(self) -> int:
        return len(self.values)


class OpenTable:
    """Rows of tables that wait, in order: columns timestamp, key, value[, headers]."""

    __slots__ = ("delivery", "opened_ms", "records", "rows", "size_bytes")

    def __init__(self, delivery: BatchDelivery, opened_ms: float) -> None:
        self.delivery = delivery
        self.opened_ms = opened_ms
        self.size_bytes = 0
        self.records = 0
        self.rows: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch, size_bytes: int) -> None:
        self.rows.append(rows)
        self.records += rows.num_rows
        self.size_bytes += size_bytes


class PartitionAccumulator:
    """One partition: its open batch, those that are closed but not encoded, and its queue to the leader."""

    __slots__ = ("closed", "due_ms", "leader_epoch", "open", "queue", "topic")

    def __init__(self, topic: TopicAccumulator, queue: PartitionQueue) -> None:
        self.topic = topic
        self.queue = queue
        self.open: OpenBatch | OpenTable | None = None
        self.leader_epoch = -1  # of the leader that it was last sent to
        self.closed: dict[ProducerBatch, OpenBatch | OpenTable] = {}  # in order; their batches stand in `queue.fresh`
        self.due_ms = NEVER_DUE  # when the sender looks at it without being told to

    def close(self) -> None:
        """The open batch takes no more and waits for the encoder."""
        batch = self.open
        if batch is None:
            return
        self.open = None
        if isinstance(batch, OpenBatch):
            self.topic.sticky = -1
        closed = ProducerBatch(batch.delivery, batch.records, batch.opened_ms, charged_bytes=batch.size_bytes)
        self.closed[closed] = batch
        self.queue.add(closed)

    @property
    def idle(self) -> bool:
        return self.open is None and self.queue.idle


class TopicAccumulator:
    """The partitions of one topic, and which of them a record belongs to.

    Keyed: murmur2 of the key, as Kafka's. Keyless: one partition at a time, changed with each batch.
    """

    __slots__ = (
        "_batch_bytes",
        "_choose",
        "_clock_ms",
        "_max_record_bytes",
        "_memory",
        "_partition_of_key",
        "_queue_of",
        "_used",
        "_wake",
        "batch_format",
        "full_bytes",
        "name",
        "parent",
        "partitions",
        "ratio",
        "sticky",
        "yield_due",
    )

    def __init__(
        self,
        name: str,
        batch_format: BatchFormat,
        *,
        batch_bytes: int,
        max_record_bytes: int,
        memory: BufferMemory,
        clock_ms: Callable[[], float],
        choose: Callable[[TopicAccumulator], int],
        wake: Callable[[PartitionAccumulator], None],
        queue_of: Callable[[str, int], PartitionQueue],
        parent: Callable[[], Parent | None] = no_span,
    ) -> None:
        """`queue_of` makes the queue of a partition, when it is first sent to: of thousands a producer may use a few.
        `parent` tells, once for each batch, in which span its first record is sent."""
        self.name = name
        self.parent = parent
        self.batch_format = batch_format
        self.partitions = 0  # as many as the topic has
        self.sticky = -1  # of keyless records; -1: chosen with the next one
        self.ratio: float | None = None  # bytes accumulated for a byte on the wire, as lately seen
        self.full_bytes = batch_bytes  # accumulated bytes that should make a batch of `batch_bytes`
        self._batch_bytes = batch_bytes
        self._max_record_bytes = max_record_bytes
        self._memory = memory
        self._clock_ms = clock_ms
        self._choose = choose
        self._wake = wake
        self._queue_of = queue_of
        self._used: dict[int, PartitionAccumulator] = {}
        self._partition_of_key: dict[bytes, int] = {}
        self.yield_due = False  # a batch was closed: a task that only sends must let the sender run

    def has_partitions(self, partitions: int) -> None:
        """The topic has so many; it may have had fewer before."""
        if partitions > self.partitions:
            self.partitions = partitions
            self._partition_of_key.clear()

    def of(self, partition: int) -> PartitionAccumulator:
        """That of a partition which the topic has."""
        found = self._used.get(partition)
        if found is None:
            found = self._used[partition] = PartitionAccumulator(self, self._queue_of(self.name, partition))
        return found

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> Delivery | None:
        """Adds a record; None where the buffer has no room for it.

        Raises:
            InvalidRequestError: a type that is not bytes, no such partition.
            InvalidTimestampError: not a time in ms.
            RecordTooLargeError: more than `max_request_size`.
        """
        if type(value) is not bytes and value is not None:
            value = as_bytes(value, "value")
        if key is None:
            size = RECORD_OVERHEAD_BYTES
        else:
            if type(key) is not bytes:
                key = as_bytes(key, "key")
            size = len(key) + RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if partition is None:
            if key is not None:
                partition = self._partition_of_key.get(key)
                if partition is None:
                    partition = self._place(key)
            else:
                partition = self.sticky
                if partition < 0:
                    partition = self.sticky = self._choose(self)
        elif not 0 <= partition < self.partitions:
            raise InvalidRequestError(
                f"topic {self.name} has partitions 0 to {self.partitions - 1}, there is no {partition}"
            )
        timestamp_ms = int(time() * 1000) if timestamp_ms is None else checked_timestamp(timestamp_ms)
        pairs: tuple[RecordHeader, ...] = ()
        if headers:
            pairs = checked_headers(headers)
            size += sum(len(name) + len(content or b"") + 8 for name, content in pairs)
        if size > self._max_record_bytes:
            raise RecordTooLargeError(
                f"a record of {size} bytes for {self.name} exceeds max_request_size ({self._max_record_bytes}); "
                "send smaller records, or raise max_request_size and the topic's max.message.bytes"
            )
        memory = self._memory
        if memory.used_bytes + size > memory.limit_bytes and not memory.fits(size):
            return None
        accumulator = self._used.get(partition) or self.of(partition)
        batch = accumulator.open
        if type(batch) is not OpenBatch:
            accumulator.close()  # rows of tables that came before it
            delivery = BatchDelivery(self.name, partition, self.parent())
            batch = accumulator.open = OpenBatch(delivery, self._clock_ms())
            self._wake(accumulator)
        memory.used_bytes += size
        values = batch.values
        index = len(values)
        values.append(value)
        batch.keys.append(key)
        batch.timestamps.append(timestamp_ms)
        if pairs and batch.headers is None:
            batch.headers = [()] * index
        if batch.headers is not None:
            batch.headers.append(pairs)
        batch.size_bytes += size
        if batch.size_bytes >= self.full_bytes:
            accumulator.close()
            self.yield_due = True
            self._wake(accumulator)
        return Delivery(batch.delivery, index, timestamp_ms)

    def _place(self, key: bytes) -> int:
        if len(self._partition_of_key) >= MAX_CACHED_KEYS:
            self._partition_of_key.clear()
        partition = partition_for_key(key, self.partitions)
        self._partition_of_key[key] = partition
        return partition

    def observe(self, accumulated_bytes: int, encoded_bytes: int) -> None:
        """A batch of so many bytes came out as so many. Falling ratios count at once, rising ones by halves."""
        seen = min(accumulated_bytes / max(encoded_bytes, 1), MAX_EXPECTED_RATIO)
        self.ratio = seen if self.ratio is None or seen < self.ratio else (self.ratio + seen) / 2
        self.full_bytes = int(self._batch_bytes * max(self.ratio, 1.0))


def as_bytes(value: object, what: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = "; encode it first, for example with .encode()" if isinstance(value, str) else ""
    raise InvalidRequestError(f"a record's {what} must be bytes or None, not {type(value).__name__}{hint}")


def checked_timestamp(timestamp_ms: object) -> int:
    """Raises `InvalidTimestampError` unless it is an integer from -1 (none) to the year 9999, in ms since 1970."""
    try:
        found = as_int(timestamp_ms)  # type: ignore[arg-type]  # numpy's integers too
    except TypeError:
        raise InvalidTimestampError(
            f"a record's timestamp_ms must be an int, not {type(timestamp_ms).__name__}; "
            "for a datetime: int(moment.timestamp() * 1000)"
        ) from None
    if not writable(found):
        raise InvalidTimestampError(
            f"a record's timestamp_ms is {found}: it is ms since 1970, from 0 to {MAX_TIMESTAMP_MS} (the year 9999), "
            "or -1 for none"
        )
    return found


def checked_headers(headers: Headers) -> tuple[RecordHeader, ...]:
    """Raises `InvalidRequestError` unless they are pairs of a name and bytes."""
    if isinstance(headers, Mapping):
        raise InvalidRequestError(
            "headers are (name, value) pairs, as names may repeat; of a dict: list(headers.items())"
        )
    pairs = []
    try:
        for name, content in headers:
            if not isinstance(name, str):
                raise InvalidRequestError(f"a header's name must be str, not {type(name).__name__}")
            pairs.append((name, None if content is None else as_bytes(content, "header")))
    except (TypeError, ValueError):
        raise InvalidRequestError('headers are (name, value) pairs, such as [("source", b"docs")]') from None
    return tuple(pairs)
