"""Bounds of what a batch may claim and expand to. A header is believed up to what its payload can hold. Pure."""

from __future__ import annotations

from highwater.records.codec import Codec
from highwater.records.errors import TooManyHeadersError
from highwater.records.header import HEADER_BYTES, BatchHeader

# What a payload may expand to for a reader, unless a caller says otherwise; a guard against decompression bombs.
DEFAULT_MAX_PAYLOAD_BYTES = 256 << 20
# What a broker takes from a producer: so many times max.message.bytes, and so much in any case.
EXPANSION_FACTOR = 16
LEAST_EXPANSION_BYTES = 16 << 20
# Headers of rows: an empty one takes 2 bytes of a payload, and a hundred of a reader's memory.
MAX_RECORD_HEADERS = 1_000
MAX_BATCH_HEADERS = 1 << 18

# Size, attributes, timestamp, offset, key size, value size, headers: one byte each at the least.
SMALLEST_ROW_BYTES = 7
# A row's timestamp alone.
_SMALLEST_COLUMNS_ROW_BYTES = 8
# The densest that each codec's format knows: bytes out for a byte in.
_MAX_RATIO = {
    Codec.NONE: 1,
    Codec.GZIP: 1032,
    Codec.SNAPPY: 22,
    Codec.LZ4: 255,
    Codec.ZSTD: 32768,
}


def expansion_limit(max_message_bytes: int) -> int:
    """The bytes that a produced batch's payload may expand to on a topic; never more than readers expand."""
    return min(DEFAULT_MAX_PAYLOAD_BYTES, max(LEAST_EXPANSION_BYTES, EXPANSION_FACTOR * max_message_bytes))


def most_records(header: BatchHeader) -> int:
    """The records that a payload of this size, codec and kind can hold at the most."""
    payload_bytes = header.size_bytes - HEADER_BYTES
    expanded = min(payload_bytes * _MAX_RATIO[header.codec], DEFAULT_MAX_PAYLOAD_BYTES)
    return expanded // (_SMALLEST_COLUMNS_ROW_BYTES if header.columnar else SMALLEST_ROW_BYTES)


def check_headers(of_record: int, of_batch: int) -> None:
    """Raises `TooManyHeadersError` where a record, or its batch, has more headers than they may."""
    if of_record > MAX_RECORD_HEADERS:
        raise TooManyHeadersError(f"a record has {of_record} headers, the limit is {MAX_RECORD_HEADERS}")
    if of_batch > MAX_BATCH_HEADERS:
        raise TooManyHeadersError(f"the records have {of_batch} headers, the limit of a batch is {MAX_BATCH_HEADERS}")
