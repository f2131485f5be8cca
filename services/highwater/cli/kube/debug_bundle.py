"""`highwater kube debug-bundle`: one archive for whoever helps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.cli.kube.options import Context, Namespace, ReleaseName, release_of
from highwater.console.output import AsJson, errors, json_line, screen

if TYPE_CHECKING:
    from highwater.kube.debug_bundle import Entry


def debug_bundle(
    out: Annotated[Path, typer.Option(help="the archive to write, .tar.gz")],
    timeout: Annotated[float, typer.Option(min=1, help="seconds; what is not read by then is left out")] = 300,
    namespace: Namespace = None,
    release: ReleaseName = None,
    context: Context = None,
    json: AsJson = False,
) -> None:
    """Write an archive with the state of a release: its objects, events, logs, metrics, etcd's keys, Helm's values. No
    Secrets, and what is named as secrets are is redacted; look into it before you give it away."""
    found = release_of(namespace, release, context)
    from highwater.kube.debug_bundle import write

    def tell(entry: Entry) -> None:
        if entry.error and not json:
            errors.print(f"{entry.name}: {entry.error}", soft_wrap=True)

    entries = write(found, out, timeout, tell)
    if json:
        json_line({"file": str(out), "parts": [dataclasses.asdict(one) for one in entries]})
        return
    failed = sum(1 for one in entries if one.error)
    screen.print(
        f"{out}: {len(entries) - failed} parts, {failed} that could not be read, {out.stat().st_size} bytes",
        markup=False,
        soft_wrap=True,
    )
