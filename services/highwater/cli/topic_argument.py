"""The argument that names a topic, which shells complete."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from highwater.console.output import DEFAULT_BOOTSTRAP

_PATIENCE_MS = 1_000  # of whoever pressed the key


def _topics(context: typer.Context, incomplete: str) -> list[str]:
    """The topics whose names begin like this; none where no broker answers at once."""
    from highwater.client.blocking import Admin
    from highwater.client.exceptions import HighwaterError

    bootstrap = context.params.get("bootstrap") or os.environ.get("HIGHWATER_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    try:
        with Admin(bootstrap, max_block_ms=0, request_timeout_ms=_PATIENCE_MS) as admin:
            return [name for name in admin.list_topics() if name.startswith(incomplete)]
    except HighwaterError:
        return []


Topic = Annotated[str, typer.Argument(help="the topic's name", autocompletion=_topics)]
