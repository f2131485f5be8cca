"""Estimates of the bytes of the log that an offset stands for, by which `maxBytesPerTrigger` is reckoned.

Brokers are asked for data by bytes and answer with whole batches; nobody is asked how long a range of offsets is. So a
few batches at the beginning of each range are looked at, and the rest of the range is taken to be like them.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.topic_partition import TopicPartition
from highwater.spark.source.range_reader import BatchConsumer

SAMPLE_BYTES = 64 * 1024  # of each partition; a larger batch comes whole
SAMPLE_TIMEOUT_S = 5.0


class OffsetSizes:
    """Remembers what it saw last of each partition. Connects with the first question."""

    def __init__(self, bootstrap: tuple[str, ...], settings: Mapping[str, Any]) -> None:
        fixed = {"auto_offset_reset": "latest", "max_partition_fetch_bytes": SAMPLE_BYTES}
        self._consumer = BatchConsumer(bootstrap=bootstrap, **{**settings, **fixed})
        self._known: dict[TopicPartition, float] = {}

    def mean_bytes(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Mean bytes of an offset of each of these partitions, which have records at these offsets. A partition of
        which nothing came in time, and of which nothing is known, is taken to be like the others."""
        self._known.update(event_loop_thread().run(self._sample(starts)))
        known = [self._known[partition] for partition in starts if partition in self._known]
        typical = sum(known) / len(known) if known else 0.0
        return {partition: self._known.get(partition, typical) for partition in starts}

    def close(self) -> None:
        event_loop_thread().run(self._consumer.stop())

    async def _sample(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        consumer = self._consumer
        await consumer.start()
        consumer.assign(starts)
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        found: dict[TopicPartition, float] = {}
        deadline = monotonic() + SAMPLE_TIMEOUT_S
        try:
            while len(found) < len(starts) and monotonic() < deadline:
                for partition, batches in (await consumer.poll_encoded_each(200)).items():
                    size = sum(batch.header.size_bytes for batch in batches)
                    offsets = sum(batch.header.last_offset_delta + 1 for batch in batches)
                    found[partition] = size / offsets
                    consumer.pause(partition)
        finally:
            consumer.assign([])
        return found
