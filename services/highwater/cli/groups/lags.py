"""The lag of a group: in offsets, and in seconds by the next record that it has to read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from highwater.client.exceptions import HighwaterError, RetriableError, UnknownTopicError

if TYPE_CHECKING:
    from highwater.client import Admin, GroupDescription, TopicPartition

FETCH_S = 3.0
"""How long a description waits for the next records, of all partitions together."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    partition: TopicPartition
    committed: int | None
    """None: nothing was committed."""
    end: int | None
    """The high watermark; None: the partition's leader did not tell."""
    time_ms: int | None
    """Of the record that is to be read next; None: there is none, or it did not come in time."""
    member_id: str
    """Who has it; empty: nobody."""

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)

    def seconds(self, now_ms: int) -> float | None:
        """The age of the next record; 0 where there is none."""
        if self.lag == 0:
            return 0.0
        return None if self.time_ms is None else max(now_ms - self.time_ms, 0) / 1000


def behind(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The committed offsets of those partitions that have something behind them."""
    return {one: offset for one, offset in committed.items() if offset < ends.get(one, -1)}


def partition_lags(
    group: GroupDescription, ends: Mapping[TopicPartition, int], times_ms: Mapping[TopicPartition, int]
) -> list[PartitionLag]:
    """By partition: those of which something was committed, and those that a member has."""
    owners = {one: member.member_id for member in group.members for one in member.assignment}
    return [
        PartitionLag(
            one,
            None if one not in group.offsets else group.offsets[one].offset,
            ends.get(one),
            times_ms.get(one),
            owners.get(one, ""),
        )
        for one in sorted(group.offsets.keys() | owners.keys())
    ]


async def find_lags(admin: Admin, group: GroupDescription, bootstrap: str) -> tuple[list[PartitionLag], list[str]]:
    """The lags, and a sentence for each topic of which the ends are not known."""
    committed = {one: each.offset for one, each in group.offsets.items()}
    wanted = committed.keys() | {one for member in group.members for one in member.assignment}
    ends, said = await find_ends(admin, wanted)
    times_ms = await record_times(behind(committed, ends), bootstrap)
    return partition_lags(group, ends, times_ms), said


async def find_ends(admin: Admin, wanted: Iterable[TopicPartition]) -> tuple[dict[TopicPartition, int], list[str]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for one in wanted:
        by_topic.setdefault(one.topic, []).append(one)
    ends: dict[TopicPartition, int] = {}
    said = []
    answers = await asyncio.gather(*map(admin.list_offsets, by_topic.values()), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, (RetriableError, UnknownTopicError)):  # one topic's trouble hides no other topic
            said.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            ends |= {one: each.offset for one, each in answer.items()}
    return ends, sorted(said)


async def record_times(positions: Mapping[TopicPartition, int], bootstrap: str) -> dict[TopicPartition, int]:
    """The times of the first records at or after these offsets, as far as they come within `FETCH_S`: one batch of
    each partition, and no more."""
    from highwater.client import Consumer, TopicPartition

    found: dict[TopicPartition, int] = {}
    if not positions:
        return found
    # Where retention has taken what is at the offset, the first record that is left is the next one to be read.
    async with Consumer(
        bootstrap=bootstrap, client_id="highwater-groups", auto_offset_reset="earliest", max_partition_fetch_bytes=1
    ) as consumer:
        consumer.assign(positions)
        for partition, offset in positions.items():
            consumer.seek(partition, offset)
        deadline = monotonic() + FETCH_S
        while positions.keys() - found.keys() and (left_s := deadline - monotonic()) > 0:
            try:
                records = await consumer.poll(timeout_ms=left_s * 1000, max_records=1)
            except HighwaterError:
                break  # a damaged batch, say: who reads it is told, and what came already is shown
            for record in records:
                partition = TopicPartition(record.topic, record.partition)
                consumer.pause(partition)
                found[partition] = record.timestamp_ms
    return {one: time_ms for one, time_ms in found.items() if time_ms >= 0}
