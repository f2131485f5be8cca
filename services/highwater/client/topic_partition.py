"""Users' names of a partition, and of an offset in it."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition by its topic's name. Every call that takes one takes a plain `(topic, partition)` tuple too."""

    topic: str
    partition: int


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp_ms: int  # of the record at `offset`; -1: there is none
    leader_epoch: int  # -1: not known


EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
