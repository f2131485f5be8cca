"""The names of groups on a command line, which shells complete."""

from __future__ import annotations

from typing import Annotated

import typer

from highwater.cli.completion import names


def completed_groups(context: typer.Context, incomplete: str) -> list[str]:
    return names(context, incomplete, lambda admin: (each.group for each in admin.list_groups()))


Group = Annotated[str, typer.Argument(help="the group's id", autocompletion=completed_groups)]
