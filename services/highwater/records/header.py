"""The batch header: Kafka's record batch v2, 61 bytes, big-endian.

    position  bytes  field
    0         8      base offset              the broker assigns it; not under the CRC
    8         4      length                   bytes after this field (batch size - 12); not under the CRC
    12        4      partition leader epoch   the broker assigns it; not under the CRC
    16        1      magic                    2; not under the CRC
    17        4      CRC-32C                  of everything from position 21 to the end of the batch
    21        2      attributes               see below
    23        4      last offset delta        last offset - base offset, kept when compaction drops records
    27        8      base timestamp           ms; of the first record (or the delete horizon, attribute bit 6)
    35        8      max timestamp            ms
    43        8      producer id              -1: not idempotent
    51        2      producer epoch           -1
    53        4      base sequence            -1; of the first record
    57        4      record count
    61        ...    payload

Attributes, from the lowest bit: 0-2 codec · 3 timestamps are log append time · 4 transactional · 5 control ·
6 base timestamp is the delete horizon · 7 columnar payload · 8 columns: has headers · 9 columns: has offset deltas ·
10-15 must be zero. Bits 0-6 are Kafka's; 7-9 are ours, 8 and 9 only beside 7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from mmap import mmap
from typing import TypeAlias

import google_crc32c

from highwater.records.codec import Codec
from highwater.records.errors import CorruptBatchError

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview | mmap

_LAYOUT = struct.Struct(">qiiBIhiqqqhii")
# The part in front of the magic byte: base offset, length, partition leader epoch.
_STAMP = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">i")
# Length, magic and attributes.
_KIND = struct.Struct(">8xi4xb4xh")
# From the attributes to the record count: what the CRC covers of the header.
_CHECKED = struct.Struct(">hiqqqhii")

HEADER_BYTES = _LAYOUT.size
STAMP_BYTES = _STAMP.size
# Base offset and length stand in front of what `length` counts.
LENGTH_OVERHEAD_BYTES = 12
LENGTH_POSITION = 8
CRC_POSITION = 17
CHECKED_FROM = 21
MAGIC = 2
MAX_BATCH_BYTES = (1 << 31) - 1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6
COLUMNAR_BIT = 1 << 7
HEADERS_BIT = 1 << 8
OFFSET_DELTAS_BIT = 1 << 9
_KNOWN_BITS = (1 << 10) - 1

_MAX_SEQUENCE = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


class TimestampType(IntEnum):
    """The clock of a batch's timestamps: the producer's, or the leader's at append (all are the max timestamp)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """A decoded header; the module's docstring describes each field."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The base offset of the batch that follows (RULES 10.2: from the header, never from the records)."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def columnar(self) -> bool:
        return bool(self.attributes & COLUMNAR_BIT)

    @property
    def has_headers(self) -> bool:
        """Columnar batches: a headers column is there. Row batches say it record by record; here it is False."""
        return bool(self.attributes & HEADERS_BIT)

    @property
    def has_offset_deltas(self) -> bool:
        """Columnar batches: an offset_delta column is there (RULES 10.2). Rows always carry their deltas; False."""
        return bool(self.attributes & OFFSET_DELTAS_BIT)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.log_append_time else TimestampType.CREATE_TIME

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the cleaner may drop this batch's tombstones, once it has passed over them a first
        time."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """The last record's sequence: it wraps from 2^31 - 1 to 0 as Kafka's does; -1 where there is none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """The header at `position`. The payload need not be there, and the CRC is not checked.

    Raises:
        CorruptBatchError: fewer than 61 bytes, or a field that no batch can have.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptBatchError(position, f"truncated: {len(buffer) - position} bytes, a header has {HEADER_BYTES}")
    header = BatchHeader(*_LAYOUT.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptBatchError(position, f"magic {header.magic}, only {MAGIC} is supported")
    if not HEADER_BYTES - LENGTH_OVERHEAD_BYTES <= header.length <= MAX_BATCH_BYTES - LENGTH_OVERHEAD_BYTES:
        raise CorruptBatchError(position, f"impossible length {header.length}")
    _check_fields(header, position)
    return header


def _check_fields(header: BatchHeader, position: int) -> None:
    attributes = header.attributes
    if header.base_offset < 0 or header.base_offset > _MAX_OFFSET - (1 << 31):
        raise CorruptBatchError(position, f"impossible base offset {header.base_offset}")
    if header.partition_leader_epoch < NO_LEADER_EPOCH:
        raise CorruptBatchError(position, f"impossible leader epoch {header.partition_leader_epoch}")
    if attributes & ~_KNOWN_BITS or attributes & CODEC_MASK > Codec.ZSTD:
        raise CorruptBatchError(position, f"unknown attributes {attributes & 0xFFFF:#06x}")
    if attributes & (HEADERS_BIT | OFFSET_DELTAS_BIT) and not attributes & COLUMNAR_BIT:
        raise CorruptBatchError(position, f"attributes {attributes:#06x} describe columns, the payload is rows")
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatchError(
            position, f"{header.record_count} records do not fit into last offset delta {header.last_offset_delta}"
        )


def iter_batches(
    buffer: ReadableBuffer, position: int = 0, *, partial_ok: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch from `position` on. CRCs are not checked.

    Raises:
        CorruptBatchError: on a bad header, and on a batch that the buffer's end cuts off. With `partial_ok` the
            iteration stops in front of a batch that is cut off.
    """
    end = len(buffer)
    while position < end:
        if partial_ok and end - position < HEADER_BYTES:
            return
        header = read_header(buffer, position)
        if header.size_bytes > end - position:
            if partial_ok:
                return
            raise _truncated(position, header, end)
        yield position, header
        position += header.size_bytes


def first_columnar(buffer: ReadableBuffer) -> int | None:
    """The position of the first batch of columns; None: there is none in front of a batch that the buffer's end cuts
    off. Nothing else of the headers is looked at: there may be thousands.

    Raises:
        CorruptBatchError: on a magic or a length that no batch has.
    """
    position, last = 0, len(buffer) - HEADER_BYTES
    while position <= last:
        length, magic, attributes = _KIND.unpack_from(buffer, position)
        if magic != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
            read_header(buffer, position)  # says what is wrong with it
        following = position + length + LENGTH_OVERHEAD_BYTES
        if attributes & COLUMNAR_BIT and following <= len(buffer):
            return position
        position = following
    return None


def split_batches(batches: bytes, most: int) -> Iterator[bytes]:
    """Splits them into pieces of at most `most` batches each, by the lengths alone: all bytes, in their order. Where a
    length makes no sense the rest is one piece. Nothing is one empty piece."""
    start = position = count = 0
    end = len(batches)
    while end - start > most * HEADER_BYTES and end - position >= HEADER_BYTES:
        size = _LENGTH.unpack_from(batches, position + LENGTH_POSITION)[0] + LENGTH_OVERHEAD_BYTES
        if size < HEADER_BYTES:
            break
        position += size
        count += 1
        if count == most and position < end:
            yield batches[start:position]
            start, count = position, 0
    yield batches[start:] if start else batches


def verify(buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
    """Checks that the whole batch is there and that its CRC is right.

    Raises:
        CorruptBatchError: truncated, or the CRC differs.
    """
    end = position + header.size_bytes
    if end > len(buffer):
        raise _truncated(position, header, len(buffer))
    with memoryview(buffer) as view, view[position + CHECKED_FROM : end] as checked:
        crc = crc32c(checked)
    if crc != header.crc:
        raise CorruptBatchError(position, f"CRC-32C is {crc:#010x}, the header says {header.crc:#010x}")


def _truncated(position: int, header: BatchHeader, end: int) -> CorruptBatchError:
    return CorruptBatchError(position, f"truncated: {end - position} of {header.size_bytes} bytes")


def crc32c(data: ReadableBuffer, initial: int = 0) -> int:
    """CRC-32C of `data`, continued from `initial`."""
    # google_crc32c takes neither a memoryview nor a bytearray. A copy of a batch costs less than the CRC itself, and no
    # more than an array over the same memory would, whose library a broker would import for this alone.
    return int(google_crc32c.extend(initial, data if isinstance(data, bytes) else bytes(data)))


def pack_batch(  # every field of the header, by its name
    payload: bytes | memoryview,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """A whole batch around a payload that is already compressed.

    Raises:
        ValueError: larger than 2 GiB - 1, or a field out of the range of its type.
    """
    length = HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload)
    if length > MAX_BATCH_BYTES - LENGTH_OVERHEAD_BYTES:
        raise ValueError(f"a batch of {length + LENGTH_OVERHEAD_BYTES} bytes exceeds the format's 2 GiB; send less")
    try:
        checked = _CHECKED.pack(
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        front = _STAMP.pack(base_offset, length, leader_epoch)
    except struct.error as error:
        raise ValueError(f"a header field is out of range: {error}") from error
    crc = crc32c(payload, crc32c(checked))
    return b"".join((front, bytes((MAGIC,)), _CRC.pack(crc), checked, payload))
