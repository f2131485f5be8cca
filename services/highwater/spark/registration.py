"""Telling a Spark session of `format("highwater")`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "highwater"
_ALREADY_EXISTS = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Registers the data source, unless the session knows it: where Highwater is installed for the Python that Spark
    starts, Spark finds it by itself, and warns of one that takes its place."""
    if not _is_known(spark):
        # Imported here: what is pure in this package is of use without Spark.
        pyspark_errors = import_module("pyspark.errors")
        try:
            spark.dataSource.register(import_module("highwater.spark.data_source").HighwaterDataSource)
        except pyspark_errors.AnalysisException as error:
            # Spark has found it meanwhile. It asks a Python process for what is installed, takes one that died for one
            # that knows of nothing, and asks again.
            if error.getCondition() != _ALREADY_EXISTS:
                raise


def _is_known(spark: SparkSession) -> bool:
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect's: whose server says nothing of it
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists(_NAME))
