"""Small files of an archive merged into bigger ones, hour by hour, each by a commit of its own."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from time import time
from typing import TYPE_CHECKING, NamedTuple

from highwater.console.counted import counted
from highwater.errors import UserError
from highwater.spark.pipelines.archives.commits import Commit, CommitLog
from highwater.spark.pipelines.archives.files import (
    PATH_COLUMNS,
    FileContent,
    contents,
    directories,
    named,
    read_files,
    write_files,
)
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles, Listing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of hours that are merged by one Spark job: enough to be worth one, little enough to be soon done.
JOB_HOURS = 64
_HOUR = re.compile(r"topic=[^/]+/date=(\d+-\d\d-\d\d)/hour=(\d\d)")


class MergedFiles(NamedTuple):
    """The numbers of small files that were merged and of files that were made of them."""

    small: int
    made: int

    def __str__(self) -> str:
        if not self.small:
            return "no small files to merge"
        return f"{counted(self.small, 'small file')} merged into {self.made:,}"


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """The small files of one hour of one topic."""

    directory: str  # topic=…/date=…/hour=…
    paths: tuple[str, ...]
    size_bytes: int


def small_files(found: Iterable[Listing], file_bytes: int, closed_before: datetime) -> Iterator[SmallFiles]:
    """The hours that ended before a time and have two or more files below half of `file_bytes`. Pure."""
    for one in found:
        hour = _HOUR.fullmatch(one.directory)
        if hour is None or _end(hour) > closed_before:
            continue
        sizes = {
            name: size for name, size in one.sizes_bytes.items() if size < file_bytes / 2 and name.endswith(".parquet")
        }
        if len(sizes) > 1:
            yield SmallFiles(one.directory, tuple(map(one.path, sorted(sizes))), sum(sizes.values()))


def compact(
    spark: SparkSession,
    files: HadoopFiles,
    commits: CommitLog,
    archive: str,
    staging: str,
    *,
    value: str,
    compression: str,
    file_bytes: int,
    closed_after_ms: int,
) -> MergedFiles:
    """Merges small files, and counts them; `value` is the type of the values.

    Raises `UserError` where merged files do not hold what the small ones do; nothing is replaced then."""
    closed_before = datetime.fromtimestamp(time(), UTC) - timedelta(milliseconds=closed_after_ms)
    small = small_files(directories(files, archive), file_bytes, closed_before)
    taken = made = 0
    for hours in _jobs(small, file_bytes):
        source = read_files(spark, archive, [path for hour in hours for path in hour.paths], value=value)
        staged = f"{staging}/{commits.last.number + 1}"
        files.delete(staged)
        write_files(_merged(source, hours, file_bytes), staged, compression)
        before, after = _by_hour(contents(source)), _by_hour(contents(read_files(spark, staged)))
        for hour in hours:
            if _records(before[hour.directory]) != _records(after[hour.directory]):
                raise UserError(f"the merged files of {hour.directory} do not hold what the small ones do: left alone")
            last = commits.last
            number = last.number + 1
            adds = {target: f"{staged}/{path}" for path, target in named(after[hour.directory], number).items()}
            commits.commit(Commit(number, last.offsets, adds, hour.paths, last.topic_ids))
            taken += len(hour.paths)
            made += len(adds)
        files.delete(staged)
    return MergedFiles(taken, made)


def _jobs(hours: Iterable[SmallFiles], file_bytes: int) -> Iterator[list[SmallFiles]]:
    """Hours that make one file each go together; one that makes several goes alone."""
    together: list[SmallFiles] = []
    for hour in hours:
        if hour.size_bytes > file_bytes:
            yield [hour]
            continue
        together.append(hour)
        if len(together) == JOB_HOURS:
            yield together
            together = []
    if together:
        yield together


def _merged(frame: DataFrame, hours: Sequence[SmallFiles], file_bytes: int) -> DataFrame:
    if len(hours) > 1:
        return frame.repartition(len(hours), *PATH_COLUMNS)  # all of an hour in one task: one file
    pieces = ceil(hours[0].size_bytes / file_bytes)
    return frame.coalesce(1) if pieces == 1 else frame.repartitionByRange(pieces, "partition", "offset")


def _by_hour(found: Sequence[FileContent]) -> Mapping[str, list[FileContent]]:
    hours: dict[str, list[FileContent]] = defaultdict(list)
    for one in found:
        hours[one.directory].append(one)
    return hours


def _records(found: Sequence[FileContent]) -> Counter[int]:
    """The records of each partition."""
    counted: Counter[int] = Counter()
    for one in found:
        counted[one.partition] += one.records
    return counted


def _end(hour: re.Match[str]) -> datetime:
    return datetime.fromisoformat(hour[1]).replace(tzinfo=UTC) + timedelta(hours=int(hour[2]) + 1)
