"""Delta Lake for the sessions of pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from highwater.errors import UserError
from highwater.spark.pipelines.session.jars import NoJarsError, fetched_jars, has_jar, joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# What Delta asks for and Spark has, most of it in a newer release: four fifths of the bytes.
_OF_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)


class NoDeltaError(UserError):
    """There is no Delta Lake for this session."""


def coordinates() -> str:
    """Maven coordinates of the release for the PySpark that is installed."""
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return f"io.delta:delta-spark_{major}.{minor}_2.13:{VERSION}"


def delta_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a new session with Delta Lake, which go before those that the user has given. Raises
    `NoDeltaError`."""
    extension = "spark.sql.extensions"
    found = {**SETTINGS, extension: joined(given.get(extension), [SETTINGS[extension]])}
    if not has_jar("delta-spark", given):
        try:
            jars = fetched_jars([coordinates()], _OF_SPARK, given)
        except NoJarsError as error:
            raise NoDeltaError(
                f"the jars of Delta Lake ({coordinates()}) cannot be fetched: {error}; say where they are with --conf "
                "spark.jars=…/delta-spark….jar,…/delta-storage….jar or --conf spark.jars.ivySettings=…, or write "
                "plain Parquet files (archive --format parquet, rollup --to-parquet)"
            ) from error
        found["spark.jars"] = joined(given.get("spark.jars"), map(str, jars))
    return found


class DeltaSettings:
    """`delta_settings` for a session that need not have it, unless it turns out to be needed."""

    def __init__(self) -> None:
        self._problem: NoDeltaError | None = None

    def __call__(self, given: Mapping[str, str]) -> dict[str, str]:
        try:
            return delta_settings(given)
        except NoDeltaError as error:
            self._problem = error
            return {}

    def check(self, spark: SparkSession) -> None:
        """Makes sure that the session has Delta Lake, which is needed. Raises `NoDeltaError`."""
        if self._problem is not None:
            raise self._problem
        check_delta(spark)


def check_delta(spark: SparkSession) -> None:
    """Raises `NoDeltaError` where the session, which may have been there before the pipeline, has no Delta Lake."""
    from py4j.java_gateway import JavaClass

    there = isinstance(spark._jvm.io.delta.tables.DeltaTable, JavaClass)
    wrong = [name for name, value in SETTINGS.items() if value not in (spark.conf.get(name, "") or "")]
    if not there or wrong:
        told = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
        raise NoDeltaError(
            f"this Spark session has no Delta Lake: start it with --packages {coordinates()} {told}, or write plain "
            "Parquet files (archive --format parquet, rollup --to-parquet)"
        )
