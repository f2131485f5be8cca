"""Rows that Spark makes by itself: a key, and 100 bytes of JSON.

They have few parts, of fixed widths: what making them costs is in every sink's time. The key is the user.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from bench.work import PARTITIONS

_KINDS = ("views", "click", "order", "login", "leave")
_NUMBER = "10000 + pmod(id * 7919, 10007)"
_KIND = "elt(1 + pmod(id * 31, 5), " + ", ".join(f"""'","kind":"{kind}","cents":'""" for kind in _KINDS) + ")"
_CENTS = "10000 + pmod(id * 104729, 89989)"
KEY = f"concat('user-', {_NUMBER})"
VALUE = (
    f"""concat('{{"id":', 1000000000 + id, ',"user":"user-', {_NUMBER}, {_KIND}, {_CENTS}, """
    f"""',"note":"{"x" * 24}"}}')"""
)


def made_rows(spark: SparkSession, rows: int, *columns: str) -> DataFrame:
    """SQL over `id`, in a task for each partition of a topic."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(*columns)
