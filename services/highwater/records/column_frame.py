"""A columnar payload without headers and offset deltas, read without Arrow.

Arrow's C++ writer lays the metadata of a record batch message out in one way only: the numbers stand at fixed places.

      0    8  continuation ff ff ff ff, metadata size 264
      8   32  flatbuffer tables
     40    8  body length, int64
     48   24  flatbuffer tables
     72    8  rows, int64
     80    8  flatbuffer, the number of buffers: 8
     88  128  the buffers' (offset, length) in the body, int64: timestamp's validity and data; key's validity, offsets
              and data; value's
    216    8  flatbuffer, the number of nodes: 3
    224   48  the columns' (rows, nulls), int64
    272    .  body

What is laid out in another way, by another writer or with the headers' column, is no concern of this module: Arrow
reads it (`columns`). Whatever is accepted here, Arrow accepts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from highwater.records.header import BatchHeader

_FRAME = struct.Struct("<8s32sq24sq8s16q8s6q")
_PREFIX = bytes.fromhex("ffffffff08010000")
_TABLES = bytes.fromhex("14000000000000000c0016000600050008000c000c0000000003040018000000")
_BATCH_TABLE = bytes.fromhex("00000a0018000c00040008000a0000009c00000010000000")
_BUFFERS = bytes.fromhex("0000000008000000")
_NODES = bytes.fromhex("0000000003000000")


class ColumnFrame(NamedTuple):
    timestamps: npt.NDArray[np.int64]
    keyless: int  # records without a key


def read_column_frame(first: Callable[[int], bytes | memoryview], size: int, header: BatchHeader) -> ColumnFrame | None:
    """The frame of a sound payload of `size` bytes, whose columns are within their buffers and have as many nulls as
    they say. None: it is another one, or not sound. `first` gives so many of its bytes or more, from its beginning; the
    values themselves are not asked for."""
    if header.has_headers or header.has_offset_deltas or size < _FRAME.size:
        return None
    prefix, tables, body, table, rows, buffers_head, *numbers = _FRAME.unpack_from(first(_FRAME.size))
    buffers, nodes_head, nodes = numbers[:16], numbers[16], numbers[17:]
    if (prefix, tables, table, buffers_head, nodes_head) != (_PREFIX, _TABLES, _BATCH_TABLE, _BUFFERS, _NODES):
        return None
    if body != size - _FRAME.size or rows != header.record_count or rows != header.last_offset_delta + 1:
        return None
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        if offset < 0 or offset % 8 or not 0 <= length <= body - offset:
            return None
    if nodes[0] != rows or nodes[1] != 0 or buffers[3] < 8 * rows:
        return None
    # Up to the end of all buffers but the keys' and the values' data.
    ends = [buffers[number] + buffers[number + 1] for number in (2, 4, 6, 10, 12)]
    payload = first(_FRAME.size + max(ends))
    key_sound = _sound_binary(payload, rows, buffers[4:10], nodes[2:4])
    if not key_sound or not _sound_binary(payload, rows, buffers[10:], nodes[4:]):
        return None
    return ColumnFrame(np.frombuffer(payload, "<i8", rows, _FRAME.size + buffers[2]), nodes[3])


def _sound_binary(payload: bytes | memoryview, rows: int, buffers: list[int], node: list[int]) -> bool:
    """Tells whether a binary column's values are within its data."""
    validity_at, validity_bytes, offsets_at, offsets_bytes, _, data_bytes = buffers
    length, nulls = node
    if length != rows or not 0 <= nulls <= rows or offsets_bytes < 4 * (rows + 1):
        return False
    if nulls:
        if validity_bytes * 8 < rows:
            return False
        start = _FRAME.size + validity_at
        bits = int.from_bytes(payload[start : start + (rows + 7) // 8], "little") & ((1 << rows) - 1)
        if bits.bit_count() != rows - nulls:
            return False
    offsets = np.frombuffer(payload, "<i4", rows + 1, _FRAME.size + offsets_at)
    return bool(offsets[0] >= 0 and offsets[-1] <= data_bytes and (offsets[1:] >= offsets[:-1]).all())
