"""The columns of a scan, made of batches of the log; no more of a batch is decoded than they need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from highwater.client.consumer.consumer_record import TABLE_SCHEMA_WITH_HEADERS
from highwater.client.exceptions import InvalidRequestError
from highwater.records import Batch, BatchHeader
from highwater.records.limits import most_records
from highwater.records.timestamps import shown

COLUMNS = tuple(TABLE_SCHEMA_WITH_HEADERS.names)
"""topic, partition, offset, timestamp, key, value, headers."""

# Batches of fewer rows are joined: what reads a stream of Arrow's pays for each of them.
JOINED_ROWS = 16_384
_IN_READER = {"offset": 0, "timestamp": 1, "key": 2, "value": 3, "headers": 4}


def scan_schema(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of these columns, in this order; None: of all. Raises `InvalidRequestError`."""
    if columns is None:
        return TABLE_SCHEMA_WITH_HEADERS
    if isinstance(columns, str):
        raise InvalidRequestError(f"columns is a sequence of names: columns=[{columns!r}]")
    names = list(columns)
    if not names:
        raise InvalidRequestError(f"columns is empty; there are {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            raise InvalidRequestError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
    if len(set(names)) < len(names):
        raise InvalidRequestError(f"columns names one twice: {', '.join(names)}")
    return pa.schema([TABLE_SCHEMA_WITH_HEADERS.field(name) for name in names])


def header_is_enough(header: BatchHeader, schema: pa.Schema) -> bool:
    """Tells whether these columns follow from the batch's header alone, so that its payload need not be expanded: all
    offsets are there (compaction has taken none), and times are the broker's, one for the batch. A header that claims
    more records than its payload can hold is not believed."""
    if header.record_count != header.last_offset_delta + 1 or header.record_count > most_records(header):
        return False
    given = {"topic", "partition", "offset", *(("timestamp",) if header.log_append_time else ())}
    return given.issuperset(schema.names)


def columns_of_header(
    header: BatchHeader, schema: pa.Schema, topic: str, partition: int, start: int, until: int
) -> pa.RecordBatch:
    """The batch's records with `start <= offset < until`, where `header_is_enough`."""
    first, end = max(header.base_offset, start), min(header.next_offset, until)
    offsets = np.arange(first, max(first, end), dtype=np.int64)
    times = np.full(len(offsets), header.max_timestamp, dtype=np.int64)
    return _batch(schema, topic, partition, len(offsets), {"offset": pa.array(offsets), "timestamp": pa.array(times)})


def columns_of_batch(
    batch: Batch, schema: pa.Schema, topic: str, partition: int, start: int, until: int
) -> pa.RecordBatch:
    """The decoded batch's records with `start <= offset < until`. Columns are not copied where the log has them."""
    names = [name for name in schema.names if name in _IN_READER]
    if not batch.header.columnar:
        return _of_rows(batch, names, schema, topic, partition, start, until)
    rows = batch.to_arrow()
    if batch.header.base_offset < start or batch.header.next_offset > until:
        first, end = np.searchsorted(rows.column(0).to_numpy(), [start, until]).tolist()
        rows = rows.slice(first, end - first)
    found = {name: rows.column(_IN_READER[name]) for name in names if _IN_READER[name] < rows.num_columns}
    return _batch(schema, topic, partition, rows.num_rows, found)


def _of_rows(
    batch: Batch, names: list[str], schema: pa.Schema, topic: str, partition: int, start: int, until: int
) -> pa.RecordBatch:
    """Of Kafka's rows: only what is asked for is made an Arrow column."""
    records = [record for record in batch.records() if start <= record.offset < until]
    found = {}
    for name in names:
        index = _IN_READER[name]
        cells = [record[index] for record in records]
        if name == "headers":
            cells = [[{"key": key, "value": value} for key, value in pairs] for pairs in cells]  # type: ignore[misc, union-attr]
        kind = pa.int64() if name == "timestamp" else schema.field(name).type
        found[name] = pa.array(cells, kind)
    return _batch(schema, topic, partition, len(records), found)


def _batch(schema: pa.Schema, topic: str, partition: int, count: int, found: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name == "topic":
            arrays.append(pa.repeat(topic, count))
        elif field.name == "partition":
            arrays.append(pa.repeat(pa.scalar(partition, pa.int32()), count))
        elif field.name == "timestamp":
            arrays.append(_times(found["timestamp"], field.type))
        elif field.name == "headers":
            headers = found.get("headers")
            arrays.append(pa.nulls(count, field.type) if headers is None else headers.cast(field.type))
        else:
            arrays.append(found[field.name])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(timestamps: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = timestamps.to_numpy()
    nearest = shown(numbers)
    return (timestamps if nearest is numbers else pa.array(nearest)).view(kind)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows without empty batches, and with small ones joined to `JOINED_ROWS` or more; the last may be
    smaller."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= JOINED_ROWS:
            yield _one(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
