"""The segments that stand in a log's directory, before anything is read of them."""

from __future__ import annotations

import os
from pathlib import Path

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.segment.segment import MAX_SEGMENT_BYTES, Segment
from highwater.log_storage.segment.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, base_offset_of

NO_BOUND = 2**63 - 1


def open_segments(directory: Path, config: LogConfig) -> list[Segment]:
    """Finds them in the order of their offsets; their files are opened when they are used. Raises as
    `segment_sizes`."""
    sizes = segment_sizes(directory)
    bases = sorted(sizes)
    return [
        Segment(
            directory,
            base,
            index_interval_bytes=config.index_interval_bytes,
            index_max_bytes=config.index_max_bytes,
            size_bytes=sizes[base],
            end_offset=bases[number + 1] if number + 1 < len(bases) else NO_BOUND,
        )
        for number, base in enumerate(bases)
    ]


def segment_sizes(directory: Path) -> dict[int, int]:
    """Of each segment, by base offset. Removes indexes whose segment is gone. Raises `LogError` (LOG_STORAGE_ERROR),
    `OSError`."""
    sizes: dict[int, int] = {}
    indexes: list[Path] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(LOG_SUFFIX):
                size = entry.stat().st_size
                if size > MAX_SEGMENT_BYTES:
                    raise lost(f"{entry.path} has {size} bytes, a segment has {MAX_SEGMENT_BYTES} at most")
                sizes[base_offset_of(directory / entry.name)] = size
            elif entry.name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
                indexes.append(directory / entry.name)
    for path in indexes:
        if base_offset_of(path) not in sizes:
            path.unlink(missing_ok=True)
    return sizes


def lost(what: str) -> LogError:
    """Makes the error of a log that does not hold what was on disk."""
    return LogError(
        ErrorCode.LOG_STORAGE_ERROR,
        f"{what}. Restore the file; or, once the partition's ISR does not list this broker, stop log-storage and "
        f"remove the log's directory, to have the replica copied from its leader",
    )
