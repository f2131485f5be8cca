"""The offsets that the driver asks the cluster for: the partitions of a subscription, their first offsets and ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from time import time
from types import TracebackType
from typing import Any, Self

from highwater.client.blocking import Admin
from highwater.client.exceptions import OffsetOutOfRangeError, UnknownTopicError
from highwater.client.scan.positions import Kind, Position
from highwater.client.topic_partition import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from highwater.spark.errors import OptionError
from highwater.spark.options.data_source_options import NoMatch, Subscription
from highwater.spark.options.positions import Positions

Offsets = dict[TopicPartition, int]


class TopicOffsets:
    """Connects with the first question. Every question raises `HighwaterError` where the cluster cannot answer."""

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        subscription: Subscription,
        settings: Mapping[str, Any],
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        self._admin = Admin(bootstrap, **settings)
        self._subscription = subscription
        self._now_ms = now_ms
        self.topic_ids: dict[str, str] = {}
        """In hex, of the topics as `partitions` found them last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._admin.stop()

    def partitions(self, *, missing_ok: bool = False) -> list[TopicPartition]:
        """Those that the subscription has now.

        Raises:
            UnknownTopicError: a topic or partition that it names does not exist, unless `missing_ok`.
        """
        subscription = self._subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            names = [name for name in self._admin.list_topics() if pattern.fullmatch(name)]
            return self._partitions_of(names, missing_ok=True)
        if subscription.topics:
            return self._partitions_of(subscription.topics, missing_ok=missing_ok)
        there = set(self._partitions_of({topic: None for topic, _ in subscription.assigned}, missing_ok=missing_ok))
        missing = [partition for partition in subscription.assigned if partition not in there]
        if missing and not missing_ok:
            topic, partition = missing[0]
            raise UnknownTopicError(f"option assign names {topic}-{partition}, which does not exist")
        return [partition for partition in subscription.assigned if partition in there]

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._looked_up(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The high watermarks."""
        return self._looked_up(dict.fromkeys(partitions, LATEST_TIMESTAMP))

    def at_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after each time; None: there is none."""
        found = self._looked_up(timestamps_ms)
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def resolved(
        self, positions: Positions, latest: Mapping[TopicPartition, int], no_match: NoMatch = NoMatch.LATEST
    ) -> Offsets:
        """The offset of each partition of `latest`, which is where `latest` is taken to be.

        Raises:
            OptionError: the positions do not name these partitions, or there is no record at or after a time, and
                `no_match` is an error; or a group has committed nothing of a partition, and that is an error.
            OffsetOutOfRangeError: an offset that was named lies behind the end.
        """
        if positions.group is not None:
            committed = self._admin.list_group_offsets(positions.group.group, latest)
            positions = positions.committed({one: each.offset for one, each in committed.items()}, latest)
        wanted = positions.of(latest)
        earliest_of = [
            partition
            for partition, position in wanted.items()
            if position.kind is Kind.EARLIEST or (position.kind is Kind.LATEST and position.number)
        ]
        earliest = self.earliest(earliest_of) if earliest_of else {}
        now_ms = self._now_ms()
        times = {
            partition: position.number if position.kind is Kind.TIME else max(now_ms - position.number, 0)
            for partition, position in wanted.items()
            if position.kind in (Kind.TIME, Kind.AGO)
        }
        found = self.at_times(times) if times else {}
        offsets: Offsets = {}
        for partition, position in wanted.items():
            end = latest[partition]
            if partition in times:
                offsets[partition] = _at_time(positions, partition, times[partition], found[partition], end, no_match)
            else:
                offsets[partition] = _offset(positions, partition, position, earliest.get(partition, 0), end)
        return offsets

    def _partitions_of(self, topics: Iterable[str], *, missing_ok: bool) -> list[TopicPartition]:
        topics = list(topics)
        self.topic_ids = {}
        if not topics:
            return []
        if missing_ok:
            there = set(self._admin.list_topics(include_internal=True))
            topics = [topic for topic in topics if topic in there]
        described = self._admin.describe_topics(topics)
        self.topic_ids = {one.topic: one.topic_id.hex() for one in described}
        return [TopicPartition(one.topic, info.partition) for one in described for info in one.partitions]

    def _looked_up(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        if not timestamps_ms:
            return {}
        return {partition: found.offset for partition, found in self._admin.list_offsets(timestamps_ms).items()}


def _at_time(
    positions: Positions, partition: TopicPartition, time_ms: int, found: int | None, end: int, no_match: NoMatch
) -> int:
    if found is not None:
        return min(found, end)
    if no_match is NoMatch.LATEST:
        return end
    topic, number = partition
    raise OptionError(
        f"option {positions.option}: {topic}-{number} has no record at or after {time_ms}; "
        "take an earlier time, or set startingOffsetsByTimestampStrategy to latest"
    )


def _offset(positions: Positions, partition: TopicPartition, position: Position, earliest: int, end: int) -> int:
    if position.kind is Kind.EARLIEST:
        return min(earliest, end)
    if position.kind is Kind.LATEST:
        return max(end - position.number, earliest) if position.number else end
    if position.number > end:
        topic, number = partition
        raise OffsetOutOfRangeError(
            f"option {positions.option}: {topic}-{number} ends at {end}, there is no offset {position.number} yet"
        )
    return position.number
