"""The partition of `__consumer_offsets` that holds a group."""

from __future__ import annotations

import struct
from functools import lru_cache

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50  # Kafka's default of offsets.topic.num.partitions

_REMEMBERED = 16_384  # groups: each sign of life of a member asks, and a long name takes 50 µs


@lru_cache(_REMEMBERED)
def partition_for(group_id: str, partitions: int = OFFSETS_PARTITIONS) -> int:
    """As Kafka: the absolute value of Java's hash of the string, which is of its UTF-16, modulo the number of
    partitions; the lowest int, which has no absolute value, counts as 0."""
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0 if value == 0x80000000 else 0x100000000 - value
    return value % partitions
