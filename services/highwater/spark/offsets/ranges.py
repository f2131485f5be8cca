"""Ranges of offsets, and how many tasks read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from highwater.client.topic_partition import TopicPartition

# Of one read, or one micro-batch, beside one for each partition: the driver holds an object for each of its tasks, and
# offsets tell little of how much there is to read.
MAX_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """`start <= offset < until` of one partition."""

    partition: TopicPartition
    start: int
    until: int
    topic_id: str = ""
    """In hex: one that was made anew under the same name is another topic. Empty: whichever there is."""

    @property
    def size(self) -> int:
        """Offsets, not records: compaction leaves gaps."""
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition} [{self.start}, {self.until})"


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cuts ranges for tasks: no empty range, none of more than `max_records` offsets, about `min_partitions` of them
    where there would be fewer, each cut from its partition in proportion to its size (Spark's Kafka source does the
    same). More than `MAX_TASKS` are not made of them: the pieces are larger then."""
    found = [one for one in ranges if one.size > 0]
    if min_partitions is not None:
        min_partitions = min(min_partitions, MAX_TASKS)
    if max_records is not None:
        max_records = max(max_records, -(-sum(one.size for one in found) // MAX_TASKS))
        found = [piece for one in found for piece in _cut(one, -(-one.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(one.size for one in found)
    # Ranges too small to be cut take one task each; the others share what is left of `min_partitions`.
    small = {one for one in found if _share(one.size, total, min_partitions) == 1}
    large_total = total - sum(one.size for one in small)
    left = max(min_partitions - len(small), 1)
    return [piece for one in found for piece in _cut(one, 1 if one in small else _share(one.size, large_total, left))]


def _share(size: int, total: int, parts: int) -> int:
    return max(round(size / total * parts), 1)


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(parts, one.size)
    cuts = [one.start + one.size * index // parts for index in range(parts + 1)]
    return [replace(one, start=start, until=until) for start, until in pairwise(cuts)]
