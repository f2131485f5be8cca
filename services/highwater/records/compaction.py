"""The part of a batch that compaction keeps.

The batch stays where it was: base offset, last offset delta, leader epoch, producer fields, codec and timestamp type
are kept, so that offsets, epochs and sequences read the same after it. Rows carry their own offset deltas; columns get
an `offset_delta` column as soon as a record is missing (RULES 10.2). A batch without survivors shrinks to its header
(RULES 4.3 wants each epoch's first batch even then).
"""

from __future__ import annotations

from itertools import compress as select

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from highwater.records import columns as columnar
from highwater.records.batch import Batch, decode
from highwater.records.codec import Codec
from highwater.records.codecs import compress
from highwater.records.header import (
    CODEC_MASK,
    COLUMNAR_BIT,
    DELETE_HORIZON_BIT,
    HEADERS_BIT,
    OFFSET_DELTAS_BIT,
    BatchHeader,
    ReadableBuffer,
    pack_batch,
)
from highwater.records.limits import DEFAULT_MAX_PAYLOAD_BYTES
from highwater.records.rows import encode_row_payload

_NO_TIMESTAMP = -1


def retain(
    buffer: ReadableBuffer,
    position: int,
    keep: npt.NDArray[np.bool_],
    *,
    delete_horizon_ms: int | None = None,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
) -> bytes:
    """The batch at `position` with only the records where `keep` is true, in their order.

    `delete_horizon_ms` is stored in place of the base timestamp (attribute bit 6); None keeps the batch's own, if any.

    Raises:
        CorruptBatchError: as `decode`. ValueError: `keep` has not one entry a record.
    """
    batch = decode(buffer, position, max_payload_bytes=max_payload_bytes)
    size = batch.header.size_bytes
    kept = retain_decoded(batch, keep, delete_horizon_ms=delete_horizon_ms)
    return bytes(memoryview(buffer)[position : position + size]) if kept is None else kept


def retain_decoded(batch: Batch, keep: npt.NDArray[np.bool_], *, delete_horizon_ms: int | None = None) -> bytes | None:
    """`retain` of a batch that has been decoded; None where it stays as it is, byte for byte.

    Raises:
        ValueError: `keep` has not one entry a record.
    """
    header = batch.header
    if len(keep) != header.record_count:
        raise ValueError(f"{len(keep)} entries of keep for {header.record_count} records")
    horizon = header.delete_horizon_ms if delete_horizon_ms is None else delete_horizon_ms
    if keep.all() and horizon == header.delete_horizon_ms:
        return None
    if not keep.any():
        return _without_records(header, horizon)
    if header.columnar:
        return _retain_columns(batch.to_arrow().filter(pa.array(keep)), header, horizon)
    survivors = list(select(batch.records(), keep.tolist()))
    timestamps = np.array([record.timestamp for record in survivors], dtype=np.int64)
    base_timestamp = int(timestamps[0]) if horizon is None else horizon
    payload = encode_row_payload(
        survivors, [record.offset - header.base_offset for record in survivors], base_timestamp
    )
    return _pack(payload, header, header.attributes, timestamps, horizon)


def _retain_columns(survivors: pa.RecordBatch, header: BatchHeader, horizon: int | None) -> bytes:
    attributes = header.attributes & ~OFFSET_DELTAS_BIT
    arrays = survivors.columns[1:]
    if survivors.num_rows < header.last_offset_delta + 1:
        attributes |= OFFSET_DELTAS_BIT
        deltas = survivors.column(0).to_numpy() - header.base_offset
        arrays.append(pa.array(deltas.astype(np.int32)))
    schema = columnar.payload_schema(
        headers=bool(attributes & HEADERS_BIT), offset_deltas=bool(attributes & OFFSET_DELTAS_BIT)
    )
    payload = memoryview(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())
    return _pack(payload, header, attributes, survivors.column(1).to_numpy(), horizon)


def _without_records(header: BatchHeader, horizon: int | None) -> bytes:
    attributes = header.attributes & ~(CODEC_MASK | COLUMNAR_BIT | HEADERS_BIT | OFFSET_DELTAS_BIT)
    return _pack(b"", header, attributes, np.zeros(0, dtype=np.int64), horizon)


def _pack(
    payload: bytes | memoryview,
    header: BatchHeader,
    attributes: int,
    timestamps: npt.NDArray[np.int64],
    horizon: int | None,
) -> bytes:
    """The batch around its new payload; `timestamps` are the survivors'."""
    # Without records there is no time that a look-up or retention could go by.
    base_timestamp = max_timestamp = _NO_TIMESTAMP
    if len(timestamps):
        base_timestamp = int(timestamps[0])
        # Under log append time this is the same number: every record has the batch's.
        max_timestamp = int(timestamps.max())
    if horizon is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = horizon
    return pack_batch(
        compress(Codec(attributes & CODEC_MASK), payload),
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(timestamps),
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
