"""The format of the archive in a directory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from highwater.spark.pipelines.archives.commits import COMMITS
from highwater.spark.pipelines.archives.options import ArchiveFormat

if TYPE_CHECKING:
    from highwater.spark.pipelines.files.hadoop_files import HadoopFiles

DELTA_LOG = "_delta_log"
_TRANSACTION = re.compile(r"\d{20}\.")


def format_of(names: Iterable[str]) -> ArchiveFormat | None:
    """The format by the names in the directory; None where there is no archive. Pure."""
    names = set(names)
    if DELTA_LOG in names:
        return ArchiveFormat.DELTA
    if COMMITS in names or any(name.startswith("topic=") for name in names):
        return ArchiveFormat.PARQUET
    return None


def local_format(directory: str) -> ArchiveFormat | None:
    """The format of an archive, found without Spark; None also where the directory is not of this machine."""
    parsed = urlparse(directory)
    path = Path(parsed.path)
    if parsed.scheme not in ("", "file") or not path.is_dir():
        return None
    return format_of(each.name for each in path.iterdir())


def found_format(files: HadoopFiles, directory: str) -> ArchiveFormat | None:
    return format_of(files.names(files.qualified(directory)))


def is_table(files: HadoopFiles, directory: str) -> bool:
    """Tells whether there is a Delta table: a process that was killed while it made one has left a log without a
    transaction."""
    return any(map(_TRANSACTION.match, files.names(f"{directory}/{DELTA_LOG}")))
