"""Offsets by timestamp (ListOffsets)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.walk import LOOKUP_BYTES
from highwater.model.leader_epochs import NO_EPOCH, LeaderEpochCache
from highwater.records import BatchHeader, decode

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


class FoundOffset(NamedTuple):
    offset: int  # -1: no record at or after the timestamp
    timestamp: int  # of that record; -1 for LATEST and EARLIEST
    leader_epoch: int


NOT_FOUND = FoundOffset(-1, -1, NO_EPOCH)


def find_offset(
    segments: Sequence[Segment], epochs: LeaderEpochCache, log_start_offset: int, end_offset: int, timestamp: int
) -> FoundOffset:
    """The first record at or after `timestamp` (ms) among the offsets from the log start up to `end_offset`, exactly:
    its batch is decoded. LATEST is `end_offset`, EARLIEST the log start, MAX_TIMESTAMP the first record with the
    largest one.

    Raises `CorruptBatchError`, `OSError`.
    """
    if timestamp == LATEST:
        return FoundOffset(end_offset, -1, epochs.last_epoch_below(end_offset))
    if timestamp == EARLIEST:
        return FoundOffset(log_start_offset, -1, epochs.last_epoch_below(log_start_offset + 1))
    if timestamp == MAX_TIMESTAMP:
        timestamp = _largest_timestamp(segments, log_start_offset, end_offset)
        if timestamp < 0:
            return NOT_FOUND
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        for position, header in segment.first_at_or_after(timestamp):
            if header.base_offset >= end_offset:
                break
            if header.last_offset >= log_start_offset:
                offsets, timestamps = _columns(segment, position, header)
                found = np.flatnonzero(
                    (timestamps >= timestamp) & (offsets >= log_start_offset) & (offsets < end_offset)
                )
                if len(found):
                    offset = int(offsets[found[0]])
                    return FoundOffset(offset, int(timestamps[found[0]]), epochs.last_epoch_below(offset + 1))
    return NOT_FOUND


def _largest_timestamp(segments: Sequence[Segment], log_start_offset: int, end_offset: int) -> int:
    largest = -1
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.base_offset < log_start_offset:
            found = segment.position_of(log_start_offset)
            start = segment.size_bytes if found is None else found[0]
        elif segment.max_timestamp_offset < end_offset:
            largest = max(largest, segment.max_timestamp)
            continue
        else:
            # All but the last of the batches below the bound are in the indexes: the segment is not walked over.
            indexed, start = segment.indexed_below(end_offset)
            largest = max(largest, indexed)
        for position, header in segment.headers(start, chunk_bytes=LOOKUP_BYTES):
            if header.base_offset >= end_offset:
                break
            whole = header.base_offset >= log_start_offset and header.last_offset < end_offset
            if whole or header.max_timestamp <= largest:
                largest = max(largest, header.max_timestamp if whole else -1)
            elif header.last_offset >= log_start_offset and header.base_offset < end_offset:
                offsets, timestamps = _columns(segment, position, header)
                inside = timestamps[(offsets >= log_start_offset) & (offsets < end_offset)]
                largest = max(largest, int(inside.max(initial=-1)))
    return largest


def _columns(
    segment: Segment, position: int, header: BatchHeader
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    table = decode(segment.batch_at(position, header)).to_arrow()
    return np.asarray(table.column("offset")), np.asarray(table.column("timestamp")).astype(np.int64)
