"""A record as a consumer gets it, and whole batches as lists of them or as Arrow columns. Pure."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from highwater.records import Batch
from highwater.records.timestamps import shown


class ConsumerRecord(NamedTuple):
    """`value` None is a tombstone. `headers` keeps their order and repeated names. `timestamp_ms` is what the log has:
    -1 is none, and there may be times that no date shows."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


_TIMESTAMP = pa.timestamp("ms", tz="UTC")
_FIELDS = [
    pa.field("topic", pa.utf8(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", _TIMESTAMP, nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
]
_HEADERS = pa.field(
    "headers",
    pa.list_(pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())])),
)
TABLE_SCHEMA = pa.schema(_FIELDS)
TABLE_SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, _HEADERS])


def consumer_records(batch: Batch, topic: str, partition: int, from_offset: int) -> list[ConsumerRecord]:
    """The batch's records at `from_offset` and above."""
    rows: zip[tuple[object, ...]]
    if not batch.header.record_count:
        return []  # compaction has left the header alone
    if batch.header.columnar and not batch.header.has_headers:
        columns = batch.to_arrow()
        rows = zip(
            repeat(topic),
            repeat(partition),
            columns.column(0).to_numpy().tolist(),
            columns.column(1).to_numpy().tolist(),
            columns.column(2).to_pylist(),
            columns.column(3).to_pylist(),
            repeat(()),
        )
    else:
        rows = zip(repeat(topic), repeat(partition), *zip(*batch.records(), strict=True))
    found = _made(rows)
    if batch.header.base_offset >= from_offset:
        return found
    return [record for record in found if record.offset >= from_offset]


def _made(rows: Iterable[tuple[object, ...]]) -> list[ConsumerRecord]:
    """Records hold no cycles: the collector, which would look at them every 700 of them, is off meanwhile."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        # ConsumerRecord._make would run Python code for each record; tuple.__new__ does the same in C.
        return list(map(tuple.__new__, repeat(ConsumerRecord), rows))
    finally:
        if collecting:
            gc.enable()


def consumer_columns(
    batch: Batch, topic: str, partition: int, from_offset: int, *, include_headers: bool
) -> pa.RecordBatch:
    """The batch's records at `from_offset` and above, in `TABLE_SCHEMA`[`_WITH_HEADERS`]. Columns are not copied, but
    for timestamps that no date shows (see `records.timestamps`)."""
    columns = batch.to_arrow()
    if batch.header.base_offset < from_offset:
        columns = columns.slice(int(np.searchsorted(columns.column(0).to_numpy(), from_offset)))
    count = columns.num_rows
    arrays = [
        pa.repeat(topic, count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        columns.column(0),
        _shown(columns.column(1)),
        columns.column(2),
        columns.column(3),
    ]
    if not include_headers:
        return pa.RecordBatch.from_arrays(arrays, schema=TABLE_SCHEMA)
    headers = columns.column(4).cast(_HEADERS.type) if columns.num_columns > 4 else pa.nulls(count, _HEADERS.type)
    return pa.RecordBatch.from_arrays([*arrays, headers], schema=TABLE_SCHEMA_WITH_HEADERS)


def _shown(timestamps: pa.Array) -> pa.Array:
    numbers = timestamps.to_numpy()
    found = shown(numbers)
    return (timestamps if found is numbers else pa.array(found)).view(_TIMESTAMP)


def columns_of_records(records: list[ConsumerRecord], *, include_headers: bool) -> pa.RecordBatch:
    """`consumer_columns` of records that were decoded one by one."""
    columns = list(zip(*records, strict=True))
    schema = TABLE_SCHEMA_WITH_HEADERS if include_headers else TABLE_SCHEMA
    if include_headers:
        columns[6] = tuple([{"key": key, "value": value} for key, value in pairs] for pairs in columns[6])
    columns[3] = tuple(shown(np.array(columns[3], dtype=np.int64)).tolist())
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
