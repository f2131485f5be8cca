"""Batches as the cleaner reads them: a file in chunks of whole batches, and each batch's keys as a column."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from highwater.records import Batch, BatchHeader, CorruptBatchError, decode, iter_batches, read_header


class DecodedBatch(NamedTuple):
    """A batch with records, its CRC checked. The columns have an entry a record."""

    batch: Batch
    keys: pa.Array  # binary
    offsets: npt.NDArray[np.int64]
    has_key: npt.NDArray[np.bool_]
    has_value: npt.NDArray[np.bool_]
    size_bytes: int  # in memory, about


def decode_batch(buffer: bytes, position: int) -> DecodedBatch:
    """Raises `CorruptBatchError`."""
    batch = decode(buffer, position)
    if batch.header.columnar:
        columns = batch.to_arrow()
        keys = columns.column(2)
        return DecodedBatch(
            batch, keys, np.asarray(columns.column(0)), _valid(keys), _valid(columns.column(3)), columns.nbytes
        )
    records = batch.records()
    keys = pa.array([record[2] for record in records], pa.binary())
    offsets = np.array([record[0] for record in records], dtype=np.int64)
    has_value = np.array([record[3] is not None for record in records], dtype=np.bool_)
    return DecodedBatch(batch, keys, offsets, _valid(keys), has_value, 2 * batch.header.size_bytes)


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    if not column.null_count:
        return np.ones(len(column), dtype=np.bool_)
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def read_chunks(
    descriptor: int, end: int, chunk_bytes: int
) -> Iterator[tuple[int, bytes, list[tuple[int, BatchHeader]]]]:
    """The batches of a segment up to position `end`: the position of each chunk in the file, the chunk, and position in
    it and header of each of its batches. A chunk holds whole batches, at least one, and what fits into `chunk_bytes`.

    Raises:
        CorruptBatchError: a bad header, or the file ends within a batch. OSError.
    """
    position = 0
    while position < end:
        chunk = os.pread(descriptor, min(chunk_bytes, end - position), position)
        try:
            first = read_header(chunk)
            if len(chunk) < first.size_bytes <= end - position:
                chunk = os.pread(descriptor, first.size_bytes, position)
            batches = list(iter_batches(chunk, partial_ok=True))
        except CorruptBatchError as error:
            raise CorruptBatchError(position + error.position, error.reason) from None
        if not batches:
            raise CorruptBatchError(position, f"truncated: {len(chunk)} of {first.size_bytes} bytes")
        size = batches[-1][0] + batches[-1][1].size_bytes
        yield position, chunk[:size] if size < len(chunk) else chunk, batches
        position += size
