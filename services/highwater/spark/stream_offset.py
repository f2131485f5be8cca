"""The offsets of a streaming query as they stand in its checkpoint. Pure.

    {"events": {"0": 1200, "1": 1180}}

is where a micro-batch ends, in the form of Spark's Kafka source. A micro-batch that takes up partitions, the first one
of a query or one that finds new ones, says beside that where they begin:

    {"events": {"0": 1200, "1": 1180, "2": 7}, "@start": {"events": {"2": 0}}}

so that a micro-batch which is run again reads the same records, whatever `latest` means by then. The first micro-batch
says so even where there is nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from highwater.client.topic_partition import TopicPartition

START = "@start"  # no topic can be called so

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    ends: Offsets
    starts: Offsets | None = None  # of partitions that the offset before it does not have; None: there are none

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Any] = offsets_json(self.ends)
        if self.starts is not None:
            written[START] = offsets_json(self.starts)
        return written


NOT_BEGUN: dict[str, Any] = {}
"""What `initialOffset` answers: where a query begins stands in the end of its first micro-batch."""


def parse_stream_offset(written: Mapping[str, Any]) -> StreamOffset:
    topics = {topic: partitions for topic, partitions in written.items() if topic != START}
    starts = written.get(START)
    return StreamOffset(_offsets(topics), None if starts is None else _offsets(starts))


def offsets_json(offsets: Offsets) -> dict[str, Any]:
    """Sorted, so that equal offsets are equal texts: Spark compares these."""
    written: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        written.setdefault(topic, {})[str(partition)] = offset
    return written


def _offsets(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }
