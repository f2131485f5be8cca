"""`highwater produce`: lines, CSV rows, JSON lines or a table's rows into a topic."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from highwater.cli.read_ahead import ReadAhead
from highwater.cli.records.input_rows import Row, rows
from highwater.cli.records.table_rows import SUFFIXES, opened_table
from highwater.cli.topic_argument import Topic
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
    topic: Topic,
    file: Annotated[
        Path | None,
        typer.Option(
            help="a .csv, .parquet or .arrow (rows become JSON objects; a table of key, value, headers, timestamp and "
            "partition is records), .jsonl or text file; default: standard input"
        ),
    ] = None,
    key_column: Annotated[str | None, typer.Option(help="column or JSON field whose value is the key")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option(metavar="TEXT", help="a line of text is the key, this, and the value")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="the key of every record")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="a header of every record; may be repeated")
    ] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="one record with --key and without a value: it deletes the key")
    ] = False,
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
    _check(file, key_column, key_delimiter, key, tombstone)
    options: ProducerOptions = {
        "acks": _ACKS[acks],
        "compression": compression,
        "max_request_size": max_request_size,
        "buffer_memory": max(buffer_memory, max_request_size),
        "max_block_ms": max_block_ms,
        "delivery_timeout_ms": delivery_timeout_ms,
    }
    every = Every(None if key is None else key.encode(), _headers(header))
    if tombstone:
        _send(iter([Row(None, None, 1, 1)]), 1, topic, every, options, bootstrap)
        return
    delimiter = None if key_delimiter is None else key_delimiter.encode()
    if file is None:
        kind = ".jsonl" if key_column is not None else ".txt"
        # Not `sys.stdin`, and never closed: a thread may wait for a line when the command ends.
        lines = os.fdopen(0, "rb", closefd=False)
        _send(rows(lines, kind, key_column, delimiter), 0, topic, every, options, bootstrap)
        return
    try:
        if file.suffix.lower() in SUFFIXES:
            with opened_table(file, key_column) as (total, table):
                _send(table, total, topic, every, options, bootstrap, unit="row")
            return
        with file.open("rb") as source:
            total = file.stat().st_size
            _send(rows(source, file.suffix.lower(), key_column, delimiter), total, topic, every, options, bootstrap)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None


def _check(
    file: Path | None, key_column: str | None, key_delimiter: str | None, key: str | None, tombstone: bool
) -> None:
    """Raises `BadParameter` for options that contradict each other."""
    if (key_column is not None) + (key_delimiter is not None) + (key is not None) > 1:
        raise typer.BadParameter("give one of --key, --key-column and --key-delimiter")
    if key_delimiter == "":
        raise typer.BadParameter("--key-delimiter is empty")
    if key_delimiter is not None and file is not None and file.suffix.lower() in (".csv", ".jsonl", *SUFFIXES):
        raise typer.BadParameter(f"--key-delimiter is for lines of text; of {file.suffix} give --key-column")
    if tombstone and key is None:
        raise typer.BadParameter("--tombstone needs --key: the key that it deletes")
    if tombstone and file is not None:
        raise typer.BadParameter("--tombstone is one record by itself, without --file")


def _headers(written: Sequence[str] | None) -> tuple[tuple[str, bytes], ...]:
    headers = []
    for item in written or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{item!r}: write --header name=value")
        headers.append((name, value.encode()))
    return tuple(headers)


@dataclass(frozen=True)
class Every:
    """The part of every record that the command line says."""

    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class Counts:
    sent: int = 0
    acknowledged: int = 0
    failure: UserError | None = None
    """Of the first line that was not acknowledged."""


def _send(
    read: Iterator[Row],
    total: int,
    topic: str,
    every: Every,
    options: ProducerOptions,
    bootstrap: str,
    *,
    unit: str = "line",
) -> None:
    import asyncio

    counts = Counts()
    try:
        asyncio.run(_send_all(read, total, topic, every, options, bootstrap, unit, counts))
    except KeyboardInterrupt:
        left = counts.sent - counts.acknowledged
        unknown = f", and sent {left:,} more that were not acknowledged" if left else ""
        errors.print(f"interrupted: produced {counted(counts.acknowledged, 'record')} to {topic}{unknown}")
        raise
    errors.print(f"produced {counted(counts.acknowledged, 'record')} to {topic}")


async def _send_all(
    rows: Iterator[Row],
    total: int,
    topic: str,
    every: Every,
    options: ProducerOptions,
    bootstrap: str,
    unit: str,
    counts: Counts,
) -> None:
    """Raises `UserError` for the first line or row that cannot be sent, when all before it are."""
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
                for number, handle in waiting:
                    try:
                        await handle
                        counts.acknowledged += 1
                    except HighwaterError as error:
                        counts.failure = counts.failure or UserError(f"{unit} {number}: {error}")

            try:
                while counts.failure is None and (read := await reader.take()):
                    for row in read:
                        try:
                            delivery = await producer.send(
                                topic,
                                row.value,
                                key=row.key if every.key is None else every.key,
                                headers=(*row.headers, *every.headers),
                                timestamp_ms=row.timestamp_ms,
                                partition=row.partition,
                            )
                        except HighwaterError as error:
                            raise UserError(f"{unit} {row.number}: {error}") from None
                        handles.append((row.number, delivery))
                        counts.sent += 1
                        taken += row.size
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
