"""The producer: `send` for single records, `send_table` for whole columns."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Literal, Self

import pyarrow as pa

from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.metadata import TopicInfo
from highwater.client.cluster.tls import client_certificates
from highwater.client.cluster.tls_options import FilePath, SecurityProtocol
from highwater.client.cluster.token import client_token
from highwater.client.cluster.tracing import Tracing, tracing_of
from highwater.client.exceptions import (
    BufferExhaustedError,
    ClientClosedError,
    HighwaterError,
    InvalidRequestError,
    UnknownTopicError,
)
from highwater.client.producer.accumulator import RECORD_OVERHEAD_BYTES, Headers, TopicAccumulator
from highwater.client.producer.buffer_memory import BufferMemory
from highwater.client.producer.delivery import Delivery, RecordMetadata, TableDelivery, TablePart
from highwater.client.producer.encoding import BatchFormat, codec_named, encode_table
from highwater.client.producer.exit_flush import (
    AFTER_ERROR,
    Unacknowledged,
    log_unacknowledged,
    tell_at_exit,
    warn_dropped,
)
from highwater.client.producer.partition_queue import PartitionQueue, RetryPolicy
from highwater.client.producer.sender import SMALL_CHUNK_BYTES, Sender, SenderSettings
from highwater.client.producer.table_batches import (
    MOST_OF_BATCH,
    ArrowStream,
    TableColumns,
    as_table,
    chunks,
    normalised,
)
from highwater.rpc.process import forking
from highwater.telemetry.application_span import application_span, no_span

# A tight loop of sends lets the event loop run once in so many records of a batch. Where acknowledgements come as fast
# as that it is the size of the batches: with 1,024 they were half as large, and a million sends took 1.4 times as long.
_YIELD_MASK = 2047
# Partitions drawn for a batch of records without keys, before all that are led are looked for.
_DRAWS = 8
# Rows that are encoded once to see how well a topic's tables compress.
_SAMPLE_ROWS = 2000
# Few rows of so many partitions are handed over in one turn of the event loop, so that they share requests.
_SMALL_CHUNKS_AT_ONCE = 32


class Producer:
    """Sends records, in order within each partition, each once (idempotent, RULES 6) unless `acks` is not `all`.

        async with Producer("127.0.0.1:9092") as producer:
            delivery = await producer.send("events", b"value", key=b"key")   # waits for buffer space only
            metadata = await delivery                                        # waits for the acknowledgement

    Args:
        bootstrap: `host:port` or `unix:/path`, one or several (a list, or separated by commas).
        acks: `all`: what `min.insync.replicas` asks for has it; 1: the leader has it; 0: the leader got it. Other than
            `all` turns idempotence off, and retries may then repeat or reorder records.
        enable_idempotence: None: wherever `acks` is `all`.
        linger_ms: how long a batch waits for more records while earlier ones of its partition are on their way. A lone
            record never waits.
        batch_size: bytes of a batch on the wire, after compression, that the producer aims for.
        compression: none, gzip, snappy, lz4 or zstd.
        max_in_flight: batches of a partition that may be sent and not answered, 1 to 5.
        buffer_memory: bytes of records that are not acknowledged; `send` waits when they are reached.
        max_request_size: largest record, and largest encoded batch, in bytes.
        max_block_ms: how long `start` may wait for a broker, `send` and `send_table` for metadata or buffer space.
        delivery_timeout_ms: from `send` to acknowledgement, all retries included; then `DeliveryTimeoutError`.
        retry_backoff_ms, retry_backoff_max_ms: between retries, doubling, with jitter.
        security_protocol, ssl_ca_file, ssl_certificate_file, ssl_key_file: `SSL` for brokers that speak TLS, and files
            in PEM; None: what the environment says (`HIGHWATER_SECURITY_PROTOCOL`, `HIGHWATER_SSL_CA_FILE`, ...).
        tracing: where the spans of a share of its requests go; None: as the environment says, or nowhere.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        *,
        client_id: str = "highwater-producer",
        acks: Literal["all", -1, 1, 0] = "all",
        enable_idempotence: bool | None = None,
        linger_ms: float = 5,
        batch_size: int = 640 * 1024,
        compression: str | None = "lz4",
        max_in_flight: int = 5,
        buffer_memory: int = 64 * 1024 * 1024,
        max_request_size: int = 1024 * 1024,
        max_block_ms: float = 60_000,
        request_timeout_ms: float = 30_000,
        delivery_timeout_ms: float = 120_000,
        retry_backoff_ms: float = 50,
        retry_backoff_max_ms: float = 1000,
        metadata_max_age_ms: float = 300_000,
        security_protocol: SecurityProtocol | None = None,
        ssl_ca_file: FilePath | None = None,
        ssl_certificate_file: FilePath | None = None,
        ssl_key_file: FilePath | None = None,
        token: str | None = None,
        token_file: FilePath | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        certificates, shown = client_certificates(locals()), client_token(locals())
        if acks not in ("all", -1, 1, 0):
            raise InvalidRequestError(f"acks is {acks!r}; it can be 'all', 1 or 0")
        wire_acks = -1 if acks == "all" else int(acks)
        if enable_idempotence and wire_acks != -1:
            raise InvalidRequestError(f"an idempotent producer needs acks='all', not {acks!r} (RULES 6.3)")
        if not 1 <= max_in_flight <= 5:
            raise InvalidRequestError(f"max_in_flight is {max_in_flight}; a broker remembers 5 batches, so 1 to 5")
        if batch_size < 1 or max_request_size < 1024 or buffer_memory < max_request_size:
            raise InvalidRequestError(
                f"batch_size {batch_size}, max_request_size {max_request_size}, buffer_memory {buffer_memory}: "
                "a batch has at least 1 byte, a request 1024, and the buffer holds at least one request"
            )
        self._idempotent = wire_acks == -1 if enable_idempotence is None else enable_idempotence
        self._max_in_flight = max_in_flight
        self._batch_bytes = min(batch_size, max_request_size)
        # Of that, what a table's batches aim for: those that come out larger must not be too large to be sent.
        self._table_share = min(1.0, max_request_size / (MOST_OF_BATCH * self._batch_bytes))
        self._max_request_bytes = max_request_size
        self._max_block_s = max_block_ms / 1000
        self._codec = codec_named(compression)
        self._retry = RetryPolicy(retry_backoff_ms, retry_backoff_max_ms, delivery_timeout_ms)
        self._memory = BufferMemory(buffer_memory)
        request_timeout_ms = min(request_timeout_ms, delivery_timeout_ms)
        self._cluster = Cluster(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            max_age_ms=metadata_max_age_ms,
            max_block_ms=max_block_ms,
            on_change=self._metadata_changed,
            allow_auto_topic_creation=True,
            certificates=certificates,
            token=shown,
            tracing=tracing_of(tracing),
        )
        settings = SenderSettings(
            client_id=client_id,
            acks=wire_acks,
            linger_ms=linger_ms,
            batch_bytes=self._batch_bytes,
            request_timeout_ms=request_timeout_ms,
            idempotent=self._idempotent,
        )
        self.client_id = client_id
        self._topics: dict[str, TopicAccumulator] = {}
        # Then every call comes by `_check_running`.
        self._sender = Sender(self._cluster, self._memory, settings, on_failure=self._topics.clear)
        self._running = False
        self._stopped = False
        self._process_id = -1  # where it was started
        self.unacknowledged_told = False  # of those that are left at exit

    # Life

    async def start(self) -> Self:
        """Connects. Raises `NetworkError` where no bootstrap broker answers within `max_block_ms`; it may then be
        called again."""
        if self._stopped:
            raise ClientClosedError("this producer was stopped; make another")
        if not self._running:
            self._sender.start()
            await self._cluster.start()
            self._running = True
            self._process_id = os.getpid()
            tell_at_exit(self)
            forking.tell_in_children(self)
        return self

    async def stop(self) -> None:
        """Flushes, then closes. Raises what `flush` raises, after closing; where the flush is interrupted, what it had
        not settled is told in the log."""
        if not self._running or forking.refusal() is not None:
            return
        told = False
        try:
            await self.flush()
            told = True
        except HighwaterError:
            told = True
            raise
        finally:
            if not told:
                log_unacknowledged(self.unacknowledged(), "when stop() was interrupted")
            await self.abandon()

    async def abandon(self) -> None:
        """Closes without a flush: what is not acknowledged fails."""
        if not self._running or forking.refusal() is not None:
            return
        self._running = False
        self._stopped = True
        self._topics.clear()
        await self._sender.close(ClientClosedError("the producer was stopped before this record was acknowledged"))
        await self._cluster.close()

    def unacknowledged(self, waiting: int = 0, refused: Collection[HighwaterError] = ()) -> Unacknowledged:
        """Records that were sent, are not acknowledged and that nobody was told of; beside so many that have not
        reached this producer, or were refused by it."""
        failed = [delivery for delivery in self._sender.unretrieved if not delivery.retrieved]
        errors = [*refused, *(delivery.error for delivery in failed)]
        return Unacknowledged(
            waiting + self._sender.waiting_records(),
            len(refused) + sum(delivery.failed_records for delivery in failed),
            str(errors[0]) if errors else "",
        )

    def metrics(self) -> dict[str, float]:
        """Statistics since the start, and means and maxima of the last 30 to 60 seconds, under Kafka's names: see
        docs/metrics.md. Times are in ms, sizes in bytes."""
        return self._sender.statistics.metrics(
            buffer_bytes=self._memory.limit_bytes,
            buffer_used_bytes=self._memory.used_bytes,
            waiting_records=self._sender.waiting_records(),
        )

    def tell_unacknowledged(self) -> None:
        """Warns where the producer is dropped, or the interpreter exits, with records in it."""
        if self._running and not self.unacknowledged_told and self._process_id == os.getpid():
            self.unacknowledged_told = True
            left = self.unacknowledged()
            if left.records:
                warn_dropped(left, self)

    def __del__(self) -> None:
        if hasattr(self, "unacknowledged_told"):  # else its arguments were refused
            self.tell_unacknowledged()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Flushes and closes. Where the body raised, that error is the one to see, and the log tells what was not
        acknowledged."""
        if error is None:
            await self.stop()
            return
        try:
            if self._running and forking.refusal() is None:
                await self.settle()
        finally:
            if self._running and forking.refusal() is None:
                log_unacknowledged(self.unacknowledged(), AFTER_ERROR)
            await self.abandon()

    # Sending

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Adds a record to its partition's batch, waiting for buffer space where there is none.

        Args:
            value: None is a tombstone.
            key: decides the partition (murmur2, as Kafka's); without one, batches go round the partitions.
            headers: (name, bytes or None) pairs, in order.
            timestamp_ms: since 1970, up to the year 9999; None: now; -1: the record has none.
            partition: instead of the key's.

        Raises:
            UnknownTopicError, NetworkError: the topic's metadata could not be had.
            BufferExhaustedError: the buffer stayed full for `max_block_ms`.
            RecordTooLargeError, InvalidRequestError, InvalidTimestampError: this record can never be sent.
        """
        accumulator = self._topics.get(topic)
        if accumulator is not None and (partition is None or partition < accumulator.partitions):
            delivery = accumulator.append(value, key, headers, timestamp_ms, partition)
            if delivery is not None:
                if accumulator.yield_due or delivery.index & _YIELD_MASK == _YIELD_MASK:
                    accumulator.yield_due = False
                    await asyncio.sleep(0)
                return delivery
        deadline = monotonic() + self._max_block_s
        accumulator = await self._accumulator(topic, partition)
        while (delivery := accumulator.append(value, key, headers, timestamp_ms, partition)) is None:
            await self._memory.changed(deadline - monotonic())
            self._check_running()
        return delivery

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """`send` that never waits; the event loop must get to run for anything to be sent.

        Raises:
            BufferExhaustedError: the buffer is full now.
            UnknownTopicError: the topic's metadata is not here; `await partitions_for(topic)` fetches it.
        """
        accumulator = self._topics.get(topic)
        if accumulator is None:
            self._check_running()
            raise UnknownTopicError(f"nothing is known of topic {topic!r} yet; await partitions_for({topic!r}) first")
        delivery = accumulator.append(value, key, headers, timestamp_ms, partition)
        if delivery is None:
            raise BufferExhaustedError(f"the producer's buffer of {self._memory.limit_bytes} bytes is full now")
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """`send`, and the wait for its acknowledgement."""
        delivery = await self.send(topic, value, key, headers=headers, timestamp_ms=timestamp_ms, partition=partition)
        return await delivery

    async def send_table(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch | ArrowStream,
        *,
        key_column: str | None = "key",
        value_column: str = "value",
        timestamp_column: str | None = None,
        headers_column: str | None = None,
        partition: int | None = None,
    ) -> TableDelivery:
        """Sends every row of a table, in the table's order within each key, without touching single records.

        Returns once all of it stands in the buffer: a table larger than `buffer_memory` is sent as it goes.

        Args:
            table: of pyarrow, or what has `__arrow_c_stream__`: a frame of pandas or Polars, a relation of DuckDB.
            key_column: bytes or text; `key` may be absent, then no row has a key.
            value_column: bytes or text; null is a tombstone.
            timestamp_column: an Arrow timestamp or int64 ms; None: every row gets the time of the call.
            headers_column: list<struct<key: string, value: binary>>.
            partition: all rows go there, whatever their key.

        Raises:
            InvalidRequestError: it is no table, or a column is missing or cannot be read as what it should be.
            InvalidTimestampError: a row's time is not from 1970 to the year 9999, nor -1 (none). No row is sent.
            UnknownTopicError, NetworkError, BufferExhaustedError: as `send`.
        """
        columns = TableColumns(key_column, value_column, timestamp_column, headers_column)
        rows = normalised(as_table(table), columns)
        accumulator = await self._accumulator(topic, partition)
        partitions = accumulator.partitions
        if partition is not None and not 0 <= partition < partitions:
            raise InvalidRequestError(f"topic {topic} has partitions 0 to {partitions - 1}, there is no {partition}")
        if accumulator.ratio is None and rows.num_rows:
            await self._sample(accumulator, rows)
        parts: list[TablePart] = []
        small = 0
        cut = chunks(
            rows,
            partitions,
            rows_per_batch=lambda row_bytes: max(1, int(accumulator.full_bytes * self._table_share / row_bytes)),
            partition=partition,
            first_sticky=random.randrange(partitions),
        )
        for chunk in cut:
            deadline = monotonic() + self._max_block_s
            while not self._memory.fits(chunk.size_bytes):
                await self._memory.changed(deadline - monotonic())
            self._check_running()
            parts.append(self._sender.add_chunk(accumulator, chunk))
            small += 1
            if chunk.size_bytes >= SMALL_CHUNK_BYTES or small >= _SMALL_CHUNKS_AT_ONCE:
                small = 0
                await asyncio.sleep(0)
        return TableDelivery(parts, rows.num_rows)

    async def _sample(self, accumulator: TopicAccumulator, rows: pa.Table) -> None:
        sample = rows.slice(0, _SAMPLE_ROWS).combine_chunks().to_batches()[0]
        encode: Callable[[], int] = lambda: sum(  # noqa: E731
            len(piece.payload) for piece in encode_table(accumulator.batch_format, sample)
        )
        accumulator.observe(sample.nbytes, await self._sender.encoder.measure(encode))

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged or has failed.

        Raises:
            HighwaterError: the first failure since the last flush that nobody has awaited.
        """
        self._check_running()
        await self.settle()
        failed = [delivery for delivery in self._sender.unretrieved if not delivery.retrieved]
        self._sender.unretrieved.clear()
        for delivery in failed:
            assert delivery.error is not None
            raise delivery.error

    async def settle(self) -> None:
        """Waits as `flush` does, and raises nothing."""
        for delivery in self._sender.outstanding():
            await delivery.wait()

    async def partitions_for(self, topic: str) -> int:
        """The topic's number of partitions, by the latest metadata. Raises `UnknownTopicError`, `NetworkError`."""
        return (await self._accumulator(topic)).partitions

    @property
    def producer_id(self) -> int:
        """Under which brokers know its batches (RULES 6.3); -1: it is not idempotent, or has sent nothing yet."""
        return self._sender.producer_id

    def inherited(self) -> None:
        """Called in a forked child: `send` looks at the process again, not only at the topics that it knows."""
        self._topics.clear()

    # Topics

    def _check_running(self) -> None:
        self._cluster.check_process()
        if self._sender.failure is not None:
            raise self._sender.failure
        if not self._running:
            state = "was stopped" if self._stopped else "is not started: await start(), or use `async with`"
            raise ClientClosedError(f"the producer {state}")

    async def _accumulator(self, topic: str, partition: int | None = None) -> TopicAccumulator:
        """The topic's; where the caller names a partition that is not known, it may have been added since."""
        self._check_running()
        found = self._topics.get(topic)
        if found is None:
            info = await self._cluster.topic(topic, self._max_block_s)
            self._check_running()
            found = self._topics.get(topic) or self._new_accumulator(info)
        if partition is not None and partition >= found.partitions:
            await self._cluster.refresh()
        return found

    def _new_accumulator(self, info: TopicInfo) -> TopicAccumulator:
        rows_only = info.config.get("payload.format") == "rows"
        accumulator = TopicAccumulator(
            info.topic,
            BatchFormat(self._codec, rows_only, self._max_request_bytes),
            batch_bytes=self._batch_bytes,
            max_record_bytes=self._max_request_bytes - RECORD_OVERHEAD_BYTES,
            memory=self._memory,
            clock_ms=lambda: monotonic() * 1000,
            choose=self._choose_partition,
            wake=self._sender.activate,
            queue_of=self._queue_of,
            parent=no_span if self._cluster.tracer is None else application_span,
        )
        accumulator.has_partitions(len(info.partitions))
        self._topics[info.topic] = accumulator
        return accumulator

    def _queue_of(self, topic: str, partition: int) -> PartitionQueue:
        return PartitionQueue(
            topic,
            partition,
            idempotent=self._idempotent,
            max_in_flight=self._max_in_flight,
            retry=self._retry,
            random=random.random,
        )

    def _choose_partition(self, accumulator: TopicAccumulator) -> int:
        """The partition of the next batch of records without keys: one that has a leader, where there is one."""
        partitions = range(accumulator.partitions)
        for _ in range(_DRAWS):
            drawn = random.choice(partitions)
            if self._is_led(accumulator, drawn):
                return drawn
        return random.choice([each for each in partitions if self._is_led(accumulator, each)] or partitions)

    def _is_led(self, accumulator: TopicAccumulator, partition: int) -> bool:
        return self._cluster.metadata.leader_address(accumulator.name, partition) is not None

    def _metadata_changed(self) -> None:
        for name, accumulator in self._topics.items():
            info = self._cluster.metadata.topic(name)
            if info is None:
                continue
            accumulator.has_partitions(len(info.partitions))
            rows_only = info.config.get("payload.format") == "rows"
            accumulator.batch_format = BatchFormat(self._codec, rows_only, self._max_request_bytes)
        if self._running:
            self._sender.look_at_all()
