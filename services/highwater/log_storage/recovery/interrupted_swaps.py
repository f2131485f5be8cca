"""Ends what a stopped deletion, cleaning or swap of segments has left in a log's directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from highwater.atomic_file import TEMPORARY_SUFFIX, fsync_directory
from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    base_offset_of,
    file_name,
)
from highwater.log_storage.segment.walk import walk
from highwater.records import CorruptBatchError
from highwater.telemetry.log import get_logger

LEFT_OVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)

_log = get_logger("log_storage.recovery")


def finish_interrupted(directory: Path, names: Iterable[str]) -> None:
    """Removes those of the files `names` that are left over, and completes a swap that had begun: `.swap` segments are
    whole, and take the place of the segments that their offsets cover. Unless one before the first of them is still
    `.cleaned`: then nothing has been replaced yet. Raises `LogError` (LOG_STORAGE_ERROR), `OSError`."""
    swaps: dict[int, Path] = {}
    cleaned: dict[int, Path] = {}
    for path in (directory / name for name in sorted(names)):
        if path.name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            swaps[base_offset_of(path)] = path
        elif path.name.endswith(LOG_SUFFIX + CLEANED_SUFFIX):
            cleaned[base_offset_of(path)] = path
        elif path.name.endswith(LEFT_OVER_SUFFIXES):
            path.unlink(missing_ok=True)  # also an index that was to be swapped in: it is made again
    if swaps and min(cleaned, default=min(swaps)) < min(swaps):
        for path in swaps.values():
            path.unlink(missing_ok=True)
        fsync_directory(directory)  # before the `.cleaned` that tells of it goes
    elif swaps:
        _swap_in(directory, swaps)
    for path in cleaned.values():
        path.unlink(missing_ok=True)


def _swap_in(directory: Path, swaps: Mapping[int, Path]) -> None:
    end_offset = 0
    for base_offset, path in swaps.items():
        try:
            end_offset = max(_end_of(path, base_offset), base_offset + 1)
        except CorruptBatchError as error:
            _drop_swaps(directory, swaps, f"{path} is damaged: {error}")
            return
    # Also an index whose segment has gone already: it is not the index of what takes its place.
    covered = (path for suffix in SEGMENT_SUFFIXES for path in directory.glob(f"*{suffix}"))
    for path in sorted(covered, reverse=True):
        if min(swaps) <= base_offset_of(path) < end_offset:
            path.unlink(missing_ok=True)
    # The last one first, so that after a crash here the `.swap` that are left cover nothing that is in place.
    for base_offset in sorted(swaps, reverse=True):
        os.replace(swaps[base_offset], directory / file_name(base_offset, LOG_SUFFIX))


def _drop_swaps(directory: Path, swaps: Mapping[int, Path], reason: str) -> None:
    if not (directory / file_name(min(swaps), LOG_SUFFIX)).exists():
        raise LogError(ErrorCode.LOG_STORAGE_ERROR, f"{reason}, and its original is gone")
    _log.warning("%s; the swap is dropped, its originals are still there", reason)
    for path in swaps.values():
        path.unlink(missing_ok=True)


def _end_of(path: Path, base_offset: int) -> int:
    end_offset = base_offset
    file = Descriptor(path, os.O_RDONLY)
    for _, header in walk(file, 0, file.size_bytes, check_crcs=True):
        end_offset = header.next_offset
    return end_offset
