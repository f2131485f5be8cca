"""Telling a Spark session of `format("highwater")`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the data source; where Highwater is installed for the driver's Python, Spark finds it by itself."""
    # Imported here: what is pure in this package is of use without Spark.
    spark.dataSource.register(import_module("highwater.spark.data_source").HighwaterDataSource)
