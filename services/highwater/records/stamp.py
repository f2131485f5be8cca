"""Changing a batch's header in place of re-encoding it."""

from __future__ import annotations

import struct

from highwater.records.errors import CorruptBatchError
from highwater.records.header import (
    CHECKED_FROM,
    CRC_POSITION,
    LOG_APPEND_TIME_BIT,
    STAMP_BYTES,
    BatchHeader,
    crc32c,
    read_header,
)

__all__ = ["STAMP_BYTES", "stamp", "with_log_append_time", "with_producer"]

_STAMP = struct.Struct(">qii")
_CRC = struct.Struct(">I")
# Producer id, producer epoch, base sequence.
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35


def stamp(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of the batch under its assigned base offset and leader epoch.

    They belong in front of `memoryview(buffer)[position + 16 : position + header.size_bytes]`; none of them is under
    the CRC, so a broker neither re-encodes nor copies a batch.
    """
    return _STAMP.pack(base_offset, header.length, leader_epoch)


def with_producer(batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """A copy of one whole batch under another producer id, epoch and base sequence, with its CRC recomputed.

    Raises:
        CorruptBatchError: `batch` is not one whole batch.
    """
    changed = _copy(batch)
    _PRODUCER.pack_into(changed, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    return _sealed(changed)


def with_log_append_time(batch: bytes, timestamp_ms: int) -> bytes:
    """A copy of one whole batch whose records were all appended at `timestamp_ms`, with its CRC recomputed.

    Raises:
        CorruptBatchError: `batch` is not one whole batch.
    """
    changed = _copy(batch)
    attributes = read_header(changed).attributes | LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(changed, CHECKED_FROM, attributes)
    _MAX_TIMESTAMP.pack_into(changed, _MAX_TIMESTAMP_POSITION, timestamp_ms)
    return _sealed(changed)


def _copy(batch: bytes) -> bytearray:
    header = read_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptBatchError(0, f"{len(batch)} bytes were given for a batch of {header.size_bytes}")
    return bytearray(batch)


def _sealed(batch: bytearray) -> bytes:
    with memoryview(batch) as view, view[CHECKED_FROM:] as checked:
        crc = crc32c(checked)
    _CRC.pack_into(batch, CRC_POSITION, crc)
    return bytes(batch)
