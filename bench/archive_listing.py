"""How long an archive of many small plain files takes to list, and in what memory.

    python -m bench.archive_listing [--files 1000000] [--an-hour 420] [--directory DIR]

The files are empty, and named as the pipeline names them; those of an hour are 70 micro-batches of 6 partitions. A
driver of Spark lists them as `archive --compact` does, first an archive of a tenth of the files: its memory with all of
them is compared with that. Names and sizes are in the kernel's caches: the disk is not what is measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from bench.results import publish, results
from highwater.spark.pipelines.archives.compaction import small_files
from highwater.spark.pipelines.archives.files import directories
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles, Listing

FILES = 1_000_000
AN_HOUR = 420
PARTITIONS = 6
TIMES = 3
FILE_BYTES = 128 << 20  # as the pipeline has it
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--an-hour", type=int, default=AN_HOUR, help="how many of them are of one hour")
    parser.add_argument("--directory", type=Path, help="on which file system (default: that of temporary files)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="highwater-bench-", dir=arguments.directory) as directory:
        tenth, whole = Path(directory) / "tenth", Path(directory) / "whole"
        make_archive(tenth, arguments.files // 10, arguments.an_hour)
        make_archive(whole, arguments.files, arguments.an_hour)
        spark = session()
        try:
            _, tenth_mib = measured(spark, tenth, arguments.files // 10)
            seconds, whole_mib = measured(spark, whole, arguments.files)
        finally:
            spark.stop()
    found = {"listing": seconds, "listing_growth": whole_mib / tenth_mib}
    publish(results({f"archive_{name}": value for name, value in found.items()}))
    return 0


def session() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = SparkSession.builder.master("local[1]").appName("bench").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_archive(directory: Path, files: int, an_hour: int) -> None:
    print(f"making {files:,} files …", file=sys.stderr, flush=True)
    for hour, first in enumerate(range(0, files, an_hour)):
        at = BEGIN + timedelta(hours=hour)
        inside = directory / f"topic=flights/date={at:%Y-%m-%d}/hour={at:%H}"
        inside.mkdir(parents=True)
        for number in range(first, min(first + an_hour, files)):
            commit, partition = divmod(number, PARTITIONS)
            (inside / f"{partition:05d}-{commit:020d}-{commit:06d}.parquet").touch()


class Counted:
    """Listings, and how many files there were in them."""

    def __init__(self, found: Iterator[Listing]) -> None:
        self._found = found
        self.files = 0

    def __iter__(self) -> Iterator[Listing]:
        for one in self._found:
            self.files += len(one.sizes_bytes)
            yield one


def measured(spark: SparkSession, archive: Path, files: int) -> tuple[float, float]:
    """Seconds, and the most memory in MiB that this process has had; Spark's JVM lists nothing."""
    listed = HadoopFiles(spark, str(archive))
    spent = []
    for _ in range(TIMES):
        began = time.perf_counter()
        found = Counted(directories(listed, listed.qualified(str(archive))))
        for _ in small_files(found, FILE_BYTES, datetime.now(UTC)):
            pass
        spent.append(time.perf_counter() - began)
        assert found.files == files, f"{found.files} files were found, {files} are there"
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = ", ".join(f"{one:.2f}" for one in spent)
    print(f"{files:,} files: {seconds} s, at most {memory_mib:.1f} MiB", file=sys.stderr, flush=True)
    return statistics.median(spent), memory_mib


if __name__ == "__main__":
    sys.exit(main())
