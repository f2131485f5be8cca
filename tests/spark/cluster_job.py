"""A job on two executors of their own, for a test to run: a read with its bar in the middle, a write, a stream.

    python cluster_job.py BOOTSTRAP TOPIC DIRECTORY

prints one JSON object.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

from conftest import started, wait_until, waiting_for, with_options
from pyspark.sql import SparkSession
from rich.console import Console

from highwater.spark import progress_bar


def main(bootstrap: str, topic: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    go_on = Path(directory) / "go-on"
    options = {"highwater.bootstrap.servers": bootstrap, "subscribe": topic, "columns": "value"}
    frame = with_options(spark.read, None, options).load()
    waiting = frame.mapInArrow(waiting_for(go_on), "value binary")
    with progress_bar(spark, console=Console(file=io.StringIO())) as bar:
        work = started(lambda: waiting.write.format("noop").mode("append").save())
        wait_until(lambda: any(0 < one.done < one.total for one in bar.reads), lambda: (bar.reads, bar.stages))
        (middle,) = bar.reads
        go_on.touch()
        work.join()
    (end,) = bar.reads
    to_copy = {"highwater.bootstrap.servers": bootstrap, "topic": f"{topic}-copy"}
    with_options(frame.write, None, to_copy).mode("append").save()
    copied = with_options(spark.read, None, {**options, "subscribe": f"{topic}-copy"}).load()
    stream = with_options(spark.readStream, None, {**options, "startingOffsets": "earliest"}).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", f"{directory}/out")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
        "middle": [middle.done, middle.total],
        "end": [end.done, end.total],
        "copied": copied.count(),
        "archived": spark.read.parquet(f"{directory}/out").count(),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
