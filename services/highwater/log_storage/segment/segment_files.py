"""The three files of a segment: how they are called, and renaming them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)

# Behind the name of a file that is not part of the log: not any more, not yet, and about to be.
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


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
