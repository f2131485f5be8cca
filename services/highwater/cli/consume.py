"""`highwater consume`: the records of a topic to standard output, or to a file."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from highwater.cli.groups.group_argument import completed_groups
from highwater.cli.records.record_fields import record_fields
from highwater.cli.records.record_format import RecordFormat
from highwater.cli.records.table_file import check_suffix, table_file
from highwater.cli.topic_argument import Topic
from highwater.console.counted import counted
from highwater.console.output import DEFAULT_BOOTSTRAP, MAX_BLOCK_MS, Bootstrap, errors, json_line
from highwater.console.record_text import RecordOutput

if TYPE_CHECKING:
    import pyarrow as pa

    from highwater.client import ConsumerRecord, OffsetRange, Scan, TopicPartition
    from highwater.client.consumer.corrupt_batches import OnCorrupt

Print = Callable[["ConsumerRecord"], None]

_POLLED = 10_000  # records at once
_LAST_COMMIT_S = 5.0  # what somebody who has pressed Ctrl-C waits for a commit
_POSITIONS = "an offset, earliest, latest, latest-N, a time before now (-1h) or a time (2026-11-25T10:00:00Z)"


def consume(
    topic: Topic,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="POSITION", help=f"where to begin: {_POSITIONS}; else: from now on")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="where to end, at the latest the end of each partition as it is now"),
    ] = None,
    last: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="the last N offsets of each partition, and end")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="the same as --from earliest")] = False,
    partition: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="only this partition; may be repeated")
    ] = None,
    max_records: Annotated[int | None, typer.Option(min=0, help="stop after so many")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="as a member of this group: its share of the partitions, from where the group has committed (--from: "
            "where it has not), and what was printed is committed",
            autocompletion=completed_groups,
        ),
    ] = None,
    on_corrupt: Annotated[
        str,
        typer.Option(metavar="error|skip", help="a batch that cannot be read is an error, or is passed over"),
    ] = "error",
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="a JSON object a record, with offset, timestamp and key; `encoding` names what is base64",
        ),
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=r"e.g. '%t %p %o %k %v\n': topic, partition, offset, key, value; %T ms or %d time, %h headers, %K %V "
            r"%H lengths, %% a percent sign; \n \t \r \0 \\ \xHH",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a .parquet or .arrow file instead; without --from of all there is"),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic, one a line, until --until, --last, --max-records or Ctrl-C ends it."""
    import asyncio

    if json + (format_ is not None) + (output is not None) > 1:
        raise typer.BadParameter("give one of --json, --format and --output")
    start, end = _ends(from_, until, last, from_beginning)
    asked = Asked(topic, start, end, partition or None, max_records, bootstrap, _checked(on_corrupt))
    counts = Counts()
    if group is not None:
        _check_of_group(end, asked.partitions, output)
    if output is not None:
        check_suffix(output)
        work = _to_file(asked, output, counts)
    else:
        show = _printer(json, None if format_ is None else RecordFormat(format_))
        work = _to_screen(asked, show, counts) if group is None else _of_group(asked, group, show, counts)
    from highwater.client import CorruptRecordError

    try:
        asyncio.run(work)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"{error} (here on_corrupt is --on-corrupt)") from error
    except KeyboardInterrupt:
        left = f"; {output} was not written" if output is not None else ""
        errors.print(f"interrupted: consumed {counted(counts.records, 'record')} of {topic}{left}")
        raise
    into = f" into {output}" if output is not None else ""
    errors.print(f"consumed {counted(counts.records, 'record')} of {topic}{into}", soft_wrap=True)


def _checked(on_corrupt: str) -> OnCorrupt:
    if on_corrupt not in ("error", "skip"):
        raise typer.BadParameter(f"--on-corrupt is {on_corrupt!r}; it can be error or skip")
    return cast("OnCorrupt", on_corrupt)


@dataclass(frozen=True)
class Asked:
    topic: str
    start: str | None
    """None: as the way of reading has it."""
    end: str | None
    """None: it does not end."""
    partitions: list[int] | None
    max_records: int | None
    bootstrap: str
    on_corrupt: OnCorrupt = "error"

    def scan(self, start: str, *, progress: bool = False) -> Scan:
        from highwater.client import Scan

        return Scan(
            self.topic,
            start=start,
            end=self.end or "latest",
            partitions=self.partitions,
            bootstrap=self.bootstrap,
            progress=progress,
            on_corrupt=self.on_corrupt,
            max_block_ms=MAX_BLOCK_MS,
        )


@dataclass
class Counts:
    records: int = 0


def _ends(
    from_: str | None, until: str | None, last: int | None, from_beginning: bool
) -> tuple[str | None, str | None]:
    """The positions at which to begin and to end, as `scan` has them. Raises `InvalidRequestError` for what is none."""
    from highwater.client.scan.positions import parse_position

    if (from_ is not None) + (last is not None) + from_beginning > 1:
        raise typer.BadParameter("give one of --from, --from-beginning and --last")
    if last is not None:
        if until is not None:
            raise typer.BadParameter("--last ends at the end; of other records give --from latest-N and --until")
        return f"latest-{last}", "latest"
    for name, written in (("--from", from_), ("--until", until)):
        if written is not None:
            parse_position(name, written)
    return "earliest" if from_beginning else from_, until


def _check_of_group(end: str | None, partitions: list[int] | None, output: Path | None) -> None:
    """Refuses what a member of a group cannot do."""
    for name, given, why in (
        ("--until or --last", end is not None, "it goes on until --max-records or Ctrl-C"),
        ("--partition", partitions is not None, "the partitions are shared out among its members"),
        ("--output", output is not None, "it commits what it has printed"),
    ):
        if given:
            raise typer.BadParameter(f"a member of a group (--group) takes no {name}: {why}")


def _reset_of_group(start: str | None) -> Literal["earliest", "latest"] | int:
    """The place where a member begins to read partitions of which nothing was committed."""
    from highwater.client.scan.positions import Kind, parse_position

    position = parse_position("--from", start or "latest")
    if position.kind is Kind.EARLIEST:
        return "earliest"
    if position.kind is Kind.LATEST and not position.number:
        return "latest"
    if position.kind is Kind.TIME:
        return position.number
    if position.kind is Kind.AGO:
        return max(int(time() * 1000) - position.number, 0)
    raise typer.BadParameter(
        f"with --group, --from is where nothing was committed: earliest, latest or a time, and not {start!r}; "
        "`highwater groups reset` sets where a group goes on"
    )


def _printer(json: bool, form: RecordFormat | None) -> Print:
    output = RecordOutput()

    def as_json(record: ConsumerRecord) -> None:
        json_line(_fields(record))

    def as_formatted(record: ConsumerRecord) -> None:
        assert form is not None
        output.write(form.line(record, output.text))

    def as_value(record: ConsumerRecord) -> None:
        output.write(output.text(record.value if record.value is not None else b"null") + b"\n")

    return as_json if json else as_value if form is None else as_formatted


async def _to_screen(asked: Asked, show: Print, counts: Counts) -> None:
    if asked.max_records == 0:
        return
    async with aclosing(_followed(asked) if asked.end is None else _bounded(asked)) as batches:
        async for records in batches:
            left = None if asked.max_records is None else asked.max_records - counts.records
            shown = records[:left]
            for record in shown:
                show(record)
            sys.stdout.flush()
            counts.records += len(shown)
            if counts.records == asked.max_records:
                return


async def _bounded(asked: Asked) -> AsyncGenerator[Sequence[ConsumerRecord]]:
    async with asked.scan(asked.start or "earliest") as scan:
        async for batch in scan:
            yield _records(batch)


async def _followed(asked: Asked) -> AsyncGenerator[Sequence[ConsumerRecord]]:
    """From the start on, for ever; of partitions that are added too, unless some were named."""
    from highwater.client import Consumer

    begin = asked.start or "latest"
    ranges: Mapping[TopicPartition, OffsetRange] = {}
    if begin not in ("earliest", "latest") or asked.partitions is not None:  # else a consumer finds it by itself
        async with asked.scan(begin) as scan:
            ranges = scan.ranges
    topics = [asked.topic] if asked.partitions is None else []
    options: dict[str, Any] = {"bootstrap": asked.bootstrap, "max_block_ms": MAX_BLOCK_MS}
    options |= {"on_corrupt": asked.on_corrupt, "auto_offset_reset": "earliest" if asked.start else "latest"}
    async with Consumer(*topics, **options) as consumer:
        if asked.partitions is not None:
            consumer.assign(ranges)
        for partition, one in ranges.items():
            consumer.seek(partition, one.start)
        while True:
            yield await consumer.poll(timeout_ms=500, max_records=_POLLED)


async def _of_group(asked: Asked, group: str, show: Print, counts: Counts) -> None:
    """As a member of the group. What was printed is committed before more is printed, and at Ctrl-C."""
    import asyncio

    from highwater.client import Admin, CommitFailedError, Consumer, HighwaterError

    reset = _reset_of_group(asked.start)
    if asked.max_records == 0:
        return
    options: dict[str, Any] = {"bootstrap": asked.bootstrap, "max_block_ms": MAX_BLOCK_MS}
    async with Admin(**options) as admin:
        await admin.describe_topics([asked.topic])  # a member would wait for a topic that does not exist
    async with Consumer(
        asked.topic,
        group=group,
        auto_offset_reset=reset,
        enable_auto_commit=False,
        on_corrupt=asked.on_corrupt,
        **options,
    ) as consumer:
        try:
            while counts.records != asked.max_records:
                left = _POLLED if asked.max_records is None else min(asked.max_records - counts.records, _POLLED)
                records = await consumer.poll(timeout_ms=500, max_records=left)
                for record in records:
                    show(record)
                sys.stdout.flush()
                counts.records += len(records)
                if not records:
                    continue
                try:
                    await consumer.commit()
                except CommitFailedError as error:
                    errors.print(f"{error}; they are read again", markup=False, soft_wrap=True)
        except asyncio.CancelledError:  # Ctrl-C, which comes where something is awaited: all that came was printed
            with suppress(HighwaterError, TimeoutError):
                async with asyncio.timeout(_LAST_COMMIT_S):
                    await consumer.commit()
            raise


async def _to_file(asked: Asked, output: Path, counts: Counts) -> None:
    import asyncio

    async with asked.scan(asked.start or "earliest", progress=errors.is_terminal) as scan:
        with table_file(output, scan.schema) as file:
            async for batch in scan:
                left = None if asked.max_records is None else asked.max_records - counts.records
                kept = batch.slice(0, left)
                await asyncio.to_thread(file.write, kept)
                counts.records += kept.num_rows
                if counts.records == asked.max_records:
                    return


def _records(batch: pa.RecordBatch) -> list[ConsumerRecord]:
    """The rows of a scan of all columns."""
    import pyarrow as pa

    from highwater.client import ConsumerRecord

    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns[:3]]
    columns.append(batch.column("timestamp").view(pa.int64()).to_pylist())
    columns += [batch.column(name).to_pylist() for name in ("key", "value")]
    columns.append(
        [tuple((pair["key"], pair["value"]) for pair in pairs or ()) for pairs in batch.column("headers").to_pylist()]
    )
    return list(map(ConsumerRecord._make, zip(*columns, strict=True)))


def _fields(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **record_fields(record.key, record.value, record.headers),
    }
