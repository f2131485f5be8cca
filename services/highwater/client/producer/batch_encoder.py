"""Turns closed batches and chunks of tables into encoded ones, in place in their partition's queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from highwater.client.exceptions import InvalidRequestError
from highwater.client.producer.accumulator import OpenBatch, OpenTable, PartitionAccumulator
from highwater.client.producer.buffer_memory import BufferMemory
from highwater.client.producer.encoding import BatchFormat, Encoded, encode_accumulated, encode_table
from highwater.client.producer.partition_queue import ProducerBatch
from highwater.client.producer.table_batches import TableChunk, together
from highwater.records import Codec

ENCODER_THREADS = 2
# A slow codec, or columns of tables, leave the event loop from this many bytes on; lists with a fast one take less time
# than the hop to a thread.
THREADED_FROM_BYTES = 64 * 1024
SLOW_CODECS = (Codec.GZIP, Codec.ZSTD)
# A batch of fewer records says little about how well a topic compresses.
OBSERVED_FROM_RECORDS = 100


class BatchEncoder:
    """Records from lists and few rows are encoded on the event loop, columns of tables in threads (Arrow, lz4 and the
    CRC leave the interpreter free meanwhile). A batch keeps its place in its queue, so the order does not depend on
    who is first.

    `failed` is told of batches that cannot be encoded, `ready` for whom a thread has finished one.
    """

    def __init__(
        self,
        memory: BufferMemory,
        *,
        failed: Callable[[ProducerBatch], None],
        ready: Callable[[PartitionAccumulator], None],
    ) -> None:
        self._memory = memory
        self._failed = failed
        self._ready = ready
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def encode_closed(self, accumulator: PartitionAccumulator) -> None:
        """Encodes everything that the accumulator has closed."""
        while accumulator.closed:
            batch = next(iter(accumulator.closed))
            batch_format, closed = accumulator.topic.batch_format, accumulator.closed.pop(batch)
            work = _encoder(batch_format, closed)
            slow = batch_format.codec in SLOW_CODECS or isinstance(closed, OpenTable)
            if slow and batch.charged_bytes >= THREADED_FROM_BYTES:
                self._in_thread(accumulator, batch, work)
                continue
            try:
                encoded = work()
            except Exception as error:
                self._refuse(accumulator, batch, error)
            else:
                self._take(accumulator, batch, encoded)

    def encode_chunk(self, accumulator: PartitionAccumulator, batch: ProducerBatch, chunk: TableChunk) -> None:
        batch_format = accumulator.topic.batch_format
        self._in_thread(accumulator, batch, lambda: encode_table(batch_format, chunk.rows()))

    async def measure(self, work: Callable[[], int]) -> int:
        """Runs something beside the encoders."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor(), work)
        except RuntimeError:
            return work()
        return await running

    def close(self) -> None:
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="highwater-encoder")
        return self._threads

    def _in_thread(
        self, accumulator: PartitionAccumulator, batch: ProducerBatch, work: Callable[[], list[Encoded]]
    ) -> None:
        def done(future: asyncio.Future[list[Encoded]]) -> None:
            if self._closed or future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._take(accumulator, batch, future.result())
            else:
                self._refuse(accumulator, batch, error)
            self._ready(accumulator)

        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor(), work)
        except RuntimeError:
            # The interpreter exits and lends no more threads; what a producer still has is sent all the same.
            running = asyncio.get_running_loop().create_future()
            try:
                running.set_result(work())
            except Exception as error:
                running.set_exception(error)
        running.add_done_callback(done)

    def _take(self, accumulator: PartitionAccumulator, batch: ProducerBatch, encoded: list[Encoded]) -> None:
        size = sum(len(piece.payload) for piece in encoded)
        if batch.records >= OBSERVED_FROM_RECORDS:
            accumulator.topic.observe(batch.charged_bytes, size)
        charged, batch.charged_bytes = batch.charged_bytes, 0
        if len(encoded) == 1:
            batch.payload = encoded[0].payload
            batch.charged_bytes = size
        else:
            accumulator.queue.replace_fresh(batch, pieces_of(batch, encoded))
        self._memory.release(charged - size)

    def _refuse(self, accumulator: PartitionAccumulator, batch: ProducerBatch, error: BaseException) -> None:
        queue = accumulator.queue
        where = f"{queue.topic}-{queue.partition}"
        queue.fail_fresh(batch, InvalidRequestError(f"{batch.records} records for {where} cannot be encoded: {error}"))
        self._failed(batch)


def _encoder(batch_format: BatchFormat, records: OpenBatch | OpenTable) -> Callable[[], list[Encoded]]:
    if isinstance(records, OpenTable):
        return lambda: encode_table(batch_format, together(records.rows))
    return lambda: encode_accumulated(batch_format, records.timestamps, records.keys, records.values, records.headers)


def pieces_of(batch: ProducerBatch, encoded: list[Encoded]) -> list[ProducerBatch]:
    """Batches that take the place of one: their records, in order, under the same delivery."""
    pieces = []
    first_index = batch.first_index
    for piece in encoded:
        pieces.append(
            ProducerBatch(
                batch.delivery,
                piece.records,
                batch.created_ms,
                first_index=first_index,
                payload=piece.payload,
                charged_bytes=len(piece.payload),
            )
        )
        first_index += piece.records
    return pieces
