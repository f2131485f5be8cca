"""The walk over the batches of a segment's file: in chunks, without reading a payload that is not asked for.

    who walks                                       CRCs      damage        bytes at once
    lookups by offset and by timestamp              no        raises        LOOKUP_BYTES
    indexes, epochs and producers made anew         no        raises        SCAN_BYTES
    recovery, an interrupted swap                   yes       raises        SCAN_BYTES
    ListBatches                                     if asked  passed over   SCAN_BYTES
    scrubbing; `highwater log` and `audit`          yes       passed over   SCAN_BYTES

Offsets are not judged here: who walks knows which ones to expect. A read and the cleaner take whole batches with their
payloads (`Segment.read`, `compaction/cleaner_batches`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

from highwater.log_storage.files.descriptor import Descriptor
from highwater.records import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header
from highwater.records.header import CHECKED_FROM, LENGTH_OVERHEAD_BYTES, MAGIC, crc32c

SCAN_BYTES = 1 << 20
LOOKUP_BYTES = 4096
COPIED_BYTES = 64 << 10
MAGIC_POSITION = 16


class WalkedBatch(NamedTuple):
    """A whole batch that a walk has come to; its CRC is good where it was checked."""

    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class DamagedBatch:
    """A batch that is not whole, which a walk has come to."""

    position: int
    header: BatchHeader | None  # None: no header stands there, and nothing behind it can be found
    problem: str


@overload
def walk(
    file: Descriptor,
    position: int,
    end: int,
    *,
    check_crcs: bool = False,
    pass_over_damage: Literal[False] = False,
    chunk_bytes: int = SCAN_BYTES,
) -> Iterator[WalkedBatch]: ...


@overload
def walk(
    file: Descriptor,
    position: int,
    end: int,
    *,
    check_crcs: bool = False,
    pass_over_damage: Literal[True],
    chunk_bytes: int = SCAN_BYTES,
) -> Iterator[WalkedBatch | DamagedBatch]: ...


def walk(
    file: Descriptor,
    position: int,
    end: int,
    *,
    check_crcs: bool = False,
    pass_over_damage: bool = False,
    chunk_bytes: int = SCAN_BYTES,
) -> Iterator[WalkedBatch | DamagedBatch]:
    """Yields every batch from `position` to `end` of a file, which is read in chunks of `chunk_bytes` (a batch that is
    larger, and whose CRC is checked, in pieces of `SCAN_BYTES`). A batch is damaged where no header stands, where `end`
    or the file cuts it off, and, with `check_crcs`, where its CRC is wrong.

    With `pass_over_damage` a damaged batch is yielded, too, and the walk goes on where its header says that it ends;
    without a header it is the last.

    Raises:
        CorruptBatchError: at the first damaged batch that is not passed over, with its position in the file.
        OSError: the file cannot be read.
    """
    descriptor = file.number
    chunk, chunk_start = b"", position
    while position < end:
        inside = position - chunk_start
        if len(chunk) - inside < HEADER_BYTES:
            chunk, chunk_start, inside = os.pread(descriptor, min(chunk_bytes, end - position), position), position, 0
        header = None
        try:
            header = read_header(chunk, inside)
            size = header.length + LENGTH_OVERHEAD_BYTES
            if size > end - position:
                raise CorruptBatchError(position, f"truncated: {end - position} of {size} bytes")
            if check_crcs:
                if len(chunk) - inside < size:
                    chunk = os.pread(descriptor, min(chunk_bytes, end - position), position)
                    chunk_start, inside = position, 0
                # A copy is cheaper than a view for what is small, and a large batch makes up for the view.
                source = chunk if size < COPIED_BYTES else memoryview(chunk)
                if len(chunk) - inside < size or crc32c(source[inside + CHECKED_FROM : inside + size]) != header.crc:
                    _verify(descriptor, position, header, source[inside : inside + size])
        except CorruptBatchError as error:
            if not pass_over_damage:
                raise CorruptBatchError(position, error.reason) from None
            yield DamagedBatch(position, header, error.reason)
            if header is None:
                return
        else:
            yield WalkedBatch(position, header)
        position += size


def only_begins(descriptor: int, position: int, end: int) -> bool:
    """Tells whether from `position` to `end` of a file stands the beginning of one batch and no more. Raises
    `OSError`."""
    begin = os.pread(descriptor, min(HEADER_BYTES, end - position), position)
    if len(begin) < LENGTH_OVERHEAD_BYTES:
        return True
    if len(begin) > MAGIC_POSITION and begin[MAGIC_POSITION] != MAGIC:
        return False
    return end - position < int.from_bytes(begin[8:LENGTH_OVERHEAD_BYTES], signed=True) + LENGTH_OVERHEAD_BYTES


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
