"""Whole tables to batches: a column's partitions at once, stable order within a key, no Python a record. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from highwater.client.exceptions import InvalidRequestError, InvalidTimestampError
from highwater.client.producer.partitioner import NO_PARTITION, partition_column
from highwater.records.timestamps import MAX_TIMESTAMP_MS, writable

# Rows that are hashed, sorted and cut together: bounds the temporary memory, whatever the table's size.
WINDOW_ROWS = 1 << 18
WINDOW_BYTES = 128 << 20
# How much larger than asked for a batch may come out.
MOST_OF_BATCH = 1.5
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())]))


class ArrowStream(Protocol):
    """A source of rows as Arrow's C stream: frames of pandas and Polars, relations of DuckDB, `pyarrow`'s own."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Rows of one partition that make one batch. `rows()` gathers them; of many call it off the event loop."""

    partition: int
    records: int
    size_bytes: int  # about, before compression
    rows: Callable[[], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of a table's columns; None: not there."""

    key: str | None = "key"
    value: str = "value"
    timestamp: str | None = None
    headers: str | None = None


def as_table(table: pa.Table | pa.RecordBatch | ArrowStream) -> pa.Table:
    """The rows as a table of Arrow's. Raises `InvalidRequestError` for what is none."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    kind = type(table).__name__
    if not hasattr(table, "__arrow_c_stream__"):
        raise InvalidRequestError(
            f"send_table takes a table of pyarrow, pandas, Polars or DuckDB (what has __arrow_c_stream__), not {kind}; "
            "of lists of values: pyarrow.table({'key': [...], 'value': [...]})"
        )
    try:
        return pa.RecordBatchReader.from_stream(table).read_all()
    except Exception as error:  # of whichever library makes the rows
        raise InvalidRequestError(f"the {kind} cannot be read as Arrow columns: {error}") from error


def normalised(table: pa.Table, columns: TableColumns, now_ms: int | None = None) -> pa.Table:
    """The table with columns timestamp (int64 ms), key, value (binary) and, where it is named and a row has some,
    headers.

    Strings become their UTF-8 bytes without being copied. Without a timestamp column every row gets the time of the
    call. A key column named `key` may be absent; then no row has a key.

    Raises:
        InvalidRequestError: a column that is missing or of a type that is not bytes or text.
        InvalidTimestampError: a timestamp that is null, before 1970 or after 9999, or a column that holds no times.
    """
    names = table.schema.names
    for name, default in (
        (columns.key, "key"),
        (columns.value, None),
        (columns.timestamp, None),
        (columns.headers, None),
    ):
        if name is not None and name != default and name not in names:
            raise InvalidRequestError(f"the table has no column {name!r}; it has {', '.join(names) or 'none'}")
    if columns.timestamp is None:
        stamp = int(time() * 1000) if now_ms is None else now_ms
        timestamps = pa.chunked_array([pa.repeat(pa.scalar(stamp, pa.int64()), table.num_rows)])
    else:
        timestamps = _milliseconds(table.column(columns.timestamp), columns.timestamp)
    arrays = {"timestamp": timestamps}
    if columns.key is not None and columns.key in names:
        arrays["key"] = _binary(table.column(columns.key), columns.key)
    arrays["value"] = _binary(table.column(columns.value), columns.value)
    if columns.headers is not None:
        headers = _cast(table.column(columns.headers), columns.headers, _HEADERS, "headers")
        if len(pc.list_flatten(headers)):  # else batches need no column for them
            arrays["headers"] = headers
    return pa.table(arrays)


def chunks(
    table: pa.Table,
    partitions: int,
    *,
    rows_per_batch: Callable[[float], int],
    partition: int | None,
    first_sticky: int,
) -> Iterator[TableChunk]:
    """The batches of a normalised table, partition by partition in turn, rows of a partition in the table's order.

    `rows_per_batch` is asked how many rows a batch should have, with the mean size of a row in bytes, as late as
    possible: it learns how well the topic compresses. Rows without a key fill one partition after another, from
    `first_sticky` on.
    """
    if not table.num_rows:
        return
    row_bytes = max(table.nbytes / table.num_rows, 1.0)
    window_rows = int(max(1, min(WINDOW_ROWS, WINDOW_BYTES / row_bytes)))
    sticky = first_sticky
    for start in range(0, table.num_rows, window_rows):
        window = table.slice(start, window_rows)
        if partition is not None or "key" not in table.schema.names:
            for cut in _evenly(window.num_rows, rows_per_batch(row_bytes)):
                target = partition if partition is not None else sticky % partitions
                sticky += 1
                yield _slice_chunk(window, cut, target, row_bytes)
            continue
        placed = partition_column(window.column("key"), partitions)
        unkeyed = np.flatnonzero(placed == NO_PARTITION)
        if len(unkeyed):
            turn = np.arange(len(unkeyed)) // rows_per_batch(row_bytes)
            placed[unkeyed] = (turn + sticky) % partitions
            sticky += int(turn[-1]) + 1
        yield from _keyed_chunks(window, placed, partitions, rows_per_batch, row_bytes)


def _keyed_chunks(
    window: pa.Table,
    placed: npt.NDArray[np.int32],
    partitions: int,
    rows_per_batch: Callable[[float], int],
    row_bytes: float,
) -> Iterator[TableChunk]:
    # A stable sort keeps the table's order within each partition, hence within each key; on 16 bits it is a radix sort.
    order = np.argsort(placed.astype(np.uint16) if partitions <= 1 << 16 else placed, kind="stable")
    ends = np.cumsum(np.bincount(placed, minlength=partitions))
    rows = pa.RecordBatch.from_arrays(
        [_one_chunk(window.column(name)) for name in window.schema.names], names=window.schema.names
    )
    begins = [0, *ends[:-1].tolist()]
    left = [order[begin:end] for begin, end in zip(begins, ends.tolist(), strict=True)]
    while any(len(indices) for indices in left):
        for target, indices in enumerate(left):
            if len(indices):
                cut = next(_evenly(len(indices), rows_per_batch(row_bytes)))
                left[target] = indices[cut.stop :]
                yield _take_chunk(rows, indices[cut], target, row_bytes)


def _evenly(rows: int, about: int) -> Iterator[slice]:
    """Slices of nearly equal length, no small rest at the end: one of up to `MOST_OF_BATCH` times `about` stays whole.
    Two halves of a batch that is a little too large would cost each broker on their way almost twice as much."""
    pieces = max(1, math.ceil(rows / max(about, 1) - (MOST_OF_BATCH - 1)))
    for piece in range(pieces):
        yield slice(rows * piece // pieces, rows * (piece + 1) // pieces)


def _slice_chunk(window: pa.Table, cut: slice, partition: int, row_bytes: float) -> TableChunk:
    count = cut.stop - cut.start

    def rows() -> pa.RecordBatch:
        part = window.slice(cut.start, count)
        return pa.RecordBatch.from_arrays(
            [_one_chunk(part.column(name)) for name in part.schema.names], names=part.schema.names
        )

    return TableChunk(partition, count, int(count * row_bytes) + 1, rows)


def _take_chunk(rows: pa.RecordBatch, indices: npt.NDArray[np.int64], partition: int, row_bytes: float) -> TableChunk:
    count = len(indices)
    return TableChunk(partition, count, int(count * row_bytes) + 1, lambda: rows.take(pa.array(indices)))


def together(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of the rows of several, in order; where some have headers, the rows of the others have none."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="default")
    columns = [_one_chunk(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, names=table.schema.names)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _binary(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):  # Arrow casts few of them, Polars' categories not
        parts = [
            _one_chunk(_binary(pa.chunked_array([part.dictionary]), name)).take(part.indices) for part in column.chunks
        ]
        return pa.chunked_array(parts, pa.binary())
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_null(kind) or any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_large_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    ):
        return _cast(column, name, pa.binary(), "bytes")
    raise InvalidRequestError(f"column {name!r} is {kind}; keys and values are text or bytes: cast it to pa.string()")


def _milliseconds(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Raises `InvalidTimestampError`."""
    if column.null_count:
        raise InvalidTimestampError(f"column {name!r} has {column.null_count} null timestamps; fill or drop them")
    kind = column.type
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise InvalidTimestampError(f"column {name!r} is {kind}; a timestamp is an Arrow timestamp or int64 ms")
    try:
        if pa.types.is_date(kind):
            column = column.cast(pa.timestamp("ms"))
        elif pa.types.is_timestamp(kind):
            cut = kind.unit in ("us", "ns")
            if cut:  # to ms: what is just before 1970 would come out as another time, or as none
                _check_times(column.cast(pa.int64()), name, _not_negative)
            # Of a coarser unit, what leaves 64 bits must not come out as another time.
            column = column.cast(pa.timestamp("ms", kind.tz), safe=not cut)
        column = column.cast(pa.int64())
    except pa.ArrowException as error:
        raise InvalidTimestampError(f"column {name!r} cannot be read as timestamps in ms: {error}") from error
    _check_times(column, name, writable)
    return column


def _not_negative(timestamp: int) -> bool:
    return timestamp >= 0


def _check_times(column: pa.ChunkedArray, name: str, right: Callable[[int], bool]) -> None:
    """`right`: for the lowest and the highest one. Raises `InvalidTimestampError`."""
    if not len(column):
        return
    extremes = pc.min_max(column)
    for extreme in (extremes["min"].as_py(), extremes["max"].as_py()):
        if not right(extreme):
            raise InvalidTimestampError(
                f"column {name!r} has the timestamp {extreme}: they are ms since 1970, from 0 to "
                f"{MAX_TIMESTAMP_MS} (the year 9999), or -1 for none"
            )


def _cast(column: pa.ChunkedArray, name: str, target: pa.DataType, what: str) -> pa.ChunkedArray:
    try:
        return column.cast(target)
    except pa.ArrowException as error:
        raise InvalidRequestError(f"column {name!r} cannot be read as {what}: {error}") from error
