"""Encoding of what was accumulated: rows for a handful of records, columns above. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from highwater.client.exceptions import InvalidRequestError
from highwater.records import Codec, Record, RecordHeader, decode, encode_columns, encode_lists, encode_rows

# Below this a row batch is smaller and faster to make than a columnar one, whose fixed part is some 400 bytes.
COLUMNS_FROM_RECORDS = 16

CODECS = {
    None: Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def codec_named(name: str | None) -> Codec:
    """Raises `InvalidRequestError` for a name that is none of Kafka's."""
    try:
        return CODECS[name]
    except KeyError:
        names = ", ".join(known for known in CODECS if known is not None)
        raise InvalidRequestError(f"compression is {name!r}; it can be {names}") from None


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded batch, without producer fields."""

    payload: bytes
    records: int


@dataclass(frozen=True, slots=True)
class BatchFormat:
    """The format of a topic's batches. Above `max_bytes` a batch of several records is cut in two."""

    codec: Codec
    rows_only: bool  # the topic's payload.format is rows (RULES 10.1)
    max_bytes: int


def encode_accumulated(
    batch_format: BatchFormat,
    timestamps: list[int],
    keys: list[bytes | None],
    values: list[bytes | None],
    headers: list[tuple[RecordHeader, ...]] | None,
) -> list[Encoded]:
    """The batches of lists of equal length, in order: one, unless it came out larger than `max_bytes`."""

    def encode(start: int, end: int) -> bytes:
        if batch_format.rows_only or end - start < COLUMNS_FROM_RECORDS:
            rows = [
                Record(0, timestamps[index], keys[index], values[index], headers[index] if headers else ())
                for index in range(start, end)
            ]
            return encode_rows(rows, codec=batch_format.codec)
        cut = slice(start, end)
        return encode_lists(
            timestamps[cut],
            keys[cut],
            values[cut],
            headers[cut] if headers else None,
            codec=batch_format.codec,
        )

    return _within(batch_format.max_bytes, encode, 0, len(values))


def encode_table(batch_format: BatchFormat, rows: pa.RecordBatch) -> list[Encoded]:
    """The batches of columns timestamp, key, value[, headers]; see `encode_accumulated`."""

    def encode(start: int, end: int) -> bytes:
        cut = rows.slice(start, end - start)
        if batch_format.rows_only:
            return encode_rows(_as_records(cut), codec=batch_format.codec)
        return encode_columns(cut, codec=batch_format.codec)

    return _within(batch_format.max_bytes, encode, 0, rows.num_rows)


def halve(batch_format: BatchFormat, payload: bytes) -> list[Encoded]:
    """The two halves of an encoded batch that a broker found too large."""
    batch = decode(payload)
    middle = batch.header.record_count // 2
    if batch.header.columnar:
        rows = batch.to_arrow()
        parts = (rows.slice(0, middle), rows.slice(middle))
        return [Encoded(encode_columns(part, codec=batch_format.codec), part.num_rows) for part in parts]
    records = batch.records()
    cuts = (records[:middle], records[middle:])
    return [Encoded(encode_rows(cut, codec=batch_format.codec), len(cut)) for cut in cuts]


def _within(max_bytes: int, encode: Callable[[int, int], bytes], start: int, end: int) -> list[Encoded]:
    payload = encode(start, end)
    if len(payload) <= max_bytes or end - start == 1:
        return [Encoded(payload, end - start)]
    middle = (start + end) // 2
    return _within(max_bytes, encode, start, middle) + _within(max_bytes, encode, middle, end)


def _as_records(rows: pa.RecordBatch) -> list[Record]:
    count = rows.num_rows
    names = rows.schema.names
    timestamps = rows.column("timestamp").to_pylist()
    keys = rows.column("key").to_pylist() if "key" in names else [None] * count
    values = rows.column("value").to_pylist()
    if "headers" not in names:
        return [Record(0, *fields) for fields in zip(timestamps, keys, values, strict=True)]
    headers = [
        tuple((pair["key"], pair["value"]) for pair in pairs or ()) for pairs in rows.column("headers").to_pylist()
    ]
    return [Record(0, *fields) for fields in zip(timestamps, keys, values, headers, strict=True)]
