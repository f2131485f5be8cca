"""Names that shells complete by asking the cluster: of topics and of groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from highwater.console.output import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from highwater.client.blocking import Admin

_PATIENCE_MS = 1_000  # of whoever pressed the key


def names(context: typer.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    """The names that begin like this; none where no broker answers at once."""
    from highwater.client.blocking import Admin
    from highwater.client.exceptions import HighwaterError

    bootstrap = context.params.get("bootstrap") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    try:
        with Admin(bootstrap, max_block_ms=0, request_timeout_ms=_PATIENCE_MS) as admin:
            return [name for name in ask(admin) if name.startswith(incomplete)]
    except HighwaterError:
        return []
