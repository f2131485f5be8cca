"""The three files of a segment: how they are called, and renaming them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)

# Behind the name of a file that is not part of the log: not any more, not yet, and about to be.
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

# An empty file in a log's directory: between its batches offsets may be missing (RULES 10.2).
OFFSET_GAPS = "offset-gaps"


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def base_offset_of(path: Path) -> int:
    """The base offset that a segment's file is named for, whatever suffixes follow. Raises `LogError`
    (LOG_STORAGE_ERROR) where the name does not begin with one."""
    name = path.name.partition(".")[0]
    if not name.isdecimal():
        raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{path} is not the name of a segment: remove or rename the file")
    return int(name)


def mark_deleted(paths: Iterable[Path]) -> list[Path]:
    """Renames those that are there to `.deleted`; the new paths, also of those that have been renamed before. Raises
    `OSError`."""
    paths = list(paths)
    renamed = [path.with_name(path.name + DELETED_SUFFIX) for path in paths]
    rename(paths, renamed)
    return [path for path in renamed if path.exists()]


def rename(paths: Iterable[Path], targets: Iterable[Path]) -> None:
    """Those that are there. Raises `OSError`."""
    for path, target in zip(paths, targets, strict=True):
        if path.exists():
            os.replace(path, target)
