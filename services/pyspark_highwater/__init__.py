"""Where Spark looks for `format("highwater")` by itself: top-level modules whose names begin with `pyspark_`."""

from highwater.spark.data_source import HighwaterDataSource as DefaultSource

__all__ = ["DefaultSource"]
