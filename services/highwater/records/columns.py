"""The columnar payload: one Arrow IPC record batch message, without its schema message, of a fixed schema.

    timestamp     int64, ms, no nulls
    key           binary, nullable
    value         binary, nullable (null: tombstone)
    headers       list<struct<key: utf8, value: binary>>      attribute bit 8; an empty or null list is no headers
    offset_delta  int32, no nulls, strictly increasing        attribute bit 9; without it a record's delta is its index

The schema follows from the attributes, so the message alone is enough to read it (RULES 10.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from highwater.records.errors import CorruptPayloadError
from highwater.records.header import BatchHeader
from highwater.records.ipc_message import check_record_batch_message
from highwater.records.limits import check_headers
from highwater.records.record import Record, RecordHeader

HEADERS_TYPE = pa.list_(
    pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary(), nullable=True)])
)
_TIMESTAMP = pa.field("timestamp", pa.int64(), nullable=False)
_KEY = pa.field("key", pa.binary())
_VALUE = pa.field("value", pa.binary())
_HEADERS = pa.field("headers", HEADERS_TYPE)
_OFFSET_DELTA = pa.field("offset_delta", pa.int32(), nullable=False)
_OFFSET = pa.field("offset", pa.int64(), nullable=False)


def payload_schema(*, headers: bool, offset_deltas: bool) -> pa.Schema:
    """The schema of the message under these two attribute bits."""
    return _PAYLOAD_SCHEMAS[headers, offset_deltas]


def reader_schema(*, headers: bool) -> pa.Schema:
    """The schema readers get: offset, timestamp, key, value and, where the batch has them, headers."""
    return _READER_SCHEMAS[headers]


_PAYLOAD_SCHEMAS = {
    (headers, offset_deltas): pa.schema(
        [_TIMESTAMP, _KEY, _VALUE, *([_HEADERS] if headers else []), *([_OFFSET_DELTA] if offset_deltas else [])]
    )
    for headers in (False, True)
    for offset_deltas in (False, True)
}
_READER_SCHEMAS = {
    headers: pa.schema([_OFFSET, _TIMESTAMP, _KEY, _VALUE, *([_HEADERS] if headers else [])])
    for headers in (False, True)
}


def decode_column_payload(payload: bytes, header: BatchHeader) -> pa.RecordBatch:
    """The payload's columns with their offsets, in the reader's schema. The columns share the payload's memory.

    Raises:
        CorruptPayloadError: not such a message, or its rows or offsets disagree with the header.
    """
    check_record_batch_message(payload, header.record_count)
    schema = payload_schema(headers=header.has_headers, offset_deltas=header.has_offset_deltas)
    try:
        columns = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
        columns.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptPayloadError(f"columns: {error}") from error
    timestamps = columns.column(0)
    if timestamps.null_count:
        raise CorruptPayloadError("columns: a timestamp is null")
    if header.log_append_time:
        timestamps = pa.array(np.full(header.record_count, header.max_timestamp, dtype=np.int64))
    arrays = [_offsets(columns, header), timestamps, columns.column(1), columns.column(2)]
    if header.has_headers:
        headers = columns.column(3)
        if lacks_header_key(headers):
            raise CorruptPayloadError("columns: a record header without a key")
        lengths = headers.value_lengths().fill_null(0).to_numpy()
        check_headers(int(lengths.max(initial=0)), int(lengths.sum(dtype=np.int64)))
        arrays.append(headers)
    return pa.RecordBatch.from_arrays(arrays, schema=reader_schema(headers=header.has_headers))


def _offsets(columns: pa.RecordBatch, header: BatchHeader) -> pa.Array:
    count = header.record_count
    if not header.has_offset_deltas:
        if count != header.last_offset_delta + 1:
            raise CorruptPayloadError(f"columns: {count} rows without offset deltas up to {header.last_offset_delta}")
        return pa.array(np.arange(header.base_offset, header.base_offset + count, dtype=np.int64))
    column = columns.column(columns.num_columns - 1)
    if column.null_count:
        raise CorruptPayloadError("columns: an offset delta is null")
    deltas: npt.NDArray[np.int32] = column.to_numpy()
    if count and (deltas[0] < 0 or deltas[-1] > header.last_offset_delta or not (deltas[1:] > deltas[:-1]).all()):
        raise CorruptPayloadError(f"columns: offset deltas do not rise from 0 to {header.last_offset_delta}")
    return pa.array(deltas.astype(np.int64) + header.base_offset)


def columns_from_records(records: Sequence[Record]) -> pa.RecordBatch:
    """Row records as columns in the reader's schema; the headers column is there only if a record has headers."""
    offsets, timestamps, keys, values, headers = zip(*records, strict=True) if records else ((),) * 5
    arrays = [pa.array(offsets, pa.int64()), pa.array(timestamps, pa.int64())]
    arrays += [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    with_headers = any(headers)
    if with_headers:
        arrays.append(headers_column(headers))
    return pa.RecordBatch.from_arrays(arrays, schema=reader_schema(headers=with_headers))


def records_from_columns(columns: pa.RecordBatch) -> list[Record]:
    """One `Record` a row of columns in the reader's schema."""
    count = columns.num_rows
    offsets = columns.column(0).to_numpy().tolist()
    timestamps = columns.column(1).to_numpy().tolist()
    key_column, value_column = columns.column(2), columns.column(3)
    keys: Iterable[bytes | None] = repeat(None, count) if key_column.null_count == count else key_column.to_pylist()
    headers: Iterable[tuple[RecordHeader, ...]] = (
        _header_tuples(columns.column(4)) if columns.num_columns > 4 else repeat((), count)
    )
    rows = zip(offsets, timestamps, keys, value_column.to_pylist(), headers, strict=True)
    # Record._make would run Python code for each record; tuple.__new__ does the same in C.
    return list(map(tuple.__new__, repeat(Record), rows))


def headers_column(headers: Iterable[Sequence[RecordHeader] | None]) -> pa.Array:
    """The headers column of one sequence of (key, value) pairs a record; None is an empty one.

    Raises:
        pa.ArrowException: a key that is not a string, or a value that is not bytes.
    """
    lists = [pairs or () for pairs in headers]
    ends = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(pairs) for pairs in lists], out=ends[1:])
    pairs = list(chain.from_iterable(lists))
    struct = pa.StructArray.from_arrays(
        [
            pa.array([key for key, _ in pairs], pa.utf8()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(ends), struct, type=HEADERS_TYPE)


def lacks_header_key(column: pa.Array) -> bool:
    """Tells whether a header in the headers column is null or has a null key; the format knows neither."""
    pairs = column.flatten()
    return bool(pairs.null_count or pairs.field(0).null_count)


def _header_tuples(column: pa.Array) -> list[tuple[RecordHeader, ...]]:
    pairs = column.flatten()
    flat: list[RecordHeader] = list(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True))
    # A null list is an empty one, and may not point anywhere: lengths, not Arrow's offsets.
    lengths = column.value_lengths().fill_null(0).to_numpy()
    ends = np.cumsum(lengths).tolist()
    return [tuple(flat[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
