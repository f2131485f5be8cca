"""A scan of a batch's records, which are not made: their times, offsets and keys that are missing.

An append checks a payload by it, and a look-up by time finds its record. Rows are walked over, columns are looked at in
place: neither loads Arrow but for columns with headers, for those that compaction has been at, and for those of another
writer than Arrow's own. The values of columns are last, and most of a payload: an lz4 frame is expanded up to them, and
of the rest only the blocks' sizes are looked at. To expand them too would cost `produce_table` a seventh.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from highwater.records.codec import Codec
from highwater.records.codecs import Lz4Front, Scratch, decompress, plain_lz4_bytes
from highwater.records.column_frame import ColumnFrame, read_column_frame
from highwater.records.errors import CorruptBatchError, CorruptPayloadError
from highwater.records.header import HEADER_BYTES, BatchHeader, ReadableBuffer
from highwater.records.limits import DEFAULT_MAX_PAYLOAD_BYTES, most_records
from highwater.records.rows import RowScan, scan_row_payload

_scratch = Scratch()


class PayloadScan(NamedTuple):
    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]  # ms
    keyless: int  # records without a key


def scan_payload(
    buffer: ReadableBuffer,
    position: int,
    header: BatchHeader,
    *,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
) -> PayloadScan:
    """Expands the whole batch that is there at `position`, and checks all that `decode` checks but the CRC, and but
    what is in the blocks of an lz4 frame that hold nothing but columns' values.

    Raises:
        CorruptBatchError: as `decode`; its cause is a `PayloadTooLargeError` where the payload expands beyond
            `max_payload_bytes`.
    """
    compressed = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    try:
        if header.record_count == 0 and not compressed:
            return PayloadScan(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
        if header.record_count > most_records(header):
            raise CorruptPayloadError(f"{header.record_count} records cannot fit into {len(compressed)} bytes")
        if header.columnar:
            return _columns(compressed, header, max_payload_bytes)
        return _rows(decompress(header.codec, compressed, max_payload_bytes), header)
    except CorruptPayloadError as error:
        raise CorruptBatchError(position, str(error)) from error
    except MemoryError as error:
        raise CorruptBatchError(position, "there is not enough memory to expand the payload") from error


def scan_front(
    buffer: ReadableBuffer, position: int, header: BatchHeader, *, max_payload_bytes: int
) -> tuple[PayloadScan, int] | None:
    """`scan_payload` of columns where it takes no more than to look at their payload's front, and that payload's size:
    a millisecond for 4 MB. None: it takes more, or they are not sound."""
    compressed = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    size = _size_in_place(compressed, header)
    if size is None or size > max_payload_bytes or not 0 < header.record_count <= most_records(header):
        return None
    try:
        frame = _frame_in_place(compressed, size, header)
    except (CorruptPayloadError, MemoryError):
        return None
    return None if frame is None else (_framed(frame, header), size)


def scan_few_rows(
    buffer: ReadableBuffer, position: int, header: BatchHeader, *, max_payload_bytes: int
) -> RowScan | None:
    """`scan_payload` of rows that are so few that arrays of numpy would cost more than the scan. None: they are not
    sound."""
    compressed = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    if not 0 < header.record_count <= most_records(header):
        return None
    try:
        return scan_row_payload(decompress(header.codec, compressed, max_payload_bytes), header)
    except (CorruptPayloadError, MemoryError):
        return None


def _rows(payload: bytes, header: BatchHeader) -> PayloadScan:
    scan = scan_row_payload(payload, header)
    offsets = np.frombuffer(scan.offset_deltas, np.int32).astype(np.int64) + header.base_offset
    return PayloadScan(offsets, np.frombuffer(scan.timestamps, np.int64), scan.keyless)


def _columns(compressed: memoryview, header: BatchHeader, max_payload_bytes: int) -> PayloadScan:
    size = _size_in_place(compressed, header)
    frame = None
    if size is not None and size <= max_payload_bytes:
        frame = _frame_in_place(compressed, size, header)
    if frame is None:
        payload = decompress(header.codec, compressed, max_payload_bytes)
        frame = read_column_frame(lambda _: payload, len(payload), header)
    if frame is not None:
        return _framed(frame, header)
    from highwater.records.columns import decode_column_payload  # noqa: PLC0415  it loads Arrow

    columns = decode_column_payload(payload, header)
    return PayloadScan(columns.column(0).to_numpy(), columns.column(1).to_numpy(), columns.column(2).null_count)


def _size_in_place(compressed: memoryview, header: BatchHeader) -> int | None:
    """Bytes of a payload that need not be expanded whole to look at its front. None: it must."""
    match header.codec:
        case Codec.NONE:
            return len(compressed)
        case Codec.LZ4:
            return plain_lz4_bytes(compressed)
        case _:
            return None


def _frame_in_place(compressed: memoryview, size: int, header: BatchHeader) -> ColumnFrame | None:
    if header.codec is Codec.NONE:
        return read_column_frame(lambda _: compressed, size, header)
    return read_column_frame(Lz4Front(_scratch, compressed, size).first, size, header)


def _framed(frame: ColumnFrame, header: BatchHeader) -> PayloadScan:
    timestamps = frame.timestamps.copy()  # the payload's memory is the next one's
    if header.log_append_time:
        timestamps = np.full(header.record_count, header.max_timestamp, dtype=np.int64)
    first = header.base_offset
    return PayloadScan(np.arange(first, first + header.record_count, dtype=np.int64), timestamps, frame.keyless)
