"""`highwater kube logs`: those of all containers, merged by time."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from highwater.cli.kube.options import Context, Namespace, ReleaseName, release_of
from highwater.console.output import AsJson, errors, json_line, screen
from highwater.errors import UserError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def logs(
    component: Annotated[
        list[str] | None,
        typer.Option(help="only this component or container, as broker, etcd, fetcher; may be repeated"),
    ] = None,
    since: Annotated[str, typer.Option(help="how far back: 30s, 10m, 2h, 1d")] = "10m",
    tail: Annotated[int, typer.Option(min=1, help="at most so many lines of each container")] = 10_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on with what comes, until Ctrl-C")] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="of what ran before the last restart")] = False,
    namespace: Namespace = None,
    release: ReleaseName = None,
    context: Context = None,
    json: AsJson = False,
) -> None:
    """Show the logs of the release's containers, merged by time, each line with its pod and container."""
    if follow and previous:
        raise UserError("--follow and --previous exclude each other: what ran before says nothing more")
    since_s = None if previous else _seconds(since)
    found = release_of(namespace, release, context)
    from highwater.kube.merged_logs import MergedLogs

    merged = MergedLogs(found, component or ())
    lines = merged.follow(since_s, tail) if follow else merged.read(since_s, tail, previous=previous)
    for one in lines:
        if json:
            json_line({"time": one.time, "pod": one.pod, "container": one.container, "line": one.text})
            if follow:
                sys.stdout.flush()
        else:
            screen.print(f"{one.pod}/{one.container}", one.text, soft_wrap=True)
    for complaint in merged.complaints:
        errors.print(complaint, soft_wrap=True)


def _seconds(text: str) -> float:
    try:
        return float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        raise UserError(f"--since {text!r} is no time: write 30s, 10m, 2h or 1d") from None
