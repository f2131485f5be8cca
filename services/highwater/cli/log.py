"""`highwater log dump FILE`: what a segment or an index holds; `highwater log verify DIR`: whether a log directory is
sound. Both read files, without a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from highwater.cli.records.record_fields import record_fields
from highwater.console.counted import counted
from highwater.console.output import AsJson, errors, json_line, screen
from highwater.console.record_text import escaped_text
from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.log_storage.inspect.dump import DumpedBatch

T = TypeVar("T")

app = typer.Typer(help="Look into the files of a log.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Look into the files of a log."""


@app.command("dump")
def dump(
    file: Annotated[Path, typer.Argument(help="a .log, .index or .timeindex file of a log directory")],
    records: Annotated[bool, typer.Option("--records", help="the records of each batch, too")] = False,
    json: AsJson = False,
) -> None:
    """Print the batches of a segment, or the entries of an index. Exit status 1 where a batch is damaged."""
    from highwater.log_storage.inspect.dump import check_name, dump_index, dump_segment

    try:
        check_name(file)
    except ValueError as error:
        raise UserError(str(error)) from None
    found = damaged = 0
    if file.suffix == ".log":
        for batch in _reading(dump_segment(file, records=records), file):
            found += 1
            damaged += bool(batch.problem)
            _print_batch(batch, json)
    else:
        names = ("timestamp", "offset") if file.suffix == ".timeindex" else ("offset", "position")
        for entry in _reading(dump_index(file), file):
            found += 1
            fields = dict(zip(names, (entry.first, entry.second), strict=True))
            json_line(fields) if json else screen.print(_pairs(fields))
    if not found:
        errors.print(f"{file} is empty: it has no {'batch' if file.suffix == '.log' else 'entry'}", soft_wrap=True)
    if damaged:
        raise UserError(f"{file} has {counted(damaged, 'damaged batch', 'damaged batches')}")


@app.command("verify")
def verify(
    directory: Annotated[Path, typer.Argument(help="a directory of log.dirs, or <topic>-<partition> in one")],
    json: AsJson = False,
) -> None:
    """Check every batch, index and checkpoint of a log directory that no log-storage has open. Exit status 1 where
    anything is wrong."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from highwater.log_storage.inspect.verify import verify as verify_directory

    files = batches = size_bytes = unsound = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("")
        for file in _reading(verify_directory(directory), directory):
            files += 1
            batches += file.batches
            size_bytes += file.size_bytes
            unsound += bool(file.problems)
            read = f"{counted(files, 'file')}, {counted(batches, 'batch', 'batches')}"
            progress.update(task, description=f"{read}, {size_bytes / 1e6:,.0f} MB")
            if json:
                sizes = {"batches": file.batches, "bytes": file.size_bytes}
                json_line({"path": str(file.path), **sizes, "problems": file.problems})
            else:
                for problem in file.problems:
                    screen.print(f"{file.path}: {problem}", soft_wrap=True)
    if unsound:
        raise UserError(
            f"{directory}: {unsound} of {counted(files, 'file')} {'is' if unsound == 1 else 'are'} not sound"
        )
    if not json:
        found = f"{counted(files, 'file')} with {counted(batches, 'batch', 'batches')}"
        screen.print(f"{found}, {counted(size_bytes, 'byte')}: all sound")


def _reading(items: Iterable[T], path: Path) -> Iterator[T]:
    """The items of an iterator over files. Raises `UserError` for what cannot be read: an error of whoever prints them
    is none of the file's."""
    try:
        yield from items
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror}") from None


def _print_batch(batch: DumpedBatch, json: bool) -> None:
    fields = _batch_fields(batch)
    rows = [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            **record_fields(record.key, record.value, record.headers),
        }
        for record in batch.records
    ]
    if json:
        json_line({**fields, **({"records": rows} if rows else {})})
        return
    screen.print(_pairs(fields), soft_wrap=True)
    for row in rows:
        text = _pairs(row)
        screen.print(f"  {escaped_text(text) if screen.is_terminal else text}", soft_wrap=True)


def _batch_fields(batch: DumpedBatch) -> dict[str, Any]:
    header = batch.header
    if header is None:
        return {"position": batch.position, "problem": batch.problem}
    fields: dict[str, Any] = {
        "offset": f"{header.base_offset}-{header.last_offset}",
        "records": header.record_count,
        "position": batch.position,
        "bytes": header.size_bytes,
        "epoch": header.partition_leader_epoch,
        "payload": "columns" if header.columnar else "rows",
        "codec": header.codec.name.lower(),
        "max_timestamp": header.max_timestamp,
        "crc": f"{header.crc:08x}",
    }
    if header.producer_id >= 0:
        fields["producer"] = f"{header.producer_id}/{header.producer_epoch}"
        fields["sequence"] = f"{header.base_sequence}-{header.last_sequence}"
    if batch.problem:
        fields["problem"] = batch.problem
    return fields


def _pairs(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())
