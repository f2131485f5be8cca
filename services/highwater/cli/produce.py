"""`highwater produce`: lines, CSV rows or JSON lines into a topic."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Literal

import typer

from highwater.cli.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, Bootstrap, errors
from highwater.cli.read_ahead import ReadAhead
from highwater.errors import UserError

_PENDING = 50_000


class Acks(StrEnum):
    ALL = "all"
    LEADER = "1"
    NONE = "0"


_ACKS: dict[Acks, Literal["all", 1, 0]] = {Acks.ALL: "all", Acks.LEADER: 1, Acks.NONE: 0}


def produce(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    file: Annotated[
        Path | None,
        typer.Option(help="a .csv (rows become JSON objects), .jsonl or text file; default: standard input"),
    ] = None,
    key_column: Annotated[str | None, typer.Option(help="CSV column or JSON field whose value is the key")] = None,
    acks: Annotated[Acks, typer.Option(help="who must have a record before it counts as produced")] = Acks.ALL,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd")] = "lz4",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Produce a record for each line of standard input or of a file."""
    if file is None:
        kind = ".jsonl" if key_column is not None else ".txt"
        # Not `sys.stdin`, and never closed: a thread may wait for a line when the command ends.
        lines = os.fdopen(0, "rb", closefd=False)
        _send(records(lines, kind, key_column), 0, topic, acks, compression, bootstrap)
        return
    try:
        with file.open("rb") as source:
            total = file.stat().st_size
            _send(records(source, file.suffix.lower(), key_column), total, topic, acks, compression, bootstrap)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None


Row = tuple[bytes | None, bytes, int]
"""Key, value, and how many bytes of input it took."""


def records(source: IO[bytes], kind: str, key_column: str | None) -> Iterator[Row]:
    """The records of an input; `kind` is the file's suffix. Raises `UserError` that names the line for what cannot be
    read."""
    if kind == ".csv":
        yield from _csv(source, key_column)
    elif kind == ".jsonl" or key_column is not None:
        yield from _json(source, key_column)
    else:
        for line in source:
            yield None, line.rstrip(b"\r\n"), len(line)


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
            yield key, json.dumps(row, separators=(",", ":")).encode(), taken
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
            yield None, text, len(line)
            continue
        if not isinstance(fields, dict) or key_column not in fields:
            raise UserError(f"line {number} has no field {key_column!r}")
        value = fields[key_column]
        key = None if value is None else (value if isinstance(value, str) else json.dumps(value)).encode()
        yield key, text, len(line)


def _send(rows: Iterator[Row], total: int, topic: str, acks: Acks, compression: str, bootstrap: str) -> None:
    import asyncio

    asyncio.run(_send_all(rows, total, topic, acks, compression, bootstrap))


async def _send_all(rows: Iterator[Row], total: int, topic: str, acks: Acks, compression: str, bootstrap: str) -> None:
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from highwater.client import Admin, Producer

    async with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS):
        pass  # whether there is a cluster is told early; the producer's own limit is for its buffer too
    columns = [*Progress.get_default_columns(), TextColumn("{task.fields[records]:,} records")]
    if not total:
        columns = [SpinnerColumn(), *columns[:1], columns[-1]]
    sent = 0
    async with Producer(bootstrap, acks=_ACKS[acks], compression=compression) as producer:
        await producer.partitions_for(topic)  # an unknown topic is told before the first line is read
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task(f"producing to {topic}", total=total or None, records=0)
            handles = []
            taken = 0
            reader = ReadAhead(rows)
            try:
                while read := await reader.take():
                    for key, value, size in read:
                        handles.append(await producer.send(topic, value, key=key))
                        sent += 1
                        taken += size
                    if len(handles) >= _PENDING:
                        for handle in handles:
                            await handle
                        handles.clear()
                    progress.update(task, completed=taken, records=sent)
                await producer.flush()
                for handle in handles:
                    await handle
            except UserError as error:
                await producer.flush()
                raise UserError(f"{error}; records produced before it: {sent:,}") from None
    errors.print(f"produced {sent:,} records to {topic}")
