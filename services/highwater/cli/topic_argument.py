"""The argument that names a topic, which shells complete."""

from __future__ import annotations

from typing import Annotated

import typer

from highwater.cli.completion import names


def _topics(context: typer.Context, incomplete: str) -> list[str]:
    return names(context, incomplete, lambda admin: admin.list_topics())


Topic = Annotated[str, typer.Argument(help="the topic's name", autocompletion=_topics)]
