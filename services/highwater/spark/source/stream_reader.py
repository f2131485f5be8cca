"""`spark.readStream.format("highwater")`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from highwater.client.exceptions import OffsetOutOfRangeError
from highwater.client.topic_partition import TopicPartition
from highwater.spark.errors import ShortTraceback
from highwater.spark.offsets.ranges import OffsetRange, split_ranges
from highwater.spark.offsets.stream_offset import NOT_BEGUN, StreamOffset, offsets_json, parse_stream_offset
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import lower_case, parse_read_options
from highwater.spark.source.admission import Limits, admitted, admitted_bytes
from highwater.spark.source.range_partition import RangePartition, range_partitions
from highwater.spark.source.read_plan import read_plan

if TYPE_CHECKING:
    import pyarrow as pa

    from highwater.spark.offsets.topic_offsets import TopicOffsets
    from highwater.spark.source.group_commits import GroupCommits
    from highwater.spark.source.offset_sizes import OffsetSizes

Offsets = Mapping[TopicPartition, int]

_LOOKS, _LOOK_AGAIN_S = 5, 0.3

logger = logging.getLogger(__name__)


class HighwaterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object in a process of the driver plans the micro-batches; copies of it read, in the executors' processes,
    and have no connections. What connects is imported where it is needed: Spark makes two of these objects in Python
    processes that start for that, before a query's first micro-batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse_read_options(options, streaming=True)
        self._plan = read_plan(self._options, options)
        self._admin_settings = client_settings(lower_case(options), "Admin")
        self._sample_settings = client_settings(lower_case(options), "Consumer")
        self._topics: TopicOffsets | None = None
        self._sizes: OffsetSizes | None = None
        self._commits: GroupCommits | None = None
        self._latest: Offsets | None = None  # as of the last look
        self._topic_ids: Mapping[str, str] = {}  # the same
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._gone: Set[TopicPartition] = frozenset()  # partitions that the query has read, as of the last look
        self._told: Sequence[str] = ()
        self._last_batch_s: float | None = None

    # Planning

    def initialOffset(self) -> dict[str, Any]:
        return NOT_BEGUN

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands one limit back, or says to read everything; `latestOffset` takes all of the options from here."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with ShortTraceback():
            self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; `start` itself where there is nothing to do.

        Raises:
            OffsetOutOfRangeError: a partition is gone, or ends before where the query stands, or its topic was made
                anew, or a new one has lost its first records already, and `failOnDataLoss`.
        """
        with ShortTraceback():
            end = self._next_end(start, limit)
            self._tell_group(parse_stream_offset(start).ends)
            return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the partitions; `highwater.spark.lag` compares them with where the query stands."""
        return None if self._latest is None else offsets_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = parse_stream_offset(start), parse_stream_offset(end)
        starts = {**before.ends, **(after.starts or {})}
        ranges = [
            OffsetRange(partition, starts.get(partition, 0), until, after.topic_ids.get(partition.topic, ""))
            for partition, until in after.ends.items()
        ]
        options = self._options
        cut = split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        return range_partitions(cut)

    def stop(self) -> None:
        if self._commits is not None:
            self._commits.close()
        if self._topics is not None:
            self._topics.close()
        if self._sizes is not None:
            self._sizes.close()

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from highwater.spark.progress.reports import reported
        from highwater.spark.source.range_reader import read_range

        assert isinstance(partition, RangePartition)
        with ShortTraceback():
            yield from reported(read_range(self._plan, partition.value), partition.value, partition.part)

    # Pieces of planning

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before, begun = parse_stream_offset(start), start != NOT_BEGUN
        latest = self._latest = self._found(before.ends)
        found_ids = self._topic_ids
        anew = {topic for topic, known in before.topic_ids.items() if found_ids.get(topic, known) != known}
        kept = {partition: offset for partition, offset in before.ends.items() if partition.topic not in anew}
        starts = self._starts(begun=begun, before=kept, latest=latest)
        self._check_loss(_lost(before.ends, latest, anew, starts if begun else {}))
        positions = {partition: starts.get(partition, kept.get(partition, 0)) for partition in latest}
        ends = self._ends(positions, latest, Limits() if isinstance(limit, ReadAllAvailable) else self._limits())
        # What is gone keeps its place: a broker that had not heard of it may have answered.
        ends |= {partition: offset for partition, offset in kept.items() if partition not in latest}
        ids = {**before.topic_ids, **found_ids}
        ids = {topic: ids[topic] for topic, _ in ends if topic in ids}
        if begun and not starts and (ends, ids) == (before.ends, before.topic_ids):
            return start
        self._last_batch_s = monotonic()
        return StreamOffset(ends, starts if starts or not begun else None, ids).to_json()

    def _tell_group(self, done: Offsets) -> None:
        """Commits for the group that the options name, which is looked at by people: the query goes by its checkpoint.
        Spark asks for a next micro-batch only when the last one is in the checkpoint, so that what it begins with is
        done; its own call, `commit`, comes with the next micro-batch that has records, and never for the last one."""
        group = self._options.commit_to_group
        if group is None or not done:
            return
        if self._commits is None:
            from highwater.spark.source.group_commits import GroupCommits

            self._commits = GroupCommits(self._options.bootstrap, group, self._admin_settings)
        latest = self._latest or {}  # what is gone would be refused
        self._commits.commit({partition: offset for partition, offset in done.items() if partition in latest})

    def _found(self, before: Offsets) -> Offsets:
        """The ends of the partitions. Only when several looks in a row miss a partition does it count as gone."""
        latest = self._look() if self._target is None else self._target
        for _ in range(_LOOKS):
            if before.keys() - latest.keys() <= self._gone:
                break
            sleep(_LOOK_AGAIN_S)
            latest = self._look()
            self._target = None if self._target is None else latest
        self._gone = before.keys() - latest.keys()
        return latest

    def _look(self) -> dict[TopicPartition, int]:
        """The partitions that there are now, and their ends."""
        topics = self._connected()
        partitions = topics.partitions(missing_ok=not self._options.fail_on_data_loss)
        self._topic_ids = topics.topic_ids
        return topics.latest(partitions)

    def _connected(self) -> TopicOffsets:
        if self._topics is None:
            from highwater.spark.offsets.topic_offsets import TopicOffsets

            options = self._options
            self._topics = TopicOffsets(options.bootstrap, options.subscription, self._admin_settings)
        return self._topics

    def _starts(self, *, begun: bool, before: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
        """The first offsets of the partitions that this micro-batch takes up: as the options say for a new query, and
        at the first record for partitions that a running one finds."""
        if not begun:
            return self._connected().resolved(self._options.starting, latest, self._options.no_match)
        new = [partition for partition in latest if partition not in before]
        return self._connected().earliest(new) if new else {}

    def _check_loss(self, lost: Sequence[str]) -> None:
        if not lost:
            return
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{'; '.join(lost)}: records may be lost (was the topic deleted, or made anew?); to go on without "
                "them, set failOnDataLoss to false"
            )
        if lost != self._told:
            logger.warning("records may be lost: %s", "; ".join(lost))
        self._told = lost

    def _limits(self) -> Limits:
        options = self._options
        return Limits(
            options.max_offsets_per_trigger,
            None if self._target is not None else options.min_offsets_per_trigger,  # nothing more is going to come
            options.max_trigger_delay_ms,
            options.max_bytes_per_trigger,
        )

    def _ends(self, positions: Offsets, latest: Offsets, limits: Limits) -> dict[TopicPartition, int]:
        available = sum(max(latest[partition] - positions[partition], 0) for partition in latest)
        waited_ms = float("inf") if self._last_batch_s is None else (monotonic() - self._last_batch_s) * 1000
        if limits.holds_back(available, waited_ms):
            return dict(positions)
        ends = admitted(positions, latest, limits.max_offsets)
        if limits.max_bytes is not None:
            behind = {partition: offset for partition, offset in positions.items() if ends[partition] > offset}
            if behind:
                ends = admitted_bytes(positions, ends, self._sampled(behind), limits.max_bytes)
        return ends

    def _sampled(self, behind: Offsets) -> dict[TopicPartition, float]:
        if self._sizes is None:
            from highwater.spark.source.offset_sizes import OffsetSizes

            self._sizes = OffsetSizes(self._options.bootstrap, self._sample_settings)
        return self._sizes.mean_bytes(behind)


def _lost(before: Offsets, latest: Offsets, anew: Set[str], starts: Offsets) -> list[str]:
    """`starts`: of partitions that a running query has found."""
    lost = [f"{topic} is another topic than before" for topic in sorted(anew)]
    for partition, offset in before.items():
        topic, number = partition
        if topic in anew:
            continue
        if partition not in latest:
            lost.append(f"{topic}-{number} is gone")
        elif latest[partition] < offset:
            lost.append(f"{topic}-{number} ends at {latest[partition]}, before offset {offset}")
    return lost + [f"{topic}-{number} begins at {first}" for (topic, number), first in starts.items() if first]
