"""Records of shards as batches of rows, and back; without Arrow, which a replica-manager does not load. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from highwater.groups.records import Record
from highwater.records import (
    HEADER_BYTES,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    CorruptBatchError,
    iter_batches,
    verify,
)
from highwater.records import Record as Row
from highwater.records.codecs import decompress
from highwater.records.errors import CorruptPayloadError
from highwater.records.header import pack_batch
from highwater.records.rows import decode_row_payload, encode_row_payload

RECORD_OVERHEAD_BYTES = 32  # of a row beside its key and value, at the most


def size_of(record: Record) -> int:
    """Bytes that it takes in a batch, at the most."""
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES


def encode(records: Sequence[Record]) -> bytes:
    """One batch."""
    rows = [Row(0, each.timestamp_ms, each.key, each.value) for each in records]
    times = [each.timestamp_ms for each in records]
    return pack_batch(
        encode_row_payload(rows, range(len(rows)), times[0]),
        attributes=0,
        last_offset_delta=len(rows) - 1,
        base_timestamp=times[0],
        max_timestamp=max(times),
        record_count=len(rows),
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )


def decode(data: bytes) -> Iterator[tuple[BatchHeader, list[Row]]]:
    """The whole batches at the front of `data`, one at each step. A control batch, or one of columns, has no records
    here. Raises `CorruptBatchError`."""
    for position, header in iter_batches(data, partial_ok=True):
        if header.control or header.columnar or header.record_count == 0:
            yield header, []
            continue
        verify(data, position, header)
        payload = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
        try:
            rows = decode_row_payload(decompress(header.codec, payload), header)
        except CorruptPayloadError as error:
            raise CorruptBatchError(position, str(error)) from error
        yield header, rows
