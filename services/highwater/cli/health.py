"""`highwater health ADDRESS` in the list of commands. `highwater.rpc.health` reads its command line."""

from __future__ import annotations

from typing import Any

import typer

AS_THEY_ARE: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}


def health(context: typer.Context) -> int:
    """Ask a service for its gRPC health: exit status 0 if it is serving."""
    from highwater.rpc import health

    return health.main(context.args)
