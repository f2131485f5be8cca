"""The part that every command shares: where it prints, the `--bootstrap` option, tables for people and `--json` for
scripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from highwater.console.record_text import escaped_lines, escaped_text

# The brokers of `highwater up` with its defaults: any of them will do, and one may be down.
DEFAULT_BOOTSTRAP = "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
BOOTSTRAP_VARIABLE = "HIGHWATER_BOOTSTRAP"
"""Names the brokers, where `--bootstrap` does not."""

# A command that finds no broker says so at once: whoever typed it is waiting, a script can try again.
MAX_BLOCK_MS = 0


class PlainConsole(Console):
    """A console to which text is text: `[red]` and `:bug:` are printed as they stand, and a terminal gets no control
    character of it. What is to be coloured is a `Text` of our own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            objects = tuple(escaped_lines(each) if isinstance(each, str) else each for each in objects)
        super().print(*objects, **options)


def _console(*, stderr: bool = False) -> Console:
    """Makes a console. One that is no terminal has no width: a line stays one, for grep and awk."""
    console = PlainConsole(stderr=stderr)
    return console if console.is_terminal else PlainConsole(stderr=stderr, width=10_000)


screen = _console()
errors = _console(stderr=True)

Bootstrap = Annotated[
    str,
    typer.Option(
        envvar=BOOTSTRAP_VARIABLE, help="host:port of one or more brokers, separated by commas", show_default=True
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON lines instead of a table")]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people: numbers to the right, and control characters escaped wherever it goes, that a row be one."""
    drawn = Table(title=Text(escaped_text(title)) if title else None, title_justify="left", header_style="bold")
    cells = [list(row) for row in rows]
    texts = [[_text(cell) for cell in row] for row in cells]
    widths = [max(len(column), *(len(row[index]) for row in texts), 0) for index, column in enumerate(columns)]
    narrow = sum(widths) + 3 * len(columns) + 1 > screen.width
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], (int, float)) for row in cells)
        # Where not all fits numbers stay whole, under headers of several lines, and texts get the rest.
        least = max(map(len, column.split()))
        width = max(least, *(len(row[index]) for row in texts)) if numeric and narrow else None
        justify: Literal["left", "right"] = "right" if numeric else "left"
        drawn.add_column(column, justify=justify, overflow="fold", width=width, min_width=least if narrow else None)
    for row in texts:
        drawn.add_row(*map(Text, row))
    screen.print(drawn)


def _text(cell: Any) -> str:
    if isinstance(cell, (list, tuple)):
        return ",".join(_text(item) for item in cell)
    return escaped_text(str(cell))


def json_line(value: Any) -> None:
    """Writes it in ASCII: no control character of a record, DEL among them, reaches a terminal."""
    text = json.dumps(value, separators=(",", ":"), default=_plain).replace("\x7f", "\\u007f")
    sys.stdout.write(text + os.linesep)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
