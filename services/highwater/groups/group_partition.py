"""The partition of `__consumer_offsets` that holds a group."""

from __future__ import annotations

import struct
from functools import lru_cache

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50  # Kafka's default of offsets.topic.num.partitions

# Each sign of life of a member asks. An id of 255 characters takes 50 µs; one of 32,767 bytes takes 4 ms, and has 131
# KB in memory: they are not all kept for whoever asks for thousands of them.
_REMEMBERED = 16_384  # groups
_LONG = 255  # characters: a longer id is one of
_LONG_REMEMBERED = 64


def partition_for(group_id: str, partitions: int = OFFSETS_PARTITIONS) -> int:
    """As Kafka: the absolute value of Java's hash of the string, which is of its UTF-16, modulo the number of
    partitions; the lowest int, which has no absolute value, counts as 0."""
    found = _of_short if len(group_id) <= _LONG else _of_long
    return found(group_id, partitions)


def _hashed(group_id: str, partitions: int) -> int:
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0 if value == 0x80000000 else 0x100000000 - value
    return value % partitions


_of_short = lru_cache(_REMEMBERED)(_hashed)
_of_long = lru_cache(_LONG_REMEMBERED)(_hashed)
