"""`highwater log dump`: what a segment file holds, read without a server."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Look into log files.")
