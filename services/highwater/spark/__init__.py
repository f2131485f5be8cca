"""Highwater on Spark: `format("highwater")` for batch and streaming, read and write.

    from highwater.spark import register

    register(spark)
    spark.read.format("highwater").option("highwater.bootstrap.servers", "...").option("subscribe", "events").load()

Options, schema and meaning are those of Spark's Kafka source and sink; docs/spark.md says what differs.

The rooms, each of which may import those before it: `values`, `options`, `offsets`, `progress`, `worker`, `source`,
`sink`; the files here wire them together. `errors` and `schema` are everybody's. `pipelines` is built on all of that.
"""

from highwater.spark.progress.bar import progress_bar
from highwater.spark.progress.lag import lag
from highwater.spark.registration import register
from highwater.spark.worker.worker_python import quick_workers

__all__ = ["lag", "progress_bar", "quick_workers", "register"]
