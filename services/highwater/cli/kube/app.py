"""The commands of `highwater kube`. None loads the Kubernetes client before it runs."""

from __future__ import annotations

import typer

from highwater.cli.kube import chaos, debug_bundle, logs, metadata, status

app = typer.Typer(
    no_args_is_help=True,
    help="A release of the Helm chart on Kubernetes: its state, logs, a bundle for whoever helps, faults on purpose.",
)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("debug-bundle")(debug_bundle.debug_bundle)
app.command("chaos")(chaos.chaos)
app.command("backup")(metadata.backup)
app.command("restore")(metadata.restore)
app.command("rebuild")(metadata.rebuild)
