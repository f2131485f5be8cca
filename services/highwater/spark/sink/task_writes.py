"""The report of a writing task to the driver when it ends: the ranges of records that it wrote.

Rows are written at least once: they count as soon as brokers acknowledge them, not when the driver commits, and a task
that Spark runs again writes its rows again under another producer. The driver is told all that a commit or an abort of
a producer's work would need; what it does with it today is to say in its log what a failed query left in the topics.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from highwater.client.producer.delivery import BatchMetadata
from highwater.client.topic_partition import TopicPartition
from highwater.console.counted import counted

NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """`records` of one task stand in `first <= offset < until`; records of others may stand between them. Where the
    broker did not say (acks 0) both are `NO_OFFSET`."""

    partition: TopicPartition
    first: int
    until: int
    records: int

    def __str__(self) -> str:
        topic, number = self.partition
        where = f"[{self.first}, {self.until})" if self.first != NO_OFFSET else "where it was not said"
        return f"{topic}-{number} {where}: {counted(self.records, 'record')}"


class RangesWritten:
    """Folds batches into one range a partition, so that it stays small however much is written."""

    def __init__(self) -> None:
        self._ranges: dict[TopicPartition, WrittenRange] = {}

    def add(self, batches: Iterable[BatchMetadata]) -> None:
        for topic, partition, base_offset, records in batches:
            key = TopicPartition(topic, partition)
            until = base_offset + records if base_offset >= 0 else NO_OFFSET
            before = self._ranges.get(key, WrittenRange(key, base_offset, until, 0))
            self._ranges[key] = WrittenRange(
                key, min(before.first, base_offset), max(before.until, until), before.records + records
            )

    def ranges(self) -> tuple[WrittenRange, ...]:
        return tuple(self._ranges[key] for key in sorted(self._ranges))


def left_behind(tasks: Sequence[tuple[WrittenRange, ...] | None]) -> str:
    """Names the records that a failed write leaves: those of tasks that did not fail (the others are None). Empty:
    none."""
    found = [str(one) for ranges in tasks if ranges is not None for one in ranges]
    return "; ".join(found)
