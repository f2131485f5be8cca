"""What a task does: one range of offsets, from the partition's leader to Arrow batches for Spark."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pyarrow as pa

from highwater.client.consumer import Consumer
from highwater.client.event_loop_thread import event_loop_thread
from highwater.client.exceptions import LeaderNotAvailableError, OffsetOutOfRangeError, RequestTimedOutError
from highwater.client.topic_partition import TopicPartition
from highwater.records import Batch
from highwater.spark.columns import read_columns
from highwater.spark.ranges import OffsetRange

_POLL_MS = 1000.0
# Bytes of one answer of a leader. The SDK's own default suits consumers of many partitions; a task reads one.
DEFAULT_MAX_PARTITION_FETCH_BYTES = 4 * 1024 * 1024

logger = logging.getLogger(__name__)

# Connected, between two tasks: Spark's Python workers run one task after another. At most one for each cluster and
# settings that were read with.
_idle_consumers: dict[Hashable, BatchConsumer] = {}


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What every task of a read needs to know; goes to the executors pickled."""

    bootstrap: tuple[str, ...]
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    poll_timeout_ms: int
    consumer: dict[str, Any]  # settings of the SDK's `Consumer`


class BatchConsumer(Consumer):
    """A consumer that hands out whole decoded batches of the log."""

    def start_at(self, partition: TopicPartition, offset: int) -> None:
        self.assign([partition])
        self.seek(partition, offset)

    async def poll_decoded(self, timeout_ms: float) -> list[tuple[Batch, int]]:
        """All that is buffered of one partition: batches, and the first offset to look at of each. Raises as `poll`."""
        buffer = await self._next_ready(monotonic() + timeout_ms / 1000)
        found: list[tuple[Batch, int]] = []
        while buffer is not None and buffer.ready:
            taken = buffer.take_batch()
            if taken is None:
                break
            found.append(taken)
            if buffer.error is not None:
                break  # raised by the next call, behind what was found
        return found

    async def poll_decoded_each(self, timeout_ms: float) -> dict[TopicPartition, list[Batch]]:
        """All that is buffered of every partition that has something. Raises as `poll`."""
        found: dict[TopicPartition, list[Batch]] = {}
        if await self._next_ready(monotonic() + timeout_ms / 1000) is not None:
            for partition, buffer in self._fetcher.buffers.items():
                while buffer.ready and (taken := buffer.take_batch()) is not None:
                    found.setdefault(partition, []).append(taken[0])
        return found

    async def forget(self) -> None:
        """Reads nothing until the next `start_at`."""
        self.assign([])

    def has_leader(self, partition: TopicPartition) -> bool:
        return self._cluster.leader(*partition) is not None


def read_range(plan: ReadPlan, one: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The records of a range, in order.

    Raises:
        OffsetOutOfRangeError: some of it is no longer in the log, and `fail_on_data_loss`.
        LeaderNotAvailableError, RequestTimedOutError: nothing came for `poll_timeout_ms`.
        CorruptRecordError, NetworkError: as the SDK's consumer.
    """
    loop = event_loop_thread()
    consumer = _idle_consumers.pop(_key(plan), None) or _new_consumer(plan)
    finished = False
    topic, partition = one.partition

    async def begin(offset: int) -> None:
        await consumer.start()
        consumer.start_at(one.partition, offset)

    try:
        loop.run(begin(one.start))
        position = one.start
        deadline = monotonic() + plan.poll_timeout_ms / 1000
        while position < one.until:
            try:
                batches = loop.run(consumer.poll_decoded(_POLL_MS))
            except OffsetOutOfRangeError as error:
                position = _after_loss(plan, one, position, consumer, error)
                loop.run(begin(position))
                continue
            for batch, first in batches:
                rows = read_columns(batch, topic, partition, first, one.until, plan.columns)
                if rows.num_rows:
                    yield rows
            # A gap that compaction left, or a transaction's marker, may be the end of the range.
            reached = loop.run(consumer.position(one.partition))
            if reached > position:
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
    """Where to go on when records of the range are gone. Raises where that is to fail the query."""
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
