"""The rows of a write: which columns they may have, and which topic and partition each goes to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from highwater.spark.errors import OptionError

_BYTES = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_SMALL = ("tinyint", "smallint", "int")
WRITE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": _SMALL,
    "headers": (_HEADERS,),
}
_TIMESTAMPS = ("timestamp", "timestamp_ntz")
NO_PARTITION = -1

# Spark hands over 10,000 rows at a time. Batches of the log come out better when more are cut at once.
SEND_ROWS = 160_000
SEND_BYTES = 32 * 1024 * 1024


class Target(NamedTuple):
    topic: str
    partition: int | None  # None: the key decides
    rows: pa.Table


def check_write_columns(types: Mapping[str, str], *, topic: str | None, include_timestamp: bool) -> frozenset[str]:
    """The columns that are written, by Spark's simple type names; others are not looked at, as in Spark's Kafka sink.

    Raises:
        OptionError: a column is missing, or has a type that cannot be written.
    """
    if "value" not in types:
        raise OptionError(f"a row to write needs a column value; there are {', '.join(types) or 'none'}")
    if topic is None and "topic" not in types:
        raise OptionError("nothing says which topic to write to: set option topic, or give rows a column topic")
    wanted = dict(WRITE_COLUMNS)
    if include_timestamp:
        if "timestamp" not in types:
            raise OptionError("option includeTimestamp is true, and there is no column timestamp")
        wanted["timestamp"] = _TIMESTAMPS
    for name, allowed in wanted.items():
        found = types.get(name)
        if found is not None and found not in allowed and not _is_bytes(found, allowed):
            raise OptionError(f"column {name} is {found}; it must be {' or '.join(allowed)}: cast it")
    return frozenset(name for name in wanted if name in types)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about `SEND_ROWS` rows, or `SEND_BYTES`."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= SEND_ROWS or size >= SEND_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def rows_by_target(table: pa.Table, topic: str | None) -> Iterator[Target]:
    """The table's rows for each topic and partition, in the table's order within each. `topic` goes before the column.

    Raises:
        OptionError: a row's topic is null, or its partition is negative.
    """
    topics, topic_codes = ([topic], None) if topic is not None else _topic_codes(table.column("topic"))
    partitions = _partitions(table.column("partition")) if "partition" in table.schema.names else None
    if topic_codes is None and partitions is None:
        yield Target(topics[0], None, table)
        return
    count = table.num_rows
    codes = topic_codes if topic_codes is not None else np.zeros(count, dtype=np.int64)
    numbers = partitions if partitions is not None else np.full(count, NO_PARTITION, dtype=np.int64)
    width = int(numbers.max(initial=NO_PARTITION)) + 2
    targets = codes * width + (numbers + 1)
    order = np.argsort(targets, kind="stable")
    placed = targets[order]
    begins = np.flatnonzero(np.r_[True, placed[1:] != placed[:-1]])
    ends = np.r_[begins[1:], count]
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        code, number = divmod(int(placed[begin]), width)
        indices = order[begin:end]
        rows = table if end - begin == count else table.take(pa.array(indices))
        yield Target(topics[code], None if number == 0 else number - 1, rows)


def _is_bytes(found: str, allowed: tuple[str, ...]) -> bool:
    """Strings with a length or a collation are strings."""
    return "string" in allowed and re.match(r"(string|varchar|char)\b", found) is not None


def _topic_codes(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64] | None]:
    """The names, and for each row which it is; None: there is one name."""
    if column.null_count:
        raise OptionError("a row's topic is null: set option topic, or fill the column in")
    encoded = pc.dictionary_encode(column.cast(pa.utf8())).combine_chunks()
    names = encoded.dictionary.to_pylist()
    return names, None if len(names) == 1 else encoded.indices.to_numpy().astype(np.int64)


def _partitions(column: pa.ChunkedArray) -> npt.NDArray[np.int64] | None:
    """`NO_PARTITION` where it is null; None: it always is."""
    if column.null_count == len(column):
        return None
    lowest = pc.min(column).as_py()
    if lowest < 0:
        raise OptionError(f"a row's partition is {lowest}: partitions are 0 or more, or null for the key to decide")
    filled = pc.fill_null(column.cast(pa.int64()), NO_PARTITION)
    numbers: npt.NDArray[np.int64] = filled.to_numpy()
    return numbers
