"""The records of an input of `produce`: lines of text, rows of CSV, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import IO, NamedTuple

from highwater.errors import UserError


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    size: int
    """Of the input that it took, in the unit of the input's size."""
    number: int
    """Of its last line, or of the row of a table, from 1."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


def rows(
    source: IO[bytes], kind: str, key_column: str | None = None, key_delimiter: bytes | None = None
) -> Iterator[Row]:
    """The records of an input; `kind` is the file's suffix. Raises `UserError` that names the line for what cannot be
    read."""
    if kind == ".csv":
        yield from _csv(source, key_column)
    elif kind == ".jsonl" or key_column is not None:
        yield from _json(source, key_column)
    else:
        yield from _text(source, key_delimiter)


def _text(source: IO[bytes], key_delimiter: bytes | None) -> Iterator[Row]:
    for number, line in enumerate(source, 1):
        value = line.rstrip(b"\r\n")
        if key_delimiter is None:
            yield Row(None, value, len(line), number)
            continue
        key, delimiter, value = value.partition(key_delimiter)
        if not delimiter:
            raise UserError(f"line {number} has no {key_delimiter.decode()!r} between key and value")
        yield Row(key, value, len(line), number)


def _csv(source: IO[bytes], key_column: str | None) -> Iterator[Row]:
    consumed = 0

    def lines() -> Iterator[str]:
        nonlocal consumed
        for number, line in enumerate(source, 1):
            consumed += len(line)
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise UserError(f"line {number} is not UTF-8") from None

    reader = csv.DictReader(lines(), strict=True)
    try:
        columns = reader.fieldnames or []
        if len(set(columns)) < len(columns):
            raise UserError(f"two columns have the same name: {', '.join(columns)}")
        if key_column is not None and key_column not in columns:
            raise UserError(f"there is no column {key_column!r}: the file has {', '.join(columns) or 'none'}")
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"line {reader.line_num} has not the {len(columns)} columns of the header")
            key = row[key_column].encode() if key_column is not None else None
            taken, consumed = consumed, 0
            yield Row(key, json.dumps(row, separators=(",", ":")).encode(), taken, reader.line_num)
    except csv.Error as error:
        raise UserError(f"line {reader.reader.line_num} is not CSV: {error}") from None


def _json(source: IO[bytes], key_column: str | None) -> Iterator[Row]:
    for number, line in enumerate(source, 1):
        text = line.strip()
        if not text:
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            hint = ": --key-column reads JSON lines or CSV" if key_column is not None else ""
            raise UserError(f"line {number} is not JSON{hint}") from None
        if key_column is None:
            yield Row(None, text, len(line), number)
            continue
        if not isinstance(fields, dict) or key_column not in fields:
            raise UserError(f"line {number} has no field {key_column!r}")
        value = fields[key_column]
        key = None if value is None else (value if isinstance(value, str) else json.dumps(value)).encode()
        yield Row(key, text, len(line), number)
