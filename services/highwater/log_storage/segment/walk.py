"""Walks over the batches of an open segment file in chunks, without reading a payload that is not asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from highwater.records import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header
from highwater.records.header import CHECKED_FROM, LENGTH_OVERHEAD_BYTES, MAGIC, crc32c

SCAN_BYTES = 1 << 20
LOOKUP_BYTES = 4096
COPIED_BYTES = 64 << 10
MAGIC_POSITION = 16


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """A whole batch that a walk has come to."""

    position: int
    header: BatchHeader


def scan_batches(
    descriptor: int, position: int, end: int, *, verify: bool = False, chunk_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch from `position` to `end` of a file. With `verify` the CRCs are checked.

    Raises:
        CorruptBatchError: at the first batch that is damaged or cut off, with its position in the file.
        OSError: the file cannot be read.
    """
    chunk, chunk_start = b"", position
    while position < end:
        inside = position - chunk_start
        if len(chunk) - inside < HEADER_BYTES:
            chunk, chunk_start, inside = os.pread(descriptor, min(chunk_bytes, end - position), position), position, 0
        try:
            header = read_header(chunk, inside)
        except CorruptBatchError as error:
            raise CorruptBatchError(position, error.reason) from None
        size = header.size_bytes
        if size > end - position:
            raise CorruptBatchError(position, f"truncated: {end - position} of {size} bytes")
        if verify:
            if len(chunk) - inside < size:
                chunk = os.pread(descriptor, min(chunk_bytes, end - position), position)
                chunk_start, inside = position, 0
            # A copy is cheaper than a view for what is small, and a large batch makes up for the view.
            source = chunk if size < COPIED_BYTES else memoryview(chunk)
            if len(chunk) - inside < size or crc32c(source[inside + CHECKED_FROM : inside + size]) != header.crc:
                _verify(descriptor, position, header, source[inside : inside + size])
        yield position, header
        position += size


def only_begins(descriptor: int, position: int, end: int) -> bool:
    """Whether from `position` to `end` of a file stands the beginning of one batch and no more. Raises `OSError`."""
    begin = os.pread(descriptor, min(HEADER_BYTES, end - position), position)
    if len(begin) < LENGTH_OVERHEAD_BYTES:
        return True
    if len(begin) > MAGIC_POSITION and begin[MAGIC_POSITION] != MAGIC:
        return False
    return end - position < int.from_bytes(begin[8:LENGTH_OVERHEAD_BYTES], signed=True) + LENGTH_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    position: int
    header: BatchHeader | None  # None: no header stands there, and nothing behind it can be found
    problem: str  # empty: it is whole


def checked_batches(descriptor: int, size: int) -> Iterator[CheckedBatch]:
    """Every batch of an open segment file up to `size`, CRCs checked. One with a bad CRC is reported and passed over.
    Raises `OSError`."""
    position = 0
    while position < size:
        try:
            for place, header in scan_batches(descriptor, position, size, verify=True):
                yield CheckedBatch(place, header, "")
                position = place + header.size_bytes
            return
        except CorruptBatchError as error:
            try:
                header = read_header(os.pread(descriptor, HEADER_BYTES, error.position))
            except CorruptBatchError:
                yield CheckedBatch(error.position, None, error.reason)
                return
            yield CheckedBatch(error.position, header, error.reason)
            position = error.position + header.size_bytes


def _verify(descriptor: int, position: int, header: BatchHeader, begin: bytes | memoryview) -> None:
    """Checks the CRC of a batch of which `begin` has been read; one larger than a chunk is read piece by piece."""
    crc = crc32c(begin[CHECKED_FROM:])
    done = len(begin)
    while done < header.size_bytes:
        piece = os.pread(descriptor, min(SCAN_BYTES, header.size_bytes - done), position + done)
        if not piece:
            raise CorruptBatchError(position, f"truncated: {done} of {header.size_bytes} bytes")
        crc = crc32c(piece, crc)
        done += len(piece)
    if crc != header.crc:
        raise CorruptBatchError(position, f"CRC-32C is {crc:#010x}, the header says {header.crc:#010x}")
