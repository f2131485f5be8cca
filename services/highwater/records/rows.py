"""The row payload: Kafka's v2 records, one after the other. Numbers are zig-zag varints; -1 as a size means null.

size of what follows · attributes (1 byte, 0) · timestamp - base timestamp · offset - base offset
· key size · key · value size · value · number of headers · (key size · key utf-8 · value size · value) ...
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from highwater.records.errors import CorruptPayloadError
from highwater.records.header import BatchHeader
from highwater.records.limits import SMALLEST_ROW_BYTES, check_headers
from highwater.records.record import Record, RecordHeader
from highwater.records.varint import SMALL_VARINT_LIMIT, SMALL_VARINTS, decode_varint, encode_varint, read_varint

_NULL = encode_varint(-1)
_NO_HEADERS = encode_varint(0)
# Timestamps beyond this cannot be added to a small delta within an int64; they are some 292 million years away.
_MAX_BASE_TIMESTAMP = (1 << 63) - SMALL_VARINT_LIMIT - 1
_INT64_LIMIT = 1 << 63


def encode_row_payload(records: Iterable[Record], offset_deltas: Iterable[int], base_timestamp: int) -> bytes:
    """The payload before compression. The records' own offsets are not looked at.

    Raises:
        TypeError: a key, value or header that is not bytes, or a header's key that is not a string.
        ValueError: two timestamps differ by more than an int64.
    """
    small = SMALL_VARINTS
    limit = SMALL_VARINT_LIMIT
    parts: list[bytes] = []
    append = parts.append
    join = b"".join
    for (_, timestamp, key, value, headers), offset_delta in zip(records, offset_deltas, strict=False):
        timestamp_delta = timestamp - base_timestamp
        key_size = _NULL if key is None else small[size] if (size := len(key)) < limit else encode_varint(size)
        value_size = _NULL if value is None else small[size] if (size := len(value)) < limit else encode_varint(size)
        body = join(
            (
                b"\0",
                small[timestamp_delta] if 0 <= timestamp_delta < limit else encode_varint(timestamp_delta),
                small[offset_delta] if offset_delta < limit else encode_varint(offset_delta),
                key_size,
                key or b"",
                value_size,
                value or b"",
                _encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        append(small[size] if (size := len(body)) < limit else encode_varint(size))
        append(body)
    return join(parts)


def _encode_headers(headers: Iterable[RecordHeader]) -> bytes:
    headers = tuple(headers)
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += (encode_varint(len(name)), name)
        parts += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def decode_row_payload(payload: bytes, header: BatchHeader) -> list[Record]:
    """All records of a payload that has been decompressed.

    Raises:
        CorruptPayloadError: any record is damaged, or their number, sizes or offsets disagree with the header.
    """
    _check_claims(payload, header)
    try:
        return _decode_records(payload, header)
    except IndexError as error:
        raise CorruptPayloadError("rows: the payload ends within a record") from error
    except UnicodeDecodeError as error:
        raise CorruptPayloadError(f"rows: a header's key is not UTF-8: {error.reason}") from error


class RowScan(NamedTuple):
    """Rows whose keys, values and headers were passed over."""

    offset_deltas: array[int]
    timestamps: array[int]
    keyless: int  # records without a key


def scan_row_payload(payload: bytes, header: BatchHeader) -> RowScan:
    """Checks all that `decode_row_payload` checks, and takes 12 bytes of memory a record.

    Raises:
        CorruptPayloadError: as `decode_row_payload`.
    """
    _check_claims(payload, header)
    try:
        return _scan_records(payload, header)
    except IndexError as error:
        raise CorruptPayloadError("rows: the payload ends within a record") from error
    except UnicodeDecodeError as error:
        raise CorruptPayloadError(f"rows: a header's key is not UTF-8: {error.reason}") from error


def _check_claims(payload: bytes, header: BatchHeader) -> None:
    if header.record_count * SMALLEST_ROW_BYTES > len(payload):
        raise CorruptPayloadError(f"rows: {header.record_count} records cannot fit into {len(payload)} bytes")
    if abs(header.base_timestamp) > _MAX_BASE_TIMESTAMP:
        raise CorruptPayloadError(f"rows: impossible base timestamp {header.base_timestamp}")


def _decode_records(payload: bytes, header: BatchHeader) -> list[Record]:
    # The loop of a consumer of rows, which is pure Python: varints of one and two bytes, nearly all there are, are read
    # in line, and zig-zag is undone only where need be: an odd `raw` is a negative number.
    records: list[Record] = []
    append = records.append
    new = tuple.__new__
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.log_append_time else None
    previous_delta = -1
    position = 0
    all_headers = 0
    for _ in range(header.record_count):
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        end = position + ((raw >> 1) ^ -(raw & 1))
        position += 1  # the attributes, of which none are defined
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
            if not -_INT64_LIMIT <= base_timestamp + ((raw >> 1) ^ -(raw & 1)) < _INT64_LIMIT:
                raise CorruptPayloadError(f"rows: timestamp delta {(raw >> 1) ^ -(raw & 1)} leaves 64 bits")
        timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1)) if append_time is None else append_time
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        offset_delta = raw >> 1
        if raw & 1 or offset_delta <= previous_delta:
            raise CorruptPayloadError(f"rows: offset delta {(raw >> 1) ^ -(raw & 1)} after {previous_delta}")
        previous_delta = offset_delta
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        if not raw & 1:
            start = position
            position += raw >> 1
            key = payload[start:position]
        elif raw == 1:
            key = None
        else:
            raise CorruptPayloadError(f"rows: a key of {(raw >> 1) ^ -1} bytes")
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        if not raw & 1:
            start = position
            position += raw >> 1
            value = payload[start:position]
        elif raw == 1:
            value = None
        else:
            raise CorruptPayloadError(f"rows: a value of {(raw >> 1) ^ -1} bytes")
        if payload[position]:
            headers, position = _decode_headers(payload, position, all_headers)
            all_headers += len(headers)
        else:
            headers = ()
            position += 1
        if position != end:
            raise CorruptPayloadError(f"rows: record {len(records)} ends at byte {position}, its size says {end}")
        append(new(Record, (base_offset + offset_delta, timestamp, key, value, headers)))
    if position != len(payload):
        raise CorruptPayloadError(f"rows: {len(payload) - position} bytes after the last record")
    if previous_delta > header.last_offset_delta:
        raise CorruptPayloadError(f"rows: offset delta {previous_delta} above the last, {header.last_offset_delta}")
    return records


def _scan_records(payload: bytes, header: BatchHeader) -> RowScan:
    # `_decode_records` without what it makes: a broker's check of each batch that is produced.
    deltas, timestamps = array("i"), array("q")
    add_delta, add_timestamp = deltas.append, timestamps.append
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.log_append_time else None
    keyless = all_headers = position = 0
    previous_delta = -1
    last_delta = header.last_offset_delta
    for _ in range(header.record_count):
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        end = position + ((raw >> 1) ^ -(raw & 1))
        position += 1
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
            if not -_INT64_LIMIT <= base_timestamp + ((raw >> 1) ^ -(raw & 1)) < _INT64_LIMIT:
                raise CorruptPayloadError(f"rows: timestamp delta {(raw >> 1) ^ -(raw & 1)} leaves 64 bits")
        add_timestamp(base_timestamp + ((raw >> 1) ^ -(raw & 1)) if append_time is None else append_time)
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        offset_delta = raw >> 1
        if raw & 1 or offset_delta <= previous_delta:
            raise CorruptPayloadError(f"rows: offset delta {(raw >> 1) ^ -(raw & 1)} after {previous_delta}")
        if offset_delta > last_delta:
            raise CorruptPayloadError(f"rows: offset delta {offset_delta} above the last, {last_delta}")
        previous_delta = offset_delta
        add_delta(offset_delta)
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        if not raw & 1:
            position += raw >> 1
        elif raw == 1:
            keyless += 1
        else:
            raise CorruptPayloadError(f"rows: a key of {(raw >> 1) ^ -1} bytes")
        if (raw := payload[position]) < 0x80:
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            raw += (high << 7) - 0x80
            position += 2
        else:
            raw, position = read_varint(payload, position)
        if not raw & 1:
            position += raw >> 1
        elif raw != 1:
            raise CorruptPayloadError(f"rows: a value of {(raw >> 1) ^ -1} bytes")
        if payload[position]:
            # Made, too, and let go of: their keys are text, which only reading them tells.
            headers, position = _decode_headers(payload, position, all_headers)
            all_headers += len(headers)
        else:
            position += 1
        if position != end:
            raise CorruptPayloadError(f"rows: record {len(deltas) - 1} ends at byte {position}, its size says {end}")
    if position != len(payload):
        raise CorruptPayloadError(f"rows: {len(payload) - position} bytes after the last record")
    return RowScan(deltas, timestamps, keyless)


def _decode_headers(payload: bytes, position: int, before: int) -> tuple[tuple[RecordHeader, ...], int]:
    """The headers of a record, and the position after them; `before`: how many the records before it have."""
    count, position = decode_varint(payload, position)
    if not 0 <= count <= len(payload) - position:
        raise CorruptPayloadError(f"rows: {count} headers")
    check_headers(count, before + count)
    headers: list[RecordHeader] = []
    for _ in range(count):
        size, position = decode_varint(payload, position)
        if not 0 <= size <= len(payload) - position:
            raise CorruptPayloadError(f"rows: a header's key of {size} bytes")
        key = payload[position : position + size].decode()
        position += size
        size, position = decode_varint(payload, position)
        if not -1 <= size <= len(payload) - position:
            raise CorruptPayloadError(f"rows: a header's value of {size} bytes")
        if size == -1:
            headers.append((key, None))
        else:
            headers.append((key, payload[position : position + size]))
            position += size
    return tuple(headers), position
