"""Offsets by timestamp (ListOffsets)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np

from highwater.log_storage.segment.segment import Segment
from highwater.log_storage.segment.walk import LOOKUP_BYTES
from highwater.model.leader_epochs import NO_EPOCH, LeaderEpochCache
from highwater.records import BatchHeader, Codec, CorruptBatchError
from highwater.records.payload_scan import PayloadScan, scan_payload

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
# A batch of so many bytes that are not compressed is scanned sooner than a thread takes it.
INLINE_SCAN_BYTES = 4096


class FoundOffset(NamedTuple):
    offset: int  # -1: no record at or after the timestamp
    timestamp: int  # of that record; -1 for LATEST and EARLIEST
    leader_epoch: int


NOT_FOUND = FoundOffset(-1, -1, NO_EPOCH)


class LookedInto(NamedTuple):
    """A batch whose records a look-up has to know."""

    batch: bytes
    header: BatchHeader

    @property
    def small(self) -> bool:
        return self.header.codec is Codec.NONE and len(self.batch) <= INLINE_SCAN_BYTES

    def scan(self) -> PayloadScan | CorruptBatchError:
        """Expands it: what is in it, or what is wrong with it. In a thread, unless it is `small`."""
        try:
            return scan_payload(self.batch, 0, self.header)
        except CorruptBatchError as error:
            return error


# What looks for an offset gives the batches that it has to look into, and is sent what is in them.
Search = Generator[LookedInto, PayloadScan, FoundOffset]


def go_on(search: Search, scanned: PayloadScan | CorruptBatchError) -> LookedInto:
    """The next batch to look into. Raises `StopIteration` with the offset, and what the search raises."""
    return search.throw(scanned) if isinstance(scanned, CorruptBatchError) else search.send(scanned)


def finished(search: Search) -> FoundOffset:
    """The end of a search, each of whose batches is expanded here."""
    try:
        looked_into = next(search)
        while True:
            looked_into = go_on(search, looked_into.scan())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def find_offset(
    segments: Sequence[Segment], epochs: LeaderEpochCache, log_start_offset: int, end_offset: int, timestamp: int
) -> Search:
    """The first record at or after `timestamp` (ms) among the offsets from the log start up to `end_offset`, exactly:
    its batch is looked into. LATEST is `end_offset`, EARLIEST the log start, MAX_TIMESTAMP the first record with the
    largest one.

    Raises `CorruptBatchError`, `OSError`.
    """
    if timestamp == LATEST:
        return FoundOffset(end_offset, -1, epochs.last_epoch_below(end_offset))
    if timestamp == EARLIEST:
        return FoundOffset(log_start_offset, -1, epochs.last_epoch_below(log_start_offset + 1))
    if timestamp == MAX_TIMESTAMP:
        timestamp = yield from _largest_timestamp(segments, log_start_offset, end_offset)
        if timestamp < 0:
            return NOT_FOUND
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        for position, header in segment.first_at_or_after(timestamp):
            if header.base_offset >= end_offset:
                break
            if header.last_offset >= log_start_offset:
                offsets, timestamps, _ = yield LookedInto(segment.batch_at(position, header), header)
                found = np.flatnonzero(
                    (timestamps >= timestamp) & (offsets >= log_start_offset) & (offsets < end_offset)
                )
                if len(found):
                    offset = int(offsets[found[0]])
                    return FoundOffset(offset, int(timestamps[found[0]]), epochs.last_epoch_below(offset + 1))
    return NOT_FOUND


def _largest_timestamp(
    segments: Sequence[Segment], log_start_offset: int, end_offset: int
) -> Generator[LookedInto, PayloadScan, int]:
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
                offsets, timestamps, _ = yield LookedInto(segment.batch_at(position, header), header)
                inside = timestamps[(offsets >= log_start_offset) & (offsets < end_offset)]
                largest = max(largest, int(inside.max(initial=-1)))
    return largest
