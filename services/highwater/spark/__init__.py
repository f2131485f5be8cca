"""Highwater on Spark: `format("highwater")` for batch and streaming, read and write.

    from highwater.spark import register

    register(spark)
    spark.read.format("highwater").option("highwater.bootstrap.servers", "...").option("subscribe", "events").load()

Options, schema and meaning are those of Spark's Kafka source and sink; docs/spark.md says what differs.
"""

from highwater.spark.progress import lag, progress_bar
from highwater.spark.registration import register
from highwater.spark.worker_python import quick_workers

__all__ = ["lag", "progress_bar", "quick_workers", "register"]
