"""`highwater pipeline NAME`: jobs on Spark. Neither they nor Spark are imported before one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from highwater.extras import needing

# Modules of highwater.spark.pipelines.
NAMES: tuple[str, ...] = ("archive", "audit", "mirror", "replay", "rollup", "verify")


class _Pipelines(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in NAMES:
            return None
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        with needing("spark", f"highwater pipeline {cmd_name}"):
            module = import_module(f"highwater.spark.pipelines.{cmd_name}")
        alone.command(cmd_name)(module.command)
        return get_command(alone)


app = typer.Typer(cls=_Pipelines, no_args_is_help=True, help="Run a job on Spark over topics or their files.")


@app.callback()
def pipeline() -> None:
    """Run a job on Spark over topics or their files."""
