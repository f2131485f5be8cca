"""`spark.read.format("highwater")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from highwater.spark.errors import ShortTraceback
from highwater.spark.offsets.ranges import OffsetRange, split_ranges
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import lower_case, parse_read_options
from highwater.spark.progress.reports import reported
from highwater.spark.source.filters import PushedFilters
from highwater.spark.source.range_partition import RangePartition, range_partitions
from highwater.spark.source.range_reader import read_range
from highwater.spark.source.read_plan import read_plan


class HighwaterBatchReader(DataSourceReader):
    """Holds no connection: it goes to the executors pickled, whose processes are forked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse_read_options(options, streaming=False)
        self._admin_settings = client_settings(lower_case(options), "Admin")
        self._plan = read_plan(self._options, options)
        self._filters = PushedFilters()

    @property
    def pushes_filters(self) -> bool:
        return self._options.push_down_filters

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with ShortTraceback(), TopicOffsets(options.bootstrap, options.subscription, self._admin_settings) as topics:
            ranges = self._ranges(topics)
        cut = split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        return list[InputPartition](range_partitions(cut))

    def _ranges(self, topics: TopicOffsets) -> list[OffsetRange]:
        options, filters = self._options, self._filters
        latest = topics.latest(topics.partitions())
        topic_ids = topics.topic_ids
        starts = topics.resolved(options.starting, latest, options.no_match)
        ends = topics.resolved(options.ending, latest)
        kept = [partition for partition in latest if filters.keeps(partition)]
        first_at_time: dict[Any, int | None] = {}
        if filters.timestamp_from_ms is not None:
            first_at_time = topics.at_times(dict.fromkeys(kept, filters.timestamp_from_ms))
        found = []
        for partition in kept:
            one = OffsetRange(partition, starts[partition], ends[partition], topic_ids[partition.topic])
            if filters.timestamp_from_ms is not None:
                # No record that late: nothing of what there is now.
                first = first_at_time[partition]
                found.append(filters.narrowed(one, latest[partition] if first is None else first))
            else:
                found.append(filters.narrowed(one))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):  # Spark makes up a partition where there is none to read
            with ShortTraceback():
                yield from reported(read_range(self._plan, partition.value), partition.value, partition.part)


class PushingBatchReader(HighwaterBatchReader):
    """Takes a query's filters, with the option `pushDownFilters`.

    Not the default: Spark 4.2 and 4.3 keep what a Python source made of the last query's filters and use it for every
    later, and every other, use of the same DataFrame, whatever its filters are. `df.filter("offset < 10").count()`
    followed by `df.count()` would count 10 twice.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(self._filters.push(filters))


def batch_reader(options: Mapping[str, str]) -> HighwaterBatchReader:
    """Raises `OptionError`."""
    reader = HighwaterBatchReader(options)
    return PushingBatchReader(options) if reader.pushes_filters else reader
