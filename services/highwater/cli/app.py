"""The commands of `highwater`."""

from __future__ import annotations

from typing import Annotated

import typer

from highwater import __version__
from highwater.cli import cluster, consume, health, log, log_dirs, pipeline, produce, replicas, topics, up
from highwater.cli.groups import app as groups
from highwater.cli.kube import app as kube

app = typer.Typer(
    name="highwater",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def highwater(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """A replicated commit log for Python and Spark people."""
    # `highwater --version` itself is answered by `main`, before anything else is loaded.
    if version:
        typer.echo(f"highwater {__version__}")
        raise typer.Exit


app.command("up")(up.up)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="groups")
app.command("cluster")(cluster.cluster)
app.command("health", context_settings=health.AS_THEY_ARE, add_help_option=False)(health.health)
app.add_typer(log.app, name="log")
app.add_typer(replicas.app, name="replicas")
app.add_typer(log_dirs.app, name="log-dirs")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(kube.app, name="kube")
