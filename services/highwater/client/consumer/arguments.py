"""Arguments of a consumer, checked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import pyarrow as pa

from highwater.client.exceptions import InvalidRequestError
from highwater.client.topic_partition import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

Partition = TopicPartition | tuple[str, int]
MAX_OFFSET = (1 << 63) - 1


def topic_name(topic: object) -> str:
    """Raises `InvalidRequestError` for what no topic can be called; a broker's address above all."""
    if not isinstance(topic, str):
        raise InvalidRequestError(f"a topic is a str, not {type(topic).__name__}; several: Consumer('a', 'b')")
    if ":" in topic or "/" in topic:
        raise InvalidRequestError(f"{topic!r} is no topic; brokers are named by bootstrap={topic!r}")
    if "," in topic:
        raise InvalidRequestError(f"{topic!r} is no topic; several are several arguments: Consumer('a', 'b')")
    return topic


def reset_timestamp_of(auto_offset_reset: str | int) -> int | None:
    named = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "error": None}
    if isinstance(auto_offset_reset, str):
        if auto_offset_reset not in named:
            raise InvalidRequestError(
                f"auto_offset_reset is {auto_offset_reset!r}; it can be earliest, latest, error or a time in ms"
            )
        return named[auto_offset_reset]
    if not isinstance(auto_offset_reset, int) or isinstance(auto_offset_reset, bool):
        raise InvalidRequestError(f"auto_offset_reset is {auto_offset_reset!r}; a time is a whole number of ms")
    if auto_offset_reset < 0:
        raise InvalidRequestError(f"auto_offset_reset is {auto_offset_reset}; a time in ms is not negative")
    return auto_offset_reset


def topic_names(topics: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(map(topic_name, [topics] if isinstance(topics, str) else topics))


def offsets_to_commit(done: Any) -> dict[TopicPartition, int]:
    """By partition the next offset to be read, where what stands in `done` is done: a mapping has it, a table is of
    records that were consumed, with their columns topic, partition and offset. Raises `InvalidRequestError`."""
    if isinstance(done, Mapping):
        return {_partition(partition): _offset(partition, offset) for partition, offset in done.items()}
    if isinstance(done, pa.RecordBatch):
        done = pa.Table.from_batches([done])
    elif not isinstance(done, pa.Table):
        if not hasattr(done, "__arrow_c_stream__"):
            raise InvalidRequestError(
                f"a commit is of offsets by partition, or of a table as it was consumed, not of {type(done).__name__}"
            )
        done = pa.table(done)
    if missing := {"topic", "partition", "offset"}.difference(done.column_names):
        raise InvalidRequestError(f"the table has no column {', '.join(sorted(missing))}: keep it, or commit offsets")
    for name in ("partition", "offset"):
        if not pa.types.is_integer(kind := done.schema.field(name).type):
            raise InvalidRequestError(f"column {name} of the table is of {kind}; it is to be of whole numbers")
    for name in ("topic", "partition", "offset"):
        if nulls := done.column(name).null_count:
            raise InvalidRequestError(f"column {name} of the table has {nulls} nulls: which records are they?")
    highest = done.group_by(["topic", "partition"]).aggregate([("offset", "max"), ("offset", "min")])
    offsets = {}
    for row in highest.to_pylist():
        partition = _partition((row["topic"], row["partition"]))
        _offset(partition, row["offset_min"])
        offsets[partition] = _offset(partition, row["offset_max"] + 1)
    return offsets


def _partition(named: Any) -> TopicPartition:
    try:
        topic, number = named
    except (TypeError, ValueError):
        topic = number = None
    if not isinstance(topic, str) or not isinstance(number, Integral) or isinstance(number, bool):
        raise InvalidRequestError(f"{named!r} is no partition; one is a topic and a number, as ('orders', 0)")
    if not 0 <= int(number) < 1 << 31:
        raise InvalidRequestError(f"{topic}-{number}: no partition has that number")
    return TopicPartition(topic, int(number))


def _offset(partition: TopicPartition, offset: Any) -> int:
    topic, number = partition
    if not isinstance(offset, Integral) or isinstance(offset, bool):
        raise InvalidRequestError(f"{topic}-{number}: offset {offset!r} is no whole number")
    whole = int(offset)
    if not 0 <= whole <= MAX_OFFSET:
        raise InvalidRequestError(f"{topic}-{number}: offset {whole} is {'negative' if whole < 0 else 'too high'}")
    return whole
