"""The offsets of a streaming query as they stand in its checkpoint. Pure.

    {"events": {"0": 1200, "1": 1180}}

is where a micro-batch ends, in the form of Spark's Kafka source. A micro-batch that takes up partitions, the first one
of a query or one that finds new ones, says beside that where they begin:

    {"events": {"0": 1200, "1": 1180, "2": 7}, "@start": {"events": {"2": 0}}}

so that a micro-batch which is run again reads the same records, whatever `latest` means by then. The first micro-batch
says so even where there is nothing yet. And each says which topics these are, by their ids, as one that was deleted and
made anew has the same name and other records:

    {"events": {"0": 1200}, "@topics": {"events": "5f0c…"}}

A checkpoint of before that has none of it; its next micro-batch has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from highwater.client.topic_partition import TopicPartition

START, TOPICS = "@start", "@topics"  # no topic can be called so

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    ends: Offsets
    starts: Offsets | None = None  # of partitions that the offset before it does not have; None: there are none
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # in hex

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Any] = offsets_json(self.ends)
        if self.starts is not None:
            written[START] = offsets_json(self.starts)
        if self.topic_ids:
            written[TOPICS] = dict(sorted(self.topic_ids.items()))
        return written


NOT_BEGUN: dict[str, Any] = {}
"""The answer of `initialOffset`: the beginning of a query stands in the end of its first micro-batch."""


def parse_stream_offset(written: Mapping[str, Any]) -> StreamOffset:
    topics = {topic: partitions for topic, partitions in written.items() if topic not in (START, TOPICS)}
    starts = written.get(START)
    return StreamOffset(_offsets(topics), None if starts is None else _offsets(starts), written.get(TOPICS, {}))


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
