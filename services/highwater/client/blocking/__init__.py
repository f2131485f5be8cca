"""`Producer`, `Consumer` and `Admin` for plain code: the async ones, run on a background thread's event loop.

    with Producer("127.0.0.1:9092") as producer:
        producer.send("events", b"value", key=b"key")
        producer.flush()

Same names, same arguments. Nothing is created before the first call, so a process may fork before it (Spark executors,
multiprocessing); a client that was used does not survive a fork, see `highwater.rpc.forking`. Each client may be shared
by threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from time import monotonic
from typing import Any, Generic, Self, TypeVar, Unpack

import pyarrow as pa

from highwater.client.admin import admin as async_admin
from highwater.client.admin.descriptions import (
    BrokerReach,
    ClusterDescription,
    ConfigValue,
    LogDirDescription,
    NewTopic,
    TopicDescription,
    TopicResult,
)
from highwater.client.admin.replica_verification import PartitionVerification
from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.blocking.options import AdminOptions, ConsumerOptions, ProducerOptions
from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.consumer import consumer as async_consumer
from highwater.client.consumer.consumer_record import ConsumerRecord
from highwater.client.exceptions import BufferExhaustedError, ClientClosedError, HighwaterError, InvalidRequestError
from highwater.client.producer import exit_flush
from highwater.client.producer import producer as async_producer
from highwater.client.producer.accumulator import RECORD_OVERHEAD_BYTES, Headers, checked_timestamp
from highwater.client.producer.delivery import Delivery, RecordMetadata, TableMetadata
from highwater.client.producer.sender import MAX_UNRETRIEVED
from highwater.client.producer.table_batches import ArrowStream, as_table
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition
from highwater.rpc import forking

__all__ = ["Admin", "Consumer", "PendingDelivery", "Producer"]

ClientT = TypeVar("ClientT", async_producer.Producer, async_consumer.Consumer, async_admin.Admin)
ResultT = TypeVar("ResultT")
TwinT = TypeVar("TwinT")
Partition = async_consumer.Partition

# What a thread may be ahead of the event loop with, before `send` waits.
HAND_OVER_BYTES = 8 * 1024 * 1024
# For the event loop's thread to count records at exit.
COUNTING_TIMEOUT_S = 5.0


def _with_the_signature_of(client: type) -> Callable[[type[TwinT]], type[TwinT]]:
    """For `help()` and for editors that ask the class: its options and their defaults are those of the async client."""

    def decorated(twin: type[TwinT]) -> type[TwinT]:
        twin.__signature__ = signature(client)  # type: ignore[attr-defined]
        return twin

    return decorated


class _Blocking(Generic[ClientT]):
    """Starts the async client with the first call and runs its coroutines."""

    def __init__(self, client: ClientT) -> None:
        self._client: ClientT = client
        self._process_id: int | None = None
        self._starting = threading.Lock()
        self._start_failure: tuple[float, HighwaterError] | None = None  # the last one, and when

    def start(self) -> Self:
        """Connects now instead of with the first call. Raises `NetworkError` where no bootstrap broker answers within
        `max_block_ms`; it may then be called again."""
        self._run(self._client.start)  # a second start does nothing, or says that it was stopped
        return self

    def stop(self) -> None:
        """Closes. Does nothing in a forked child: what the parent started is the parent's."""
        if self._process_id == os.getpid():
            event_loop_thread().run(self._client.stop())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _ensure_started(self) -> None:
        if self._process_id is not None:
            self._check_process()
            return
        if (refusal := forking.refusal()) is not None:
            raise ClientClosedError(refusal)  # before the lock: the thread that held it may be the parent's
        began = monotonic()
        with self._starting:
            if self._process_id is None:
                if self._start_failure is not None and self._start_failure[0] >= began:
                    raise self._start_failure[1]  # of the attempt that this thread has waited for
                try:
                    event_loop_thread().run(self._client.start())
                except HighwaterError as error:
                    self._start_failure = monotonic(), error
                    raise
                self._process_id = os.getpid()

    def _check_process(self) -> None:
        if self._process_id != os.getpid():
            raise ClientClosedError(
                forking.refusal() or "this client was used before the process forked; make another, after the fork"
            )

    def _run(self, work: Callable[[], Coroutine[Any, Any, ResultT]], timeout_s: float | None = None) -> ResultT:
        self._ensure_started()
        return event_loop_thread().run(work(), timeout_s)

    def _call(self, work: Callable[[], ResultT]) -> ResultT:
        """A plain call, on the event loop's thread."""

        async def called() -> ResultT:
            return work()

        return self._run(called)


class PendingDelivery:
    """The delivery of one record. `result()` waits for its `RecordMetadata`."""

    __slots__ = ("_producer", "delivery", "error")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.delivery: Delivery | None = None
        self.error: HighwaterError | None = None  # it never got into the buffer

    def done(self) -> bool:
        return self.error is not None or (self.delivery is not None and self.delivery.done())

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Raises what kept the record from being acknowledged; `TimeoutError` after `timeout_s`."""
        return self._producer.wait_for(self, timeout_s)


@_with_the_signature_of(async_producer.Producer)
class Producer(_Blocking[async_producer.Producer]):
    """See `highwater.client.Producer`. `send` hands records to the event loop in bulk: no hop between threads each."""

    def __init__(self, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(async_producer.Producer(bootstrap, **options))
        self._max_block_s = options.get("max_block_ms", 60_000) / 1000
        self.exit_timeout_s: float = options.get("delivery_timeout_ms", 120_000) / 1000
        self._known_topics: set[str] = set()
        self._room = threading.Condition()
        self._pending: deque[tuple[PendingDelivery, int, tuple[Any, ...]]] = deque()
        self._pending_bytes = 0
        self._hand_over: asyncio.Task[None] | None = None
        self._handing_over = False
        self._refused: deque[HighwaterError] = deque(maxlen=MAX_UNRETRIEVED)
        self._exiting = False  # the flush at exit has begun
        self._stopped = False  # or is being stopped

    def _ensure_started(self) -> None:
        started = self._process_id is not None
        super()._ensure_started()
        if not started:
            exit_flush.flush_at_exit(self)

    def stop(self) -> None:
        """Flushes, then closes. Raises what `flush` raises, after closing. An interrupt ends the flush; what it had not
        settled is told in the log."""
        if not self._begin_stop():
            return
        told = False
        try:
            self.flush()
            told = True
        except HighwaterError:
            told = True
            raise
        finally:
            self._close(None if told else "when stop() was interrupted")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:  # type: ignore[override]
        """Where the body raised, that error is the one to see, and the log tells what was not acknowledged."""
        if error is None:
            self.stop()
        elif self._begin_stop():
            try:
                self.settle(None)
            finally:
                self._close(exit_flush.AFTER_ERROR)

    def _begin_stop(self) -> bool:
        """Refuses what is sent from now on. False: there is nothing to stop."""
        if self._process_id != os.getpid():
            return False
        with self._room:
            begins, self._stopped = not self._stopped, True
        return begins

    def _close(self, when: str | None) -> None:
        """`when`: nobody else tells what was not acknowledged."""
        try:
            if when is not None:
                exit_flush.log_unacknowledged(self.unacknowledged(), when)
        finally:
            event_loop_thread().run(self._client.abandon())
            exit_flush.forget(self)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> PendingDelivery:
        """Hands a record over and returns. What keeps it from being sent is raised by `result()` or `flush()`.

        Raises:
            UnknownTopicError, NetworkError: the topic's metadata could not be had.
            BufferExhaustedError: the buffer stayed full for `max_block_ms`.
            InvalidTimestampError: `timestamp_ms` is not a time.
        """
        if topic not in self._known_topics:
            self._run(lambda: self._client.partitions_for(topic))
            self._known_topics.add(topic)
        self._check_process()
        for what, content in (("value", value), ("key", key)):
            if content is not None and not isinstance(content, bytes | bytearray | memoryview):
                raise InvalidRequestError(f"a record's {what} must be bytes or None, not {type(content).__name__}")
        if timestamp_ms is not None:
            timestamp_ms = checked_timestamp(timestamp_ms)
        pending = PendingDelivery(self)
        size = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        with self._room:
            self._check_open()
            if self._pending_bytes + size > HAND_OVER_BYTES and self._pending:
                fits = self._room.wait_for(
                    lambda: self._pending_bytes + size <= HAND_OVER_BYTES or not self._pending, self._max_block_s
                )
                if not fits:
                    raise BufferExhaustedError("the producer's buffer stayed full for max_block_ms; send less")
                self._check_open()
            self._pending.append((pending, size, (topic, value, key, headers, timestamp_ms, partition)))
            self._pending_bytes += size
            if not self._handing_over:
                self._handing_over = True
                event_loop_thread().call_soon(self._begin_hand_over)
        return pending

    def _check_open(self) -> None:
        """While `_room` is held: what is taken in after it was closed, nobody would send."""
        if self._stopped:
            raise ClientClosedError("the producer was stopped")
        if self._exiting:
            raise ClientClosedError(
                "the interpreter is exiting: send before it does, at the latest in an atexit handler"
            )

    def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        pending = self.send(topic, value, key, headers=headers, timestamp_ms=timestamp_ms, partition=partition)
        return pending.result()

    def send_table(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch | ArrowStream,
        *,
        key_column: str | None = "key",
        value_column: str = "value",
        timestamp_column: str | None = None,
        headers_column: str | None = None,
        partition: int | None = None,
        wait: bool = True,
    ) -> TableMetadata | None:
        """Sends every row. With `wait` until all are acknowledged; without, until all are in the buffer (then `flush`
        speaks for them) and the result is None."""
        rows = as_table(table)  # in this thread: frames may be slow to give their rows

        async def sent() -> TableMetadata | None:
            await self._handed_over()
            delivery = await self._client.send_table(
                topic,
                rows,
                key_column=key_column,
                value_column=value_column,
                timestamp_column=timestamp_column,
                headers_column=headers_column,
                partition=partition,
            )
            return await delivery if wait else None

        return self._run(sent)

    def flush(self) -> None:
        """Waits until everything sent so far is settled; raises the first failure that nobody was told of."""

        async def flushed() -> None:
            await self._handed_over()
            await self._client.flush()
            if self._refused:
                error = self._refused[0]
                self._refused.clear()
                raise error

        self._run(flushed)

    def partitions_for(self, topic: str) -> int:
        return self._run(lambda: self._client.partitions_for(topic))

    def wait_for(self, pending: PendingDelivery, timeout_s: float | None) -> RecordMetadata:
        """`PendingDelivery.result`."""

        async def outcome() -> RecordMetadata:
            if pending.delivery is None and pending.error is None:
                await self._handed_over()
            if pending.error is not None:
                if pending.error in self._refused:
                    self._refused.remove(pending.error)
                raise pending.error
            assert pending.delivery is not None
            return await pending.delivery

        return self._run(outcome, timeout_s)

    # At exit (see `exit_flush`)

    def settle(self, timeout_s: float | None) -> None:
        async def settled() -> None:
            await self._handed_over()
            await self._client.settle()

        event_loop_thread().run(settled(), timeout_s)

    def unacknowledged(self) -> exit_flush.Unacknowledged:
        async def counted() -> exit_flush.Unacknowledged:
            with self._room:
                left = [pending for pending, _, _ in self._pending if pending.delivery is None]
            return self._client.unacknowledged(len(left), self._refused)

        return event_loop_thread().run(counted(), COUNTING_TIMEOUT_S)

    def refuse_more(self) -> None:
        with self._room:
            self._exiting = True
        self._client.unacknowledged_told = True

    # On the event loop

    def _begin_hand_over(self) -> None:
        self._hand_over = asyncio.ensure_future(self._hand_all_over())

    async def _handed_over(self) -> None:
        """What was sent before this call is in the producer's buffer, or refused."""
        while self._hand_over is not None and not self._hand_over.done():
            await asyncio.shield(self._hand_over)

    async def _hand_all_over(self) -> None:
        while True:
            with self._room:
                taken = list(self._pending)
                if not taken:
                    self._handing_over = False
                    return
            for pending, size, (topic, value, key, headers, timestamp_ms, partition) in taken:
                try:
                    pending.delivery = await self._client.send(
                        topic, value, key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
                    )
                except HighwaterError as error:
                    pending.error = error
                    self._refused.append(error)
                except Exception as error:
                    # Not of the kinds that `send` takes. Whoever waits for it is told, and what follows goes on.
                    pending.error = InvalidRequestError(f"a record for {topic!r} cannot be sent: {error!r}")
                    self._refused.append(pending.error)
                with self._room:
                    self._pending.popleft()
                    self._pending_bytes -= size
                    self._room.notify_all()


@_with_the_signature_of(async_consumer.Consumer)
class Consumer(_Blocking[async_consumer.Consumer]):
    """See `highwater.client.Consumer`. Iterate it, or poll."""

    def __init__(
        self, *topics: str, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(async_consumer.Consumer(*topics, bootstrap=bootstrap, **options))

    def assign(self, partitions: Iterable[Partition]) -> None:
        self._call(lambda: self._client.assign(partitions))

    def subscribe(self, topics: Iterable[str]) -> None:
        self._run(lambda: self._client.subscribe(topics))

    def assignment(self) -> frozenset[TopicPartition]:
        return self._call(self._client.assignment)

    def pause(self, *partitions: Partition) -> None:
        self._call(lambda: self._client.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        self._call(lambda: self._client.resume(*partitions))

    def seek(self, partition: Partition, offset: int) -> None:
        self._call(lambda: self._client.seek(partition, offset))

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Returns when the positions are known."""
        self._run(lambda: self._sought(lambda: self._client.seek_to_beginning(*partitions)))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Returns when the positions are known: what is sent from then on is handed out."""
        self._run(lambda: self._sought(lambda: self._client.seek_to_end(*partitions)))

    async def _sought(self, seek: Callable[[], async_consumer.Seeking]) -> None:
        await seek()

    def position(self, partition: Partition) -> int:
        return self._run(lambda: self._client.position(partition))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._run(lambda: self._client.offsets_for_times(timestamps_ms))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        return self._run(lambda: self._client.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        return self._run(lambda: self._client.end_offsets(partitions))

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumerRecord]:
        return self._run(lambda: self._client.poll(timeout_ms, max_records))

    def poll_batches(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[pa.RecordBatch]:
        return self._run(lambda: self._client.poll_batches(timeout_ms, max_records))

    def poll_table(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.Table:
        return self._run(lambda: self._client.poll_table(timeout_ms, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever. Leaving the loop loses none: what was fetched and not given is read again."""
        while True:
            records = self.poll()
            given = 0
            try:
                for record in records:
                    given += 1
                    yield record
            finally:
                if given < len(records):
                    following = records[given]
                    self.seek((following.topic, following.partition), following.offset)


@_with_the_signature_of(async_admin.Admin)
class Admin(_Blocking[async_admin.Admin]):
    """See `highwater.client.Admin`."""

    def __init__(self, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[AdminOptions]) -> None:
        super().__init__(async_admin.Admin(bootstrap, **options))

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult:
        return self._run(
            lambda: self._client.create_topic(
                topic, partitions, replication_factor, config, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[TopicResult]:
        return self._run(lambda: self._client.create_topics(topics, validate_only=validate_only, timeout_ms=timeout_ms))

    def create_partitions(
        self,
        topic: str,
        total: int,
        assignment: Sequence[Sequence[int]] = (),
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
    ) -> TopicResult:
        return self._run(
            lambda: self._client.create_partitions(
                topic, total, assignment, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def delete_topic(self, topic: str, *, timeout_ms: int = 30_000) -> TopicResult:
        return self._run(lambda: self._client.delete_topic(topic, timeout_ms=timeout_ms))

    def delete_topics(self, topics: Sequence[str], *, timeout_ms: int = 30_000) -> list[TopicResult]:
        return self._run(lambda: self._client.delete_topics(topics, timeout_ms=timeout_ms))

    def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]:
        return self._run(lambda: self._client.describe_topics(topics))

    def alter_topic_config(
        self, topic: str, changed: Mapping[str, str], unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        self._run(lambda: self._client.alter_topic_config(topic, changed, unset, validate_only=validate_only))

    def describe_topic_config(self, topic: str) -> dict[str, ConfigValue]:
        return self._run(lambda: self._client.describe_topic_config(topic))

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, HighwaterError | None]:
        return self._run(lambda: self._client.elect_leaders(partitions, timeout_ms=timeout_ms))

    def verify_replicas(
        self,
        topic: str,
        partition: int,
        *,
        check_crcs: bool = False,
        progress: Callable[[int, int], None] = lambda offset, high_watermark: None,
    ) -> PartitionVerification:
        return self._run(
            lambda: self._client.verify_replicas(topic, partition, check_crcs=check_crcs, progress=progress)
        )

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        return self._run(lambda: self._client.list_topics(include_internal=include_internal))

    def describe_cluster(self) -> ClusterDescription:
        return self._run(self._client.describe_cluster)

    def check_brokers(self, *, timeout_ms: float = 5_000) -> list[BrokerReach]:
        return self._run(lambda: self._client.check_brokers(timeout_ms=timeout_ms))

    def describe_log_dirs(self, brokers: Sequence[int] | None = None) -> list[LogDirDescription]:
        return self._run(lambda: self._client.describe_log_dirs(brokers))

    def alter_replica_log_dirs(
        self, moves: Mapping[tuple[tuple[str, int], int], str]
    ) -> dict[tuple[TopicPartition, int], HighwaterError | None]:
        return self._run(lambda: self._client.alter_replica_log_dirs(moves))

    def list_offsets(
        self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._run(lambda: self._client.list_offsets(partitions))
