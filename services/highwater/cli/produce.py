"""`highwater produce`: lines, CSV rows or JSON lines into a topic."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from highwater.cli.read_ahead import ReadAhead
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, Bootstrap, errors
from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.client import Delivery
    from highwater.client.blocking.options import ProducerOptions

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
    max_request_size: Annotated[
        int, typer.Option(min=1024, help="bytes of the largest record; the topic's max.message.bytes bounds it, too")
    ] = 1024 * 1024,
    buffer_memory: Annotated[
        int, typer.Option(min=1024, help="bytes of records that may be sent and not acknowledged")
    ] = 64 * 1024 * 1024,
    max_block_ms: Annotated[int, typer.Option(min=0, help="how long to wait for room among these")] = 60_000,
    delivery_timeout_ms: Annotated[
        int, typer.Option(min=1, help="how long a record may take to be acknowledged, all retries included")
    ] = 120_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Produce a record for each line of standard input or of a file."""
    options: ProducerOptions = {
        "acks": _ACKS[acks],
        "compression": compression,
        "max_request_size": max_request_size,
        "buffer_memory": max(buffer_memory, max_request_size),
        "max_block_ms": max_block_ms,
        "delivery_timeout_ms": delivery_timeout_ms,
    }
    if file is None:
        kind = ".jsonl" if key_column is not None else ".txt"
        # Not `sys.stdin`, and never closed: a thread may wait for a line when the command ends.
        lines = os.fdopen(0, "rb", closefd=False)
        _send(records(lines, kind, key_column), 0, topic, options, bootstrap)
        return
    try:
        with file.open("rb") as source:
            total = file.stat().st_size
            _send(records(source, file.suffix.lower(), key_column), total, topic, options, bootstrap)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None


class Row(NamedTuple):
    key: bytes | None
    value: bytes
    size_bytes: int
    """Of the input that it took."""
    line: int
    """Its last one."""


def records(source: IO[bytes], kind: str, key_column: str | None) -> Iterator[Row]:
    """The records of an input; `kind` is the file's suffix. Raises `UserError` that names the line for what cannot be
    read."""
    if kind == ".csv":
        yield from _csv(source, key_column)
    elif kind == ".jsonl" or key_column is not None:
        yield from _json(source, key_column)
    else:
        for number, line in enumerate(source, 1):
            yield Row(None, line.rstrip(b"\r\n"), len(line), number)


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


@dataclass
class Counts:
    sent: int = 0
    acknowledged: int = 0
    failure: UserError | None = None
    """Of the first line that was not acknowledged."""


def _send(rows: Iterator[Row], total: int, topic: str, options: ProducerOptions, bootstrap: str) -> None:
    import asyncio

    counts = Counts()
    try:
        asyncio.run(_send_all(rows, total, topic, options, bootstrap, counts))
    except KeyboardInterrupt:
        left = counts.sent - counts.acknowledged
        unknown = f", and sent {left:,} more that were not acknowledged" if left else ""
        errors.print(f"interrupted: produced {counted(counts.acknowledged, 'record')} to {topic}{unknown}")
        raise
    errors.print(f"produced {counted(counts.acknowledged, 'record')} to {topic}")


async def _send_all(
    rows: Iterator[Row], total: int, topic: str, options: ProducerOptions, bootstrap: str, counts: Counts
) -> None:
    """Raises `UserError` for the first line that cannot be sent, when all before it are."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from highwater.client import Admin, HighwaterError, Producer

    async with Admin(bootstrap, max_block_ms=MAX_BLOCK_MS):
        pass  # whether there is a cluster is told early; the producer's own limit is for its buffer too
    columns = [*Progress.get_default_columns(), TextColumn("{task.fields[records]:,} records")]
    if not total:
        columns = [SpinnerColumn(), *columns[:1], columns[-1]]
    async with Producer(bootstrap, **options) as producer:
        await producer.partitions_for(topic)  # an unknown topic is told before the first line is read
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task(f"producing to {topic}", total=total or None, records=0)
            handles: list[tuple[int, Delivery]] = []
            taken = 0
            reader = ReadAhead(rows)

            async def settle() -> None:
                waiting, handles[:] = handles[:], []
                for line, handle in waiting:
                    try:
                        await handle
                        counts.acknowledged += 1
                    except HighwaterError as error:
                        counts.failure = counts.failure or UserError(f"line {line}: {error}")

            try:
                while counts.failure is None and (read := await reader.take()):
                    for row in read:
                        try:
                            handles.append((row.line, await producer.send(topic, row.value, key=row.key)))
                        except HighwaterError as error:
                            raise UserError(f"line {row.line}: {error}") from None
                        counts.sent += 1
                        taken += row.size_bytes
                    if len(handles) >= _PENDING:
                        await settle()
                    progress.update(task, completed=taken, records=counts.sent)
            except UserError as error:
                await settle()
                raise UserError(
                    f"{counts.failure or error}; records produced before it: {counts.acknowledged:,}"
                ) from None
            finally:
                await settle()  # on Ctrl-C what was read is brought to its end; a second one leaves it
    if counts.failure is not None:
        raise UserError(f"{counts.failure}; records produced: {counts.acknowledged:,}")
