"""A streaming job for tests to kill: a topic into Parquet, in small micro-batches, for ever or to the end of what there
is.

    python archive_job.py BOOTSTRAP TOPIC CHECKPOINT OUT (forever | available-now)
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, checkpoint: str, out: str, how: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.pollingDelay", "50ms")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = (
        spark.readStream.format("highwater")
        .option("highwater.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "3000")
        .load()
    )
    writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if how == "available-now" else {"processingTime": "50 milliseconds"}
    query = writer.trigger(**trigger).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
