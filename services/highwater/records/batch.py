"""Whole batches: encoding records or columns into one, and decoding either kind into either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from highwater.records import columns as columnar
from highwater.records.codec import Codec
from highwater.records.codecs import compress, decompress
from highwater.records.errors import CorruptBatchError, CorruptPayloadError
from highwater.records.header import (
    COLUMNAR_BIT,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADERS_BIT,
    LOG_APPEND_TIME_BIT,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    pack_batch,
    read_header,
    verify,
)
from highwater.records.limits import DEFAULT_MAX_PAYLOAD_BYTES, most_records
from highwater.records.record import Record, RecordHeader
from highwater.records.rows import decode_row_payload, encode_row_payload


class BatchOptions(TypedDict, total=False):
    """The options that every `encode_...` takes beside the records. Absent, each is Kafka's "none".

    `level` is the codec's own compression level. Base offset and leader epoch are the broker's to assign (`stamp`).
    """

    codec: Codec
    level: int | None
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp_type: TimestampType
    transactional: bool
    control: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was decoded whole: CRC checked, payload expanded and validated."""

    header: BatchHeader
    _rows: list[Record] | None
    _columns: pa.RecordBatch | None

    def to_arrow(self) -> pa.RecordBatch:
        """Columns offset: int64, timestamp: int64 (ms), key: binary, value: binary, and headers where there are any.

        A columnar batch is not copied.
        """
        if self._columns is not None:
            return self._columns
        return columnar.columns_from_records(self._rows or [])

    def records(self) -> list[Record]:
        """The records, by offset. The list is the caller's to change."""
        if self._columns is not None:
            return columnar.records_from_columns(self._columns)
        return list(self._rows or [])


def decode(
    buffer: ReadableBuffer,
    position: int = 0,
    *,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
    verify_crc: bool = True,
) -> Batch:
    """The batch at `position`, rows or columns.

    `max_payload_bytes` bounds what the payload may expand to. Leave `verify_crc` on, unless `verify` was just called.

    Raises:
        CorruptBatchError: truncated, damaged, not of this format, or expanding beyond the limit or the memory.
    """
    header = read_header(buffer, position)
    if verify_crc:
        verify(buffer, position, header)
    elif header.size_bytes > len(buffer) - position:
        raise CorruptBatchError(position, f"truncated: {len(buffer) - position} of {header.size_bytes} bytes")
    compressed = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    try:
        if header.record_count == 0 and not compressed:
            # What compaction leaves of a batch without survivors: the header alone (RULES 10.2).
            return Batch(header, [], None)
        if header.record_count > most_records(header):
            raise CorruptPayloadError(f"{header.record_count} records cannot fit into {len(compressed)} bytes")
        payload = decompress(header.codec, compressed, max_payload_bytes)
        if header.columnar:
            return Batch(header, None, columnar.decode_column_payload(payload, header))
        return Batch(header, decode_row_payload(payload, header), None)
    except CorruptPayloadError as error:
        raise CorruptBatchError(position, str(error)) from error
    except MemoryError as error:
        raise CorruptBatchError(position, "there is not enough memory to expand the payload") from error


def encode_rows(records: Sequence[Record], **options: Unpack[BatchOptions]) -> bytes:
    """A batch of Kafka's rows. Offsets follow the records' order; their own are not looked at.

    Raises:
        ValueError: no records, or a number out of range. TypeError: keys, values or headers of other types.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0][1]
    payload = encode_row_payload(records, range(len(records)), base_timestamp)
    times = (base_timestamp, max(record[1] for record in records))
    return _pack(payload, 0, len(records), times, options)


def encode_columns(data: pa.Table | pa.RecordBatch, **options: Unpack[BatchOptions]) -> bytes:
    """A columnar batch of a table with a column `value` and, optionally, `timestamp`, `key` and `headers`.

    Keys and values may be any binary or string type, timestamps int64 ms or Arrow timestamps; without them the
    timestamps are -1. Other columns are not looked at.

    Raises:
        ValueError: no rows, no `value` column, or a null timestamp. pa.ArrowException: a type that cannot be converted.
    """
    names = data.schema.names
    if "value" not in names:
        raise ValueError(f"a table to send needs a column 'value'; it has {', '.join(names) or 'none'}")
    timestamps = data.column("timestamp") if "timestamp" in names else np.full(data.num_rows, -1, dtype=np.int64)
    return encode_arrays(
        timestamps,
        data.column("key") if "key" in names else None,
        data.column("value"),
        data.column("headers") if "headers" in names else None,
        **options,
    )


def encode_arrays(
    timestamps: pa.Array | pa.ChunkedArray | npt.NDArray[np.int64],
    keys: pa.Array | pa.ChunkedArray | None,
    values: pa.Array | pa.ChunkedArray,
    headers: pa.Array | pa.ChunkedArray | None = None,
    **options: Unpack[BatchOptions],
) -> bytes:
    """A columnar batch of separate columns of equal length; see `encode_columns`. `keys` None: all are null."""
    count = len(values)
    timestamp_column = _as_type(timestamps, pa.int64())
    key_column = pa.nulls(count, pa.binary()) if keys is None else _as_type(keys, pa.binary())
    header_column = None if headers is None else _as_type(headers, columnar.HEADERS_TYPE)
    if header_column is not None and not len(header_column.flatten()):
        header_column = None
    return _encode(timestamp_column, key_column, _as_type(values, pa.binary()), header_column, options)


def encode_lists(
    timestamps: Sequence[int] | npt.NDArray[np.int64],
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[RecordHeader] | None] | None = None,
    **options: Unpack[BatchOptions],
) -> bytes:
    """A columnar batch of Python lists of equal length. `keys` None: all are null; `headers` None: there are none.

    Raises:
        ValueError: no records, or lists of different length. pa.ArrowException: an element of another type.
    """
    key_column = pa.nulls(len(values), pa.binary()) if keys is None else pa.array(keys, pa.binary())
    header_column = columnar.headers_column(headers) if headers is not None and any(headers) else None
    return _encode(pa.array(timestamps, pa.int64()), key_column, pa.array(values, pa.binary()), header_column, options)


def _as_type(column: pa.Array | pa.ChunkedArray | npt.NDArray[np.int64], target: pa.DataType) -> pa.Array:
    if isinstance(column, np.ndarray):
        return pa.array(column, target)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if column.type == target:
        return column
    if pa.types.is_timestamp(column.type):
        # A finer unit is cut to ms, as clocks are read.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(target)


def _encode(
    timestamps: pa.Array, keys: pa.Array, values: pa.Array, headers: pa.Array | None, options: BatchOptions
) -> bytes:
    count = len(values)
    if not count:
        raise ValueError("a batch needs at least one record")
    if timestamps.null_count:
        raise ValueError("a timestamp is null; fill it in, or leave the column out")
    if headers is not None and columnar.lacks_header_key(headers):
        raise ValueError("a record header has no key")
    columns = [timestamps, keys, values] if headers is None else [timestamps, keys, values, headers]
    schema = columnar.payload_schema(headers=headers is not None, offset_deltas=False)
    payload = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
    numbers = timestamps.to_numpy()
    attributes = COLUMNAR_BIT if headers is None else COLUMNAR_BIT | HEADERS_BIT
    return _pack(memoryview(payload), attributes, count, (int(numbers[0]), int(numbers.max())), options)


def _pack(
    payload: bytes | memoryview, attributes: int, count: int, times: tuple[int, int], options: BatchOptions
) -> bytes:
    codec = options.get("codec", Codec.NONE)
    attributes |= codec
    if options.get("timestamp_type", TimestampType.CREATE_TIME) is TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_BIT
    if options.get("transactional", False):
        attributes |= TRANSACTIONAL_BIT
    if options.get("control", False):
        attributes |= CONTROL_BIT
    return pack_batch(
        compress(codec, payload, options.get("level")),
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=times[0],
        max_timestamp=times[1],
        record_count=count,
        base_offset=options.get("base_offset", 0),
        leader_epoch=options.get("leader_epoch", NO_LEADER_EPOCH),
        producer_id=options.get("producer_id", NO_PRODUCER_ID),
        producer_epoch=options.get("producer_epoch", NO_PRODUCER_EPOCH),
        base_sequence=options.get("base_sequence", NO_SEQUENCE),
    )
