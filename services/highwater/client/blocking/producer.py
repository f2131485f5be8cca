"""The blocking producer. Threads hand records to the event loop in bulk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Unpack

import pyarrow as pa

from highwater.client.blocking.client import BlockingClient, with_the_signature_of
from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.blocking.options import ProducerOptions
from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.exceptions import BufferExhaustedError, ClientClosedError, HighwaterError, InvalidRequestError
from highwater.client.producer import exit_flush
from highwater.client.producer import producer as async_producer
from highwater.client.producer.accumulator import RECORD_OVERHEAD_BYTES, Headers, checked_timestamp
from highwater.client.producer.delivery import Delivery, RecordMetadata, TableMetadata
from highwater.client.producer.sender import MAX_UNRETRIEVED
from highwater.client.producer.table_batches import ArrowStream, as_table

# What a thread may be ahead of the event loop with, before `send` waits.
HAND_OVER_BYTES = 8 * 1024 * 1024
# For the event loop's thread to count records at exit.
COUNTING_TIMEOUT_S = 5.0


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


@with_the_signature_of(async_producer.Producer)
class Producer(BlockingClient[async_producer.Producer]):
    """See `highwater.client.Producer`. `send` hands records to the event loop in bulk: no hop between threads each."""

    def __init__(self, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(async_producer.Producer(bootstrap, **options))
        self._max_block_s = options.get("max_block_ms", 60_000) / 1000
        self.exit_timeout_s: float = options.get("delivery_timeout_ms", 120_000) / 1000
        self._known_topics: set[str] = set()
        # Taken by itself, not by the condition: an interrupt could leave that one locked (`event_loop_thread`).
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
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
        """Stops as `stop` does. Where the body raised, that error is the one to see, and the log tells what was not
        acknowledged."""
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
        with self._lock:
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
        with self._lock:
            self._check_open()
            if self._pending_bytes + size > HAND_OVER_BYTES and self._pending:
                self._want_hand_over()  # of a `send` that was interrupted
                fits = self._room.wait_for(
                    lambda: self._pending_bytes + size <= HAND_OVER_BYTES or not self._pending, self._max_block_s
                )
                if not fits:
                    raise BufferExhaustedError("the producer's buffer stayed full for max_block_ms; send less")
                self._check_open()
            self._pending.append((pending, size, (topic, value, key, headers, timestamp_ms, partition)))
            self._pending_bytes += size
            self._want_hand_over()
        return pending

    def _want_hand_over(self) -> None:
        """`_lock` is held."""
        if not self._handing_over:
            event_loop_thread().call_soon(self._begin_hand_over)
            self._handing_over = True  # last: an interrupt before it leaves a hand-over too many, not none

    def _check_open(self) -> None:
        """Raises where the producer is closed: nobody would send what is taken in. `_lock` is held."""
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

    @property
    def client_id(self) -> str:
        return self._client.client_id

    def metrics(self) -> dict[str, float]:
        """As the async producer's; from any thread."""
        return self._client.metrics()

    # At exit (see `exit_flush`)

    def settle(self, timeout_s: float | None) -> None:
        async def settled() -> None:
            await self._handed_over()
            await self._client.settle()

        event_loop_thread().run(settled(), timeout_s)

    def unacknowledged(self) -> exit_flush.Unacknowledged:
        async def counted() -> exit_flush.Unacknowledged:
            with self._lock:
                left = [pending for pending, _, _ in self._pending if pending.delivery is None]
            return self._client.unacknowledged(len(left), self._refused)

        return event_loop_thread().run(counted(), COUNTING_TIMEOUT_S)

    def refuse_more(self) -> None:
        with self._lock:
            self._exiting = True
        self._client.unacknowledged_told = True

    # On the event loop

    def _begin_hand_over(self) -> None:
        if self._hand_over is None or self._hand_over.done():
            self._hand_over = asyncio.ensure_future(self._hand_all_over())

    async def _handed_over(self) -> None:
        """Waits until all that was sent before this call is in the producer's buffer, or refused."""
        self._begin_hand_over()  # of a `send` that was interrupted
        while self._hand_over is not None and not self._hand_over.done():
            await asyncio.shield(self._hand_over)

    async def _hand_all_over(self) -> None:
        while True:
            with self._lock:
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
                with self._lock:
                    self._pending.popleft()
                    self._pending_bytes -= size
                    self._room.notify_all()
