"""`highwater consume`: the records of a topic to standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from highwater.cli.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, Bootstrap, errors, json_line

if TYPE_CHECKING:
    from highwater.client import ConsumerRecord


def consume(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="else: what comes from now on")] = False,
    max_records: Annotated[int | None, typer.Option(min=0, help="stop after so many")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="a JSON object a record, with offset, timestamp and key")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic, one a line, until Ctrl-C or --max-records."""
    import asyncio

    asyncio.run(_consume(topic, from_beginning, max_records, json, bootstrap))


async def _consume(topic: str, from_beginning: bool, max_records: int | None, json: bool, bootstrap: str) -> None:
    from highwater.client import Consumer

    printed = 0
    write = sys.stdout.buffer.write
    reset: Literal["earliest", "latest"] = "earliest" if from_beginning else "latest"
    async with Consumer(topic, bootstrap=bootstrap, auto_offset_reset=reset, max_block_ms=MAX_BLOCK_MS) as consumer:
        while max_records is None or printed < max_records:
            wanted = 10_000 if max_records is None else min(10_000, max_records - printed)
            batch = await consumer.poll(timeout_ms=500, max_records=wanted)
            for record in batch:
                if json:
                    json_line(_fields(record))
                else:
                    write((record.value if record.value is not None else b"null") + b"\n")
            printed += len(batch)
            sys.stdout.flush()
    errors.print(f"consumed {printed:,} records of {topic}")


def _fields(record: ConsumerRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    if record.headers:
        fields["headers"] = [[name, _text(value)] for name, value in record.headers]
    return fields


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="backslashreplace")
