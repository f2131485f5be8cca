"""Admission control of micro-batches: the part of what is available that one takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.client.topic_partition import TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one micro-batch; None: no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0  # how long `min_offsets` may hold a micro-batch back
    max_bytes: int | None = None

    def holds_back(self, available: int, waited_ms: float) -> bool:
        """Tells whether to wait for more offsets; what is available is read after `max_delay_ms` at the latest."""
        return self.min_offsets is not None and 0 < available < self.min_offsets and waited_ms < self.max_delay_ms


def admitted(start: Offsets, latest: Offsets, max_offsets: int | None) -> dict[TopicPartition, int]:
    """The end of a micro-batch: `max_offsets` shared out by how far each partition is behind; at least one offset of
    each that is behind, so that none starves: more than `max_offsets` only where more partitions than that are behind.
    A partition whose end went back ends there."""
    behind = {partition: latest[partition] - start[partition] for partition in latest}
    total = sum(size for size in behind.values() if size > 0)
    if max_offsets is None or total <= max_offsets:
        return dict(latest)
    shares = {partition: max(max_offsets * size // total, 1) for partition, size in behind.items() if size > 0}
    # What the smallest shares were raised by, the largest give.
    over = sum(shares.values()) - max_offsets
    for partition in sorted(shares, key=lambda partition: -shares[partition]):
        if over <= 0:
            break
        given = min(over, shares[partition] - 1)
        shares[partition] -= given
        over -= given
    return {partition: start[partition] + shares.get(partition, size) for partition, size in behind.items()}


def admitted_bytes(
    start: Offsets, end: Offsets, offset_bytes: Mapping[TopicPartition, float], max_bytes: int
) -> dict[TopicPartition, int]:
    """`end`, nearer where the ranges are longer than `max_bytes`, every partition by the same factor.

    `offset_bytes` is the mean size in bytes of an offset of each partition, where that is known.
    """
    sizes = {partition: max(end[partition] - start[partition], 0) for partition in end}
    total = sum(size * offset_bytes.get(partition, 0.0) for partition, size in sizes.items())
    if total <= max_bytes:
        return dict(end)
    factor = max_bytes / total
    return {
        partition: start[partition] + max(int(size * factor), 1) if size > 0 else end[partition]
        for partition, size in sizes.items()
    }
