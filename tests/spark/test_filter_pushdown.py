"""Why filters are pushed down only where they are asked for: what Spark does, shown without Highwater."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition, LessThan
from pyspark.sql.types import StructType


def counting_source() -> type[DataSource]:
    """`format("counting")`: the numbers 0 to 99 as `n`. It takes filters `n < ...`, and obeys them."""

    class Reader(DataSourceReader):
        until = 100

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for one in filters:
                if isinstance(one, LessThan):
                    self.until = min(self.until, one.value)
                else:
                    yield one

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"n": pa.array(range(self.until), pa.int32())})

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return Counting


def test_spark_hands_what_it_planned_for_one_filter_to_other_uses_of_a_data_frame(spark: SparkSession) -> None:
    """The numbers are wrong. Where this fails because they are right, that Spark plans each use by itself, and
    `pushDownFilters` may be on by default for it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(counting_source())
        numbers = spark.read.format("counting").load()
        assert numbers.filter("n < 10").count() == 10
        assert numbers.count() == 10  # of 100
        both = numbers.filter("n < 20").union(numbers.filter("n < 30"))
        assert both.count() == 60  # of 20 + 30
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
