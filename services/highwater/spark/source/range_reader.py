"""Reads one range of offsets in a task: from the partition's leader to Arrow batches for Spark."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Iterator
from time import monotonic

import pyarrow as pa

from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.consumer.consumer import Consumer
from highwater.client.consumer.corrupt_batches import CorruptBatches, OnCorrupt
from highwater.client.consumer.fetch_buffer import FetchBuffer, FetchedBatch
from highwater.client.exceptions import (
    HighwaterError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
)
from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.source.columns import read_columns
from highwater.spark.source.read_plan import ReadPlan
from highwater.spark.values.typed_columns import TypedColumns
from highwater.spark.worker.worker_process import prepare_worker

_POLL_MS = 1000.0
_GONE_S = 2.0  # a topic counts as gone that no broker has known for so long: one may lag
# Bytes of one answer of a leader. The SDK's own default suits consumers of many partitions; a task reads one.
DEFAULT_MAX_PARTITION_FETCH_BYTES = 4 * 1024 * 1024

logger = logging.getLogger(__name__)

# Connected, between two tasks: Spark's Python workers run one task after another. At most one for each cluster and
# settings that were read with.
_idle_consumers: dict[Hashable, BatchConsumer] = {}


class BatchConsumer(Consumer):
    """A consumer that hands out whole batches of the log, as they came."""

    def _corrupt_batches(self, on_corrupt: OnCorrupt) -> CorruptBatches:
        return CorruptBatches(on_corrupt, "set option onCorrupt to skip")

    def track(self, partition: TopicPartition) -> None:
        """Its topic is part of the first answer of the brokers."""
        self._cluster.track([partition.topic])

    def start_at(self, partition: TopicPartition, offset: int, topic_id: bytes | None = None) -> FetchBuffer:
        """Begins at an offset; reads the topic of that id only, where one is given."""
        self.assign([partition])
        self.seek(partition, offset)
        buffer = self._fetcher.buffers[partition]
        buffer.topic_id = topic_id
        return buffer

    async def poll_encoded(self, buffer: FetchBuffer, timeout_ms: float) -> list[tuple[FetchedBatch, int]]:
        """All that is buffered of the only partition: batches, and the first offset to look at of each. What follows
        is fetched meanwhile. Raises as `poll`."""
        found: list[tuple[FetchedBatch, int]] = []
        if await self._reader.next_ready(monotonic() + timeout_ms / 1000) is None:
            return found
        while buffer.ready:
            try:
                taken = buffer.take_encoded()
            except HighwaterError:
                if not found:
                    raise
                break  # what was found first; the error comes with the next call
            if taken is None:
                break
            found.append(taken)
        self._fetcher.wake()
        return found

    async def poll_encoded_each(self, timeout_ms: float) -> dict[TopicPartition, list[FetchedBatch]]:
        """All that is buffered of every partition that has something. Raises as `poll`."""
        found: dict[TopicPartition, list[FetchedBatch]] = {}
        if await self._reader.next_ready(monotonic() + timeout_ms / 1000) is not None:
            for partition, buffer in list(self._fetcher.ready.items()):
                while buffer.ready and (taken := buffer.take_encoded()) is not None:
                    found.setdefault(partition, []).append(taken[0])
        return found

    async def forget(self) -> None:
        """Reads nothing until the next `start_at`."""
        self.assign([])

    async def is_gone(self, topic: str, topic_id: bytes) -> bool:
        """Tells whether brokers answer and none of them knows the topic of this id: it was deleted, or made anew."""
        info = self._cluster.metadata.topic(topic)
        if info is not None and info.topic_id == topic_id:
            return False
        answers = await self._cluster.confirm()
        return bool(answers) and not any(one.topic_id == topic_id for answer in answers for one in answer.topics)

    def has_leader(self, partition: TopicPartition) -> bool:
        return self._cluster.leader(*partition) is not None


def read_range(plan: ReadPlan, one: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The records of a range, in order.

    Raises:
        OffsetOutOfRangeError: some of it is no longer in the log, and `fail_on_data_loss`.
        LeaderNotAvailableError, RequestTimedOutError: nothing came for `poll_timeout_ms`.
        CorruptRecordError, NetworkError: as the SDK's consumer.
        BadValueError: a value does not fit its schema, and that is to fail.
    """
    prepare_worker()
    typed = None if plan.values is None else TypedColumns(plan.values, plan.columns)
    columns = plan.columns if typed is None else typed.read
    loop = event_loop_thread()
    consumer = _idle_consumers.pop(_key(plan), None) or _new_consumer(plan)
    finished = False
    topic, partition = one.partition
    topic_id = bytes.fromhex(one.topic_id) or None

    async def begin(offset: int) -> FetchBuffer:
        consumer.track(one.partition)
        await consumer.start()
        return consumer.start_at(one.partition, offset, topic_id)

    try:
        buffer = loop.run(begin(one.start))
        position = one.start
        gone_since: float | None = None
        deadline = monotonic() + plan.poll_timeout_ms / 1000
        while position < one.until:
            try:
                batches = loop.run(consumer.poll_encoded(buffer, _POLL_MS))
            except OffsetOutOfRangeError as error:
                position = _after_loss(plan, one, position, consumer, error)
                buffer = loop.run(begin(position))
                continue
            if batches or topic_id is None or not loop.run(consumer.is_gone(topic, topic_id)):
                gone_since = None
            elif gone_since is None:
                gone_since = monotonic()
            elif monotonic() - gone_since > _GONE_S:
                _gone(plan, one, position)
                break
            # A gap that compaction left, or a transaction's marker, may be the end of the range.
            reached = buffer.position
            for fetched, first in batches:
                if fetched.header.base_offset >= one.until:
                    break
                # Decoded one by one, here: a batch is in the processor's cache when Spark gets it, and the event loop
                # goes on fetching.
                batch = buffer.decoded(fetched)
                if batch is None:
                    continue
                rows = read_columns(batch, topic, partition, first, one.until, columns)
                if rows.num_rows:
                    yield rows if typed is None else typed.of(rows, topic, partition)
            if reached is not None and reached > position:
                position = reached
                deadline = monotonic() + plan.poll_timeout_ms / 1000
            elif monotonic() > deadline:
                raise _nothing_came(plan, one, position, leader=consumer.has_leader(one.partition))
        finished = True
    finally:
        if finished and _key(plan) not in _idle_consumers:
            loop.run(consumer.forget())
            _idle_consumers[_key(plan)] = consumer
        else:
            loop.run(consumer.stop())


def _key(plan: ReadPlan) -> Hashable:
    return os.getpid(), plan.bootstrap, tuple(sorted(plan.consumer.items()))


def _new_consumer(plan: ReadPlan) -> BatchConsumer:
    settings = {"max_partition_fetch_bytes": DEFAULT_MAX_PARTITION_FETCH_BYTES, **plan.consumer}
    return BatchConsumer(bootstrap=plan.bootstrap, auto_offset_reset="error", **settings)


def _after_loss(
    plan: ReadPlan, one: OffsetRange, position: int, consumer: BatchConsumer, error: OffsetOutOfRangeError
) -> int:
    """The offset to go on at when records of the range are gone. Raises where that is to fail the query."""
    topic, partition = one.partition
    if plan.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{topic}-{partition}: offset {position} is no longer in the log (deleted by retention, or the topic was "
            "made anew); to go on without what is lost, set failOnDataLoss to false"
        ) from error
    earliest = event_loop_thread().run(consumer.beginning_offsets([one.partition]))[one.partition]
    following = min(earliest, one.until) if earliest > position else one.until
    logger.warning("%s: offsets %d to %d are lost: skipped", one, position, following - 1)
    return following


def _gone(plan: ReadPlan, one: OffsetRange, position: int) -> None:
    """Raises where the query is to fail."""
    topic, partition = one.partition
    said = f"{topic}-{partition}: offsets {position} to {one.until - 1} are lost: the topic was deleted, or made anew"
    if plan.fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{said}; to go on without them, set failOnDataLoss to false")
    logger.warning("%s", said)


def _nothing_came(
    plan: ReadPlan, one: OffsetRange, position: int, *, leader: bool
) -> LeaderNotAvailableError | RequestTimedOutError:
    topic, partition = one.partition
    waited_s = plan.poll_timeout_ms / 1000
    if not leader:
        return LeaderNotAvailableError(f"{topic}-{partition} has had no leader for {waited_s:g} s: is its broker up?")
    return RequestTimedOutError(
        f"{topic}-{partition}: nothing came at offset {position} for {waited_s:g} s, though the log goes to {one.until}"
    )
