"""The records of a Parquet or Arrow file, for `produce`.

A table whose columns are `value` and some of the others that a record has (`consume --output` writes such a one) is
records as they are; `topic` and `offset` are not looked at. Rows of any other table become JSON objects.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highwater.cli.records.input_rows import Row
from highwater.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow")
_RECORD_COLUMNS = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})
_BATCH_ROWS = 10_000


@contextmanager
def opened_table(path: Path, key_column: str | None) -> Generator[tuple[int, Iterator[Row]]]:
    """The number of rows (0: not known) and the rows. Raises `OSError` and, for what is no such file, `UserError`."""
    import pyarrow as pa

    with ExitStack() as stack:
        try:
            schema, total, batches = _opened(path, stack)
        except pa.ArrowException as error:
            raise UserError(f"{path} is no {path.suffix[1:].title()} file: {error}") from None
        if key_column is not None and key_column not in schema.names:
            raise UserError(f"there is no column {key_column!r}: the file has {', '.join(schema.names) or 'none'}")
        if len(set(schema.names)) < len(schema.names):
            raise UserError(f"two columns have the same name: {', '.join(schema.names)}")
        yield total, _rows(path, schema, batches, key_column)


def _opened(path: Path, stack: ExitStack) -> tuple[pa.Schema, int, Iterable[pa.RecordBatch]]:
    import pyarrow as pa

    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        parquet = stack.enter_context(pq.ParquetFile(path))
        return parquet.schema_arrow, parquet.metadata.num_rows, parquet.iter_batches(_BATCH_ROWS)
    source = stack.enter_context(pa.OSFile(str(path), "rb"))
    try:
        file = stack.enter_context(pa.ipc.open_file(source))
    except pa.ArrowInvalid:  # a stream, which has no footer
        source.seek(0)
        stream = stack.enter_context(pa.ipc.open_stream(source))
        return stream.schema, 0, stream
    return file.schema, 0, (file.get_batch(index) for index in range(file.num_record_batches))


def _rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], key_column: str | None) -> Iterator[Row]:
    import pyarrow as pa

    as_records = (
        "value" in schema.names and set(schema.names) <= _RECORD_COLUMNS and _is_bytes(schema.field("value").type)
    )
    number = 0
    try:
        for batch in batches:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                part = batch.slice(start, _BATCH_ROWS)
                yield from _records(part, number, key_column) if as_records else _objects(part, number, key_column)
                number += part.num_rows
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read behind row {number}: {error}") from None


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow.types as of

    if of.is_dictionary(kind):
        kind = kind.value_type
    return any(
        check(kind)
        for check in (
            *(of.is_binary, of.is_large_binary, of.is_binary_view, of.is_fixed_size_binary),
            *(of.is_string, of.is_large_string, of.is_string_view, of.is_null),
        )
    )


def _records(batch: pa.RecordBatch, before: int, key_column: str | None) -> Iterator[Row]:
    import pyarrow as pa

    def cells(name: str, kind: pa.DataType) -> list[Any]:
        if name not in batch.schema.names:
            return [None] * batch.num_rows
        column = batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        return list(column.cast(kind).to_pylist())

    headers = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    columns = zip(
        cells(key_column or "key", pa.binary()),
        cells("value", pa.binary()),
        cells("headers", headers),
        cells("timestamp", pa.int64()),
        cells("partition", pa.int32()),
        strict=True,
    )
    for number, (key, value, pairs, timestamp_ms, partition) in enumerate(columns, before + 1):
        kept = tuple((pair["key"], pair["value"]) for pair in pairs or ())
        yield Row(key, value, 1, number, kept, timestamp_ms, partition)


def _objects(batch: pa.RecordBatch, before: int, key_column: str | None) -> Iterator[Row]:
    for number, row in enumerate(batch.to_pylist(), before + 1):
        fields = {name: _json(cell) for name, cell in row.items()}
        key = None if key_column is None else fields[key_column]
        if key is not None and not isinstance(key, str):
            key = json.dumps(key, separators=(",", ":"))
        value = json.dumps(fields, separators=(",", ":")).encode()
        yield Row(None if key is None else key.encode(), value, 1, number)


def _json(cell: Any) -> Any:
    """The value as JSON has it: times as ISO 8601, bytes as text, or base64 where they are not UTF-8, numbers that are
    none as null."""
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if cell is None or isinstance(cell, (bool, int, str)):
        return cell
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return base64.b64encode(cell).decode()
    if isinstance(cell, (datetime, date, time)):
        return cell.isoformat()
    if isinstance(cell, dict):
        return {str(name): _json(each) for name, each in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_json(each) for each in cell]
    return str(cell)  # a decimal, a duration
