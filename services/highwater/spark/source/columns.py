"""A decoded batch of the log as the columns of a read. Pure.

Spark takes an Arrow batch without looking at its rows where its schema is exactly the one that Spark expects:
timestamps in us UTC, lists whose items are called `element`, every column nullable.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from highwater.records import Batch
from highwater.records.timestamps import shown

_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())])))
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.utf8(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
CREATE_TIME = 0
LOG_APPEND_TIME = 1


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def read_columns(
    batch: Batch, topic: str, partition: int, start: int, until: int, columns: tuple[str, ...]
) -> pa.RecordBatch:
    """The batch's records with `start <= offset < until`. Keys and values are not copied."""
    rows = batch.to_arrow()
    header = batch.header
    if header.base_offset < start or header.next_offset > until:
        first, end = np.searchsorted(rows.column(0).to_numpy(), [start, until]).tolist()
        rows = rows.slice(first, end - first)
    count = rows.num_rows
    arrays = []
    for name in columns:
        if name == "key":
            arrays.append(rows.column(2))
        elif name == "value":
            arrays.append(rows.column(3))
        elif name == "topic":
            arrays.append(_constant(topic, _TYPES[name], count))
        elif name == "partition":
            arrays.append(_constant(partition, _TYPES[name], count))
        elif name == "offset":
            arrays.append(rows.column(0))
        elif name == "timestamp":
            arrays.append(pa.array(shown(rows.column(1).to_numpy()) * 1000).view(_TYPES["timestamp"]))
        elif name == "timestampType":
            kind = LOG_APPEND_TIME if header.log_append_time else CREATE_TIME
            arrays.append(_constant(kind, _TYPES[name], count))
        else:
            arrays.append(_headers(rows, count))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _constant(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """A slice of a column that batches share: making one for each took most of this module's time."""
    return _repeated(value, kind, 1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=16)
def _repeated(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _headers(rows: pa.RecordBatch, count: int) -> pa.Array:
    """Null where a record has none, as Spark's Kafka source has it."""
    if rows.num_columns <= 4:
        return pa.nulls(count, _HEADERS)
    column = rows.column(4).cast(_HEADERS)
    empty = pc.equal(column.value_lengths(), 0)
    return pc.if_else(empty, pa.scalar(None, _HEADERS), column) if pc.any(empty).as_py() else column
