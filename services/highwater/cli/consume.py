"""`highwater consume`: the records of a topic to standard output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from highwater.cli.record_fields import record_fields
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, Bootstrap, errors, json_line

if TYPE_CHECKING:
    from highwater.client import ConsumerRecord


def consume(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="else: what comes from now on")] = False,
    max_records: Annotated[int | None, typer.Option(min=0, help="stop after so many")] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="a JSON object a record, with offset, timestamp and key; `encoding` names what is base64",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic, one a line, until Ctrl-C or --max-records."""
    import asyncio

    printed = Printed()
    try:
        asyncio.run(_consume(topic, from_beginning, max_records, json, bootstrap, printed))
    except KeyboardInterrupt:
        errors.print(f"interrupted: consumed {counted(printed.records, 'record')} of {topic}")
        raise
    errors.print(f"consumed {counted(printed.records, 'record')} of {topic}")


@dataclass
class Printed:
    records: int = 0


async def _consume(
    topic: str, from_beginning: bool, max_records: int | None, json: bool, bootstrap: str, printed: Printed
) -> None:
    from highwater.client import Consumer

    write = sys.stdout.buffer.write
    reset: Literal["earliest", "latest"] = "earliest" if from_beginning else "latest"
    async with Consumer(topic, bootstrap=bootstrap, auto_offset_reset=reset, max_block_ms=MAX_BLOCK_MS) as consumer:
        while max_records is None or printed.records < max_records:
            wanted = 10_000 if max_records is None else min(10_000, max_records - printed.records)
            batch = await consumer.poll(timeout_ms=500, max_records=wanted)
            for record in batch:
                if json:
                    json_line(_fields(record))
                else:
                    write((record.value if record.value is not None else b"null") + b"\n")
            sys.stdout.flush()
            printed.records += len(batch)


def _fields(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **record_fields(record.key, record.value, record.headers),
    }
