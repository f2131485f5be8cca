"""The frame of an Arrow IPC record batch message, checked before Arrow reads it.

    0   4  continuation    ff ff ff ff
    4   4  metadata size   int32, little-endian, padding included
    8   .  metadata        flatbuffer `Message`: version, header type, header (`RecordBatch`), body length
    .   .  body            the columns' buffers, 8-byte aligned

Arrow's own reader takes more than the batch format allows: bytes after the message, and buffers that are compressed
one by one, which expand to whatever they declare. The format compresses the payload as a whole, so such a message is
refused.

The tables are those of Arrow's format/Message.fbs. A flatbuffer table starts with the int32 distance back to its
vtable: uint16 size of the vtable, uint16 size of the table, then each field's uint16 offset in the table, 0 for none.
"""

from __future__ import annotations

import struct

from highwater.records.errors import CorruptPayloadError

_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_UINT32 = struct.Struct("<I")
_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_INT64 = struct.Struct("<q")

# Field numbers in the tables, and the union's tag for a record batch.
_MESSAGE_HEADER_TYPE = 1
_MESSAGE_HEADER = 2
_MESSAGE_BODY_LENGTH = 3
_RECORD_BATCH_LENGTH = 0
_RECORD_BATCH_COMPRESSION = 3
_RECORD_BATCH_TAG = 3


def check_record_batch_message(message: bytes, rows: int) -> None:
    """Checks that `message` is exactly one record batch message of `rows` rows whose buffers are not compressed.

    Raises:
        CorruptPayloadError: it is not.
    """
    if len(message) < _PREFIX.size:
        raise CorruptPayloadError(f"columns: {len(message)} bytes are no Arrow message")
    continuation, metadata_size = _PREFIX.unpack_from(message)
    if continuation != _CONTINUATION or not 0 < metadata_size <= len(message) - _PREFIX.size:
        raise CorruptPayloadError("columns: not an Arrow message")
    metadata = message[_PREFIX.size : _PREFIX.size + metadata_size]
    try:
        header_type, body_length, length, compressed = _read_metadata(metadata)
    except struct.error as error:
        raise CorruptPayloadError("columns: the Arrow metadata is damaged") from error
    if header_type != _RECORD_BATCH_TAG:
        raise CorruptPayloadError(f"columns: an Arrow message of type {header_type}, not a record batch")
    if body_length != len(message) - _PREFIX.size - metadata_size:
        raise CorruptPayloadError(
            f"columns: an Arrow body of {body_length} bytes, {len(message) - _PREFIX.size - metadata_size} are there"
        )
    if compressed:
        raise CorruptPayloadError("columns: Arrow's buffer compression is not part of the format")
    if length != rows:
        raise CorruptPayloadError(f"columns: {length} rows, the header says {rows}")


def _read_metadata(metadata: bytes) -> tuple[int, int, int, bool]:
    """Header type, body length, rows, whether there is buffer compression. Raises struct.error outside the bytes."""
    message = _UINT32.unpack_from(metadata)[0]
    at = _field(metadata, message, _MESSAGE_HEADER_TYPE)
    header_type = metadata[at] if at and at < len(metadata) else 0
    at = _field(metadata, message, _MESSAGE_BODY_LENGTH)
    body_length = _INT64.unpack_from(metadata, at)[0] if at else 0
    at = _field(metadata, message, _MESSAGE_HEADER)
    if not at or header_type != _RECORD_BATCH_TAG:
        return 0 if not at else header_type, body_length, 0, False
    batch = at + _UINT32.unpack_from(metadata, at)[0]
    at = _field(metadata, batch, _RECORD_BATCH_LENGTH)
    length = _INT64.unpack_from(metadata, at)[0] if at else 0
    return header_type, body_length, length, bool(_field(metadata, batch, _RECORD_BATCH_COMPRESSION))


def _field(metadata: bytes, table: int, number: int) -> int:
    """The position at which a table's field stands, 0 where it is absent."""
    vtable = table - _INT32.unpack_from(metadata, table)[0]
    if vtable < 0:
        # struct would count a negative position from the end
        raise struct.error("a vtable in front of the buffer")
    entry = 4 + 2 * number
    if entry >= _UINT16.unpack_from(metadata, vtable)[0]:
        return 0
    offset: int = _UINT16.unpack_from(metadata, vtable + entry)[0]
    return table + offset if offset else 0
